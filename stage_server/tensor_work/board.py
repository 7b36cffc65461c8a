"""Which task is whose: given out, waited for, given out again. Pure."""

# A task's value does not depend on who computes it, so giving it out twice costs time and no bit. Its life:
#
#     put         it waits
#     take        a worker does it; the longest waiting one comes first
#     answered    the first answer counts, and it is gone; later ones find nothing
#     given_up    the worker is gone: it waits again, in its old place
#     late        a worker has had it for much longer than such tasks take: whoever asks next gets it as well
#
# A worker may ask ahead, on a second stream: its next task travels while it does the one before. Such a stream gets
# what remains once each worker that has nothing to do has a task.
#
# A server does what nobody takes: all of it where there is no worker, or where each one has had its task for too long,
# and what is late even for the second worker. A worker that hangs is no worker until it answers.

from collections.abc import Hashable
from dataclasses import dataclass, field
from statistics import median

LATE = 4.0  # times what is usual for its kind
LEAST_SECONDS = 0.5  # until a task is late, however short such tasks are
UNKNOWN_SECONDS = 10.0  # the same while nobody knows how long they take
MOST_TIMES = 32  # of each kind, the newest, by which that is told


@dataclass(slots=True)
class Entry:
    """A task that nobody has answered."""

    kind: Hashable  # tasks of one kind take about as long
    since: float  # it was put here, or taken last
    workers: dict[int, float] = field(default_factory=dict)  # who does it, since when


class Board:
    """Numbers of tasks; what they are is somebody else's. ``now`` in seconds, of a clock that never goes back."""

    def __init__(self) -> None:
        self._open: dict[int, Entry] = {}  # ascending: in the order in which they were put
        self._times: dict[Hashable, list[float]] = {}
        # Of each worker that is there, by number: the kind of what it does, and since when; None: it does nothing.
        self.workers: dict[int, tuple[Hashable, float] | None] = {}
        self.ahead: set[int] = set()  # streams of theirs that ask ahead, by numbers of their own
        self.relaunched = 0  # tasks that were given to a second worker
        self.done = 0  # first answers
        self.waited_seconds = 0.0  # of all tasks, until they were taken

    def put(self, number: int, kind: Hashable, now: float) -> None:
        self._open[number] = Entry(kind, now)

    def withdraw(self, number: int, now: float) -> None:
        """Nobody waits for it any more."""
        entry = self._open.pop(number, None)
        if entry is not None and not entry.workers:
            self.waited_seconds += now - entry.since

    def take(self, worker: int, now: float) -> int | None:
        """What the worker is to do next; None: nothing at present."""
        number = next((number for number, entry in self._open.items() if not entry.workers), None)
        if worker in self.ahead:
            number = number if self.has_more else None
        elif number is None:
            number = next((number for number, entry in self._open.items() if self._is_to_repeat(entry, now)), None)
            self.relaunched += number is not None
        if number is not None:
            entry = self._open[number]
            self.waited_seconds += now - entry.since if not entry.workers else 0.0
            entry.workers[worker] = entry.since = now
            if worker not in self.ahead:
                self.workers[worker] = entry.kind, now
        return number

    def answered(self, number: int, worker: int, now: float) -> bool:
        """Whether this answer is the first one."""
        if worker not in self.ahead:
            self.workers[worker] = None
        entry = self._open.pop(number, None)
        if entry is None:
            return False
        self.done += 1
        if worker in entry.workers:
            times = self._times.setdefault(entry.kind, [])
            times.append(now - entry.workers[worker])
            del times[:-MOST_TIMES]
        return True

    def given_up(self, worker: int) -> None:
        """The worker is gone, or its stream that asks ahead."""
        self.workers.pop(worker, None)
        self.ahead.discard(worker)
        for entry in self._open.values():
            entry.workers.pop(worker, None)

    def is_left(self, number: int, now: float) -> bool:
        """Whether the server is to do the task itself."""
        entry = self._open.get(number)
        if entry is None:
            return False
        able = any(does is None or now - does[1] <= self._limit(does[0]) for does in self.workers.values())
        if not entry.workers or not able:
            return not able
        return len(entry.workers) > 1 and self._is_late(entry, now)

    @property
    def waiting(self) -> int:
        """Tasks that nobody does yet."""
        return sum(not entry.workers for entry in self._open.values())

    @property
    def has_more(self) -> bool:
        """Whether more tasks wait than there are workers that have nothing to do."""
        return self.waiting > sum(does is None for does in self.workers.values())

    def usual(self, kind: Hashable) -> float:
        """Seconds that a task of this kind takes; 0: nobody knows."""
        return median(self._times[kind]) if self._times.get(kind) else 0.0

    def _is_to_repeat(self, entry: Entry, now: float) -> bool:
        return len(entry.workers) == 1 and self._is_late(entry, now)

    def _is_late(self, entry: Entry, now: float) -> bool:
        return now - entry.since > self._limit(entry.kind)

    def _limit(self, kind: Hashable) -> float:
        usual = self.usual(kind)
        return max(LEAST_SECONDS, LATE * usual) if usual else UNKNOWN_SECONDS
