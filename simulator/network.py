"""Virtual time and ordered channels: messages of one channel keep their order, of different channels they need not."""

import heapq
import random
from collections.abc import Callable

# Two actions of one moment happen in the order in which they were planned. So a history depends on its seed alone.
#
# A channel delays each message by a random time, and lets it arrive a microsecond after the one before at the earliest:
# its messages never overtake one another. Only ``cut`` loses messages, as a stream does that breaks: what has not
# arrived by then never does.


class Clock:
    """A heap of things to come. Nothing happens by itself: ``step`` runs the next one."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    @property
    def next_at(self) -> float:
        """When the next thing comes; infinity if nothing does."""
        return self._heap[0][0] if self._heap else float("inf")

    def after(self, delay: float, action: Callable[[], None]) -> None:
        self.at(self.now + delay, action)

    def at(self, time: float, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._heap, (time, self._count, action))

    def step(self) -> bool:
        """Runs the next action; False if there is none."""
        if not self._heap:
            return False
        self.now, _, action = heapq.heappop(self._heap)
        action()
        return True


class Channel:
    """One direction of a stream. Whoever cuts it tells its ends, after a moment."""

    def __init__(self, clock: Clock, random: random.Random, slow: float) -> None:
        self._clock = clock
        self._random = random
        self._slow = slow
        self._last = 0.0
        self._open = True

    def send(self, action: Callable[[], None], seconds: float = 0.0) -> None:
        """``action`` runs on arrival, after those sent before it, unless the channel is cut first.

        ``seconds``: how long it takes beyond the usual, for its size.
        """
        if not self._open:
            return
        delay = self._random.expovariate(1 / self._slow) + 1e-4 + seconds
        self._last = max(self._last + 1e-6, self._clock.now + delay)
        self._clock.at(self._last, lambda: action() if self._open else None)

    def cut(self, keep: float = 0.0) -> None:
        """Closes the channel; what would arrive within ``keep`` seconds still does."""
        if keep:
            self._clock.after(keep, self.cut)
        else:
            self._open = False
