"""How long a node's instructions usually take, by its own history: what is stuck is told by it."""

import statistics
import time
from collections import deque
from dataclasses import dataclass

HISTORY = 64  # instructions of a kind that are remembered


@dataclass(frozen=True, slots=True)
class Usual:
    """Median and median absolute deviation, in seconds, of so many instructions."""

    median: float = 0.0
    deviation: float = 0.0
    samples: int = 0


class Durations:
    """Instructions of one kind are those of one stage in one direction. One thread begins and ends them."""

    def __init__(self) -> None:
        self._history: dict[str, deque[float]] = {}
        self._kind = ""
        self._began = 0.0

    def begin(self, kind: str) -> None:
        self._kind, self._began = kind, time.monotonic()

    def end(self) -> None:
        if self._kind:
            self._history.setdefault(self._kind, deque(maxlen=HISTORY)).append(time.monotonic() - self._began)
        self._kind = ""

    def running(self) -> tuple[float, Usual]:
        """For how long the present instruction has been running, and what is usual; zeros between two."""
        kind, began = self._kind, self._began
        past = list(self._history.get(kind, ()))
        if not kind or not past:
            return 0.0, Usual()
        median = statistics.median(past)
        deviation = statistics.median(abs(x - median) for x in past)
        return time.monotonic() - began, Usual(median, deviation, len(past))
