"""How long a node's pieces of work take, by its own history: what is stuck, and what is slow, is told by it."""

import statistics
from collections import deque
from dataclasses import dataclass, field

from culm.stage_server.watching.kinds import Kind

BASELINE = 32  # pieces of work of a kind that say what is usual
RECENT = 16  # that say what it is like now
DEVIATIONS = 10.0  # from the usual before a node counts as slower, or faster, than it was
NOTICEABLE = 1.5  # and so many times


@dataclass(frozen=True, slots=True)
class Usual:
    """Median and median absolute deviation, in seconds, of so many pieces of work."""

    median: float = 0.0
    deviation: float = 0.0
    samples: int = 0


@dataclass
class _Past:
    """Of one kind."""

    first: list[float] = field(default_factory=list)
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    _usual: Usual = Usual()  # of the first ones, as of when somebody asked last

    def usual(self) -> Usual:
        """Worked out when somebody asks, on any thread: the one that works only adds to ``first``."""
        first = list(self.first)
        if len(first) != self._usual.samples:
            median = statistics.median(first)
            self._usual = Usual(median, statistics.median(abs(x - median) for x in first), len(first))
        return self._usual


class Durations:
    """One thread begins and ends work; any thread may ask. Times are seconds of one clock."""

    def __init__(self) -> None:
        self._kinds: dict[Kind, _Past] = {}
        self._running: tuple[Kind, float] | None = None  # since when; replaced whole: who asks needs no lock
        self._factor = 1.0  # how many times slower than at first, as of the last time that the stages changed

    def begin(self, kind: Kind, now: float) -> None:
        self._running = kind, now

    def leave_out(self, seconds: float) -> None:
        """So much of the present work's time went elsewhere: it says nothing about the work."""
        if self._running is not None:
            kind, began = self._running
            self._running = kind, began + seconds

    def end(self, now: float) -> None:
        if self._running is None:
            return
        (kind, began), self._running = self._running, None
        if not kind.is_regular:
            return
        known = self._kinds.get(kind)
        if known is None:
            known = self._kinds[kind] = _Past()
        seconds = now - began
        if len(known.first) < BASELINE:
            known.first.append(seconds)
        known.recent.append(seconds)

    def running(self, now: float) -> tuple[float, Usual]:
        """For how long the present work has been running, and what is usual; zeros between two."""
        running = self._running
        if running is None:
            return 0.0, Usual()
        known = self._kinds.get(running[0])
        # Who asks may have read the clock just before the work began.
        return max(0.0, now - running[1]), known.usual() if known is not None else Usual()

    def slowness(self) -> float:
        """How many times slower the node has become since it started; 1.0 as long as that is not beyond doubt."""
        measures = [past for kind, past in list(self._kinds.items()) if kind.is_measure]
        kinds = [past for past in measures if len(past.first) == BASELINE and len(past.recent) == RECENT]
        if not kinds:
            return self._factor
        now = sum(statistics.median(list(k.recent)) for k in kinds)
        usual = [k.usual() for k in kinds]
        before = sum(x.median for x in usual)
        doubt = DEVIATIONS * sum(x.deviation for x in usual)
        ratio = now / before if before else 1.0
        changed = abs(now - before) > doubt and not 1 / NOTICEABLE < ratio < NOTICEABLE
        return self._factor * ratio if changed else self._factor

    def forget(self) -> None:
        """The stages are others from now on: what was usual for them says nothing more, but how slow it was does."""
        self._factor = self.slowness()
        self._kinds = {}
