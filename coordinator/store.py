"""Where the coordinator keeps what must outlive it, and the port that both stores fill."""

from typing import Any, Protocol

from coordinator.persistence import Document


class LostLease(Exception):
    """Another coordinator leads with a higher term: step down."""


class Store(Protocol):
    """Writes return at once and reach the store in order, later if it is away."""

    async def acquire(self) -> int:
        """Waits until this coordinator leads; the term, higher than every one before."""
        ...

    async def renew(self) -> None:
        """Keeps the lease. Raises LostLease when another coordinator leads; an outage is no loss."""
        ...

    async def raise_term(self, term: int) -> None:
        """Sees to it that the next leader has a higher term than this one; an outage of the store is no error."""
        ...

    async def load(self) -> Document | None: ...

    def save(self, document: Document) -> None:
        """Persists the state; of several that wait the last."""
        ...

    def heartbeat(self, node: str, ttl_seconds: float) -> None: ...

    def append(self, stream: str, entry: dict[str, Any]) -> None:
        """Adds to the stream "events" or "metrics"."""
        ...

    async def read(self, stream: str) -> list[dict[str, str]]:
        """All entries of a stream, in order, values as text; nothing where the store is away."""
        ...

    async def close(self) -> None:
        """Waits a moment for what is on its way, and gives the lease back."""
        ...


class MemoryStore:
    """A store that ends with the process."""

    def __init__(self) -> None:
        self.term = 0
        self.document: Document | None = None
        self.streams: dict[str, list[dict[str, Any]]] = {}

    async def acquire(self) -> int:
        self.term += 1
        return self.term

    async def renew(self) -> None:
        return

    async def raise_term(self, term: int) -> None:
        self.term = max(self.term, term)

    async def load(self) -> Document | None:
        return self.document

    def save(self, document: Document) -> None:
        self.document = document

    def heartbeat(self, node: str, ttl_seconds: float) -> None:
        return

    def append(self, stream: str, entry: dict[str, Any]) -> None:
        self.streams.setdefault(stream, []).append(entry)

    async def read(self, stream: str) -> list[dict[str, str]]:
        return [{k: str(v) for k, v in entry.items()} for entry in self.streams.get(stream, [])]

    async def close(self) -> None:
        return
