"""A simulated Redis: it goes away, and it loses what it was given, as one does without a disk or with an old dump."""

from typing import NamedTuple

from culm.coordinator.edges.persistence import Document
from culm.simulator.network import Clock

# It keeps two things: the newest document, and the lease with its term. Every state that it was ever in is remembered,
# so that it can come back as it was some seconds ago. A leader whose term was forgotten puts it back with its next
# write; two leaders of one term cannot both do so (rule 15).
#
# Left ideal: nothing is half written; a lease does not run out with time, a fault has another coordinator take it; the
# event log is kept elsewhere (``Cluster.records``).


class Memory(NamedTuple):
    """What there is to lose."""

    document: Document | None = None
    term: int = 0
    holder: int = 0  # of the lease: a leader's number; 0: nobody


class SimulatedRedis:
    """What leaders persist. Their writes take a moment, or an outage, and die with a leader that dies."""

    def __init__(self, clock: Clock) -> None:
        self.away = False
        self._clock = clock
        self._memory = Memory()
        self._before: list[tuple[float, Memory]] = [(0.0, self._memory)]

    @property
    def document(self) -> Document | None:
        return self._memory.document

    @property
    def term(self) -> int:
        return self._memory.term

    def acquire(self, holder: int, above: int = 0) -> int:
        """A term for a new leader, higher than ``above`` and than every one that is remembered here."""
        self._remember(Memory(self.document, max(self.term, above) + 1, holder))
        return self.term

    def write(self, document: Document, term: int, holder: int) -> bool:
        """False: another leads. A leader whose term, or lease, was forgotten puts it back."""
        if not self.renew(term, holder):
            return False
        self._remember(Memory(document, term, holder))
        return True

    def renew(self, term: int, holder: int) -> bool:
        """As ``write``, without a document. Of two leaders of one term only one holds the lease."""
        memory = self._memory
        if memory.term > term or (memory.term == term and memory.holder not in (0, holder)):
            return False
        if (memory.term, memory.holder) != (term, holder):
            self._remember(Memory(memory.document, term, holder))
        return True

    def _remember(self, memory: Memory) -> None:
        self._memory = memory
        self._before.append((self._clock.now, memory))

    def empty(self) -> None:
        """FLUSHALL, or a restart without a disk."""
        self._remember(Memory())

    def go_back(self, seconds: float) -> None:
        """A restart from a dump, or from an append-only file that lacks its end."""
        then = self._clock.now - seconds
        self._remember(next(memory for at, memory in reversed(self._before) if at <= max(then, 0.0)))

    def change_term(self, term: int) -> None:
        """It comes back with another term than its document has."""
        self._remember(Memory(self.document, max(0, term), self._memory.holder))
