"""Things of which there are a few and for which tasks queue: cores, workers, a network's direction. And a clock."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

Then = Callable[[], None]


class Clock:
    """Virtual time. What is due at one moment happens in the order in which it was asked for."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Then]] = []
        self._asked = 0

    def after(self, seconds: float, then: Then) -> None:
        self._asked += 1
        heapq.heappush(self._due, (self.now + seconds, self._asked, then))

    def run(self) -> None:
        """Until nothing is due."""
        while self._due:
            self.now, _, then = heapq.heappop(self._due)
            then()


@dataclass(slots=True, kw_only=True)
class Pool:
    """The lowest rank first, then first come, first served. Whoever is given one gives it back with ``release``."""

    clock: Clock
    size: int
    busy: int = 0
    _waiting: list[tuple[int, int, Then]] = field(default_factory=list)  # a heap
    _came: int = 0
    _busy_seconds: float = 0.0
    _waiting_seconds: float = 0.0
    _looked: float = 0.0

    def take(self, rank: int, then: Then) -> None:
        """Calls ``then`` as soon as one is free."""
        self._look()
        if self.busy < self.size:
            self.busy += 1
            then()
        else:
            self._came += 1
            heapq.heappush(self._waiting, (rank, self._came, then))

    def release(self) -> None:
        self._look()
        self.busy -= 1
        self._serve()

    def resize(self, size: int) -> None:
        """Those that are busy finish first."""
        self._look()
        self.size = size
        self._serve()

    def for_seconds(self, rank: int, seconds: float, then: Then) -> None:
        """Takes one, holds it so long, releases it, and calls ``then``."""

        def ended() -> None:
            self.release()
            then()

        self.take(rank, lambda: self.clock.after(seconds, ended))

    def used(self) -> tuple[float, float]:
        """Seconds that were spent busy and waiting until now, of all of them together."""
        self._look()
        return self._busy_seconds, self._waiting_seconds

    def _serve(self) -> None:
        while self._waiting and self.busy < self.size:
            self.busy += 1
            _, _, then = heapq.heappop(self._waiting)
            then()

    def _look(self) -> None:
        passed = self.clock.now - self._looked
        self._busy_seconds += passed * self.busy
        self._waiting_seconds += passed * len(self._waiting)
        self._looked = self.clock.now
