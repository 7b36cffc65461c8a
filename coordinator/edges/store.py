"""Where the coordinator keeps what must outlive it, and the port that both stores fill."""

# What a leader may count on, whichever store it has:
#
# - Writes never wait and never fail. A write is done later, or never if the process dies first: nothing may be decided
#   because something was written. What is not yet written the nodes tell a successor (rule 8).
# - Writes are done in order, each once. A leader that another one has replaced writes nothing more: a store refuses
#   every write under a lower term, and ``renew`` tells the leader.
# - A store may lose its memory, or come back with an older one. It learns the leader's term again with the next write
#   (rule 15), and the state with the next decision that names Persist.

from typing import Any, Protocol

from culm.coordinator.edges.persistence import Document

PAGE = 1_000  # entries that are read at once: a reader never holds up the event loop, or Redis, for a whole stream
# Entries of a stream; older ones go. A summary comes every thousand events, so it has counted what goes.
LENGTHS = {"events": 10_000, "metrics": 5_000}


class LostLease(Exception):
    """Another coordinator leads with a higher term: step down."""


class StoreAway(Exception):
    """The store does not answer now."""


class Store(Protocol):
    """Writes return at once and reach the store in order, later if it is away."""

    async def acquire(self, above: int = 0) -> int:
        """Waits until this coordinator leads; the term: higher than ``above`` and than every one that is known here.

        The store may have lost its memory, so the caller may learn of a higher one and ask again (rule 15).
        """
        ...

    async def renew(self) -> None:
        """Keeps the lease. Raises LostLease when another coordinator leads; an outage loses nothing."""
        ...

    async def load(self) -> Document | None: ...

    def save(self, document: Document) -> None:
        """Persists the state; of several that wait only the last is written."""
        ...

    def heartbeat(self, node: str, ttl_seconds: float) -> None:
        """Shows for so long that the node was heard. Dropped while the store is away: nobody decides by it."""
        ...

    def append(self, stream: str, entry: dict[str, Any]) -> None:
        """Adds to the stream "events" or "metrics"."""
        ...

    async def read(self, stream: str, after: str = "") -> list[tuple[str, dict[str, str]]]:
        """The next entries of a stream, in order, each with its id; none at its end. Raises StoreAway."""
        ...

    def put(self, name: str, text: str) -> None:
        """Keeps a text under a name; of several that wait only the last is written."""
        ...

    async def get(self, name: str) -> str | None:
        """Raises StoreAway."""
        ...

    async def close(self) -> None:
        """Waits a moment for what is on its way, and gives the lease back."""
        ...


class MemoryStore:
    """A store that ends with the process."""

    def __init__(self) -> None:
        self.term = 0  # Invariant: each ``acquire`` returns a higher one
        self.document: Document | None = None
        self.streams: dict[str, list[dict[str, Any]]] = {}  # Invariant: each as long as LENGTHS says, at most
        self.texts: dict[str, str] = {}

    async def acquire(self, above: int = 0) -> int:
        self.term = max(self.term, above) + 1
        return self.term

    async def renew(self) -> None:
        return

    async def load(self) -> Document | None:
        return self.document

    def save(self, document: Document) -> None:
        self.document = document

    def heartbeat(self, node: str, ttl_seconds: float) -> None:
        return

    def append(self, stream: str, entry: dict[str, Any]) -> None:
        kept = self.streams.setdefault(stream, [])
        kept.append(entry)
        del kept[: -LENGTHS[stream]]

    async def read(self, stream: str, after: str = "") -> list[tuple[str, dict[str, str]]]:
        first = int(after or 0)
        page = self.streams.get(stream, [])[first : first + PAGE]
        return [(str(i), {k: str(v) for k, v in e.items()}) for i, e in enumerate(page, first + 1)]

    def put(self, name: str, text: str) -> None:
        self.texts[name] = text

    async def get(self, name: str) -> str | None:
        return self.texts.get(name)

    async def close(self) -> None:
        return
