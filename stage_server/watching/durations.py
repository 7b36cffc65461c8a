"""How long a node's pieces of work take, by its own history: what is stuck, and what is slow, is told by it."""

import statistics
from collections import deque
from dataclasses import dataclass, field
from functools import cache

from culm.pipeline.instruction import Pass
from culm.stage_server.worker.work import Apply, Load, Reduce, Run, Sum, V, Work

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


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """Such as the forwards of one stage. There is one object of each, which ``kind_of`` gives."""

    name: str
    # Whether it takes about as long each time, as long as the node holds the same layers: else no history is kept.
    is_regular: bool = False
    # Whether it tells how slow the node is: it is of the node's own stages, and computes the same each time.
    is_measure: bool = False


@dataclass
class _Past:
    """Of one kind."""

    first: list[float] = field(default_factory=list)
    usual: Usual = Usual()  # of these; replaced whole, so that who asks needs no lock
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))


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
            known.usual = _usual(known.first)
        known.recent.append(seconds)

    def running(self, now: float) -> tuple[float, Usual]:
        """For how long the present work has been running, and what is usual; zeros between two."""
        running = self._running
        if running is None:
            return 0.0, Usual()
        known = self._kinds.get(running[0])
        # Who asks may have read the clock just before the work began.
        return max(0.0, now - running[1]), known.usual if known is not None else Usual()

    def slowness(self) -> float:
        """How many times slower the node has become since it started; 1.0 as long as that is not beyond doubt."""
        measures = [past for kind, past in list(self._kinds.items()) if kind.is_measure]
        kinds = [past for past in measures if len(past.first) == BASELINE and len(past.recent) == RECENT]
        if not kinds:
            return self._factor
        now = sum(statistics.median(list(k.recent)) for k in kinds)
        before = sum(k.usual.median for k in kinds)
        doubt = DEVIATIONS * sum(k.usual.deviation for k in kinds)
        ratio = now / before if before else 1.0
        changed = abs(now - before) > doubt and not 1 / NOTICEABLE < ratio < NOTICEABLE
        return self._factor * ratio if changed else self._factor

    def forget(self) -> None:
        """The stages are others from now on: what was usual for them says nothing more, but how slow it was does."""
        self._factor = self.slowness()
        self._kinds = {}


def _usual(past: list[float]) -> Usual:
    median = statistics.median(past)
    return Usual(median, statistics.median(abs(x - median) for x in past), len(past))


@cache
def _of_runs(stage: int, op: Pass, ahead: bool) -> Kind:
    own = f"{stage}{op}"
    return Kind(f"{own} ahead" if ahead else own, is_regular=True, is_measure=not ahead)


@cache
def _of_others(name: str, is_regular: bool) -> Kind:
    return Kind(name, is_regular)


def kind_of(work: Work[V] | Load) -> Kind:
    """As what its time is kept."""
    if isinstance(work, Run):
        return _of_runs(work.instruction.stage, work.instruction.op, work.redundant)
    # To arrange takes no time at all, or builds layers. A layer that was seeded catches up by itself.
    is_regular = isinstance(work, Reduce | Sum) or (isinstance(work, Apply) and not work.catch_up)
    return _of_others(type(work).__name__.lower(), is_regular)
