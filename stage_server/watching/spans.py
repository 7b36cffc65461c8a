"""What the compute thread did and waited for in its last steps, and when: the node's part of a timetable."""

# The compute thread notes each piece of work when it ends, and each wait when it is over: a tuple into a ring. Nothing
# is formatted there. Who asks takes a copy under the node's lock, and makes sense of it without.
#
# A ring keeps the newest entries. So the oldest step in a full one may lack its beginning, and is not told. After a
# rollback steps are there twice: what is told of a step is what ran last.
#
# Nothing that is kept holds a tensor: of a piece of work its name is kept, as ``what_of`` gives it.

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple, TypeVar

from culm.pipeline.instruction import Duty, Instruction
from culm.pipeline.keys import Key
from culm.pipeline.timetable import Arrival, Doing, Lane, TimedSpan
from culm.stage_server.worker.work import Apply, Arrange, Audit, Check, Install, Load, Reduce, Resume, Run, Sum, V, Work

# Spans, and arrivals: some megabytes. A calm step of eight microbatches has about fifty of a node, so that is some
# hundreds of steps.
MOST = 20_000


class Other(NamedTuple):
    """What is no instruction of the node's own duties."""

    doing: Doing
    stage: int = 0
    index: int = 0  # type: ignore[assignment]  # tuple.index goes, as in a key
    instruction: Instruction | None = None


T = TypeVar("T")
What = Instruction | Load | Key | Other
Entry = tuple[int, What, float, float]  # the step that ran, and from when to when; seconds of the node's clock

COMMIT, IDLE, APPLY = Other(Doing.COMMIT), Other(Doing.IDLE), Other(Doing.APPLY)
ARRANGE, SAVE, RESUME = Other(Doing.ARRANGE), Other(Doing.SAVE), Other(Doing.RESUME)
_DOING = {"F": Doing.FORWARD, "E": Doing.FORWARD, "B": Doing.BACKWARD, "W": Doing.WEIGHTS}


def what_of(work: Work[V] | Load) -> What:
    """The work's name, without its tensors."""
    if isinstance(work, Run):
        return work.instruction if work.tenure >= 0 else Other(Doing.REDUNDANT, instruction=work.instruction)
    if isinstance(work, Load):
        return work
    if isinstance(work, Apply):
        return APPLY
    if isinstance(work, Reduce):
        return Other(Doing.REDUCE, work.stage)
    if isinstance(work, Sum):
        return Other(Doing.SUM, work.stage, work.bucket)
    if isinstance(work, Install):
        return Other(Doing.INSTALL, index=work.layer)
    if isinstance(work, Audit):
        return Other(Doing.REDUNDANT, instruction=Instruction(work.duty, "F", work.microbatch))
    if isinstance(work, Check):
        return Other(Doing.CHECK, index=work.layer)
    return ARRANGE if isinstance(work, Arrange) else RESUME if isinstance(work, Resume) else SAVE


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A copy of all that is kept, which does not change any more."""

    spans: Sequence[Entry]
    arrivals: Sequence[tuple[Key, float]]
    ready: Sequence[tuple[tuple[int, int], float]]
    commits: Sequence[tuple[int, float]]
    steps: range  # that are whole
    offset: float  # from the node's clock to unix seconds


class Spans:
    """Times are seconds of one clock. One lock guards it, its node's."""

    def __init__(self, most: int = MOST) -> None:
        self._spans: deque[Entry] = deque(maxlen=most)
        self._arrivals: deque[tuple[Key, float]] = deque(maxlen=most)
        self._ready: deque[tuple[tuple[int, int], float]] = deque(maxlen=most)  # a step and a stage, reported then
        self._commits: deque[tuple[int, float]] = deque(maxlen=most)
        self._wait: tuple[int, What, float] | None = None  # a wait that goes on
        # Invariant: from the last span of a step before the first one on, steps follow each other without a gap. A
        # rollback, or commits that were missed, begin anew.
        self._first = 0
        self._last = -1

    def did(self, step: int, what: What, began: float, now: float) -> None:
        """A piece of work is over."""
        if step != self._last:
            self._turn(step)
        self._spans.append((step, what, began, now))

    def _turn(self, step: int) -> None:
        """The first span of a step."""
        if step != self._last + 1:
            self._first = step
        self._last = step

    def waits(self, step: int, what: What, now: float) -> None:
        """There is nothing to do until this is there."""
        if self._wait is not None:
            if self._wait[1] == what:
                return
            self.goes_on(now)
        self._wait = step, what, now

    def goes_on(self, now: float) -> None:
        """A piece of work begins."""
        if self._wait is not None:
            (step, what, since), self._wait = self._wait, None
            self.did(step, what, since, now)

    def arrived(self, key: Key, now: float) -> None:
        """A whole tensor is here."""
        self._arrivals.append((key, now))

    def told_ready(self, step: int, stage: int, now: float) -> None:
        """The coordinator was told that the stage's whole gradient is here."""
        self._ready.append(((step, stage), now))

    def heard_commit(self, step: int, now: float) -> None:
        self._commits.append((step, now))

    def copy(self, running: int, clock: Callable[[], float], wall: Callable[[], float] = time.time) -> Kept:
        """``running``: the step that runs. The caller has the node's lock, for half a millisecond if rings are full."""
        spans, arrivals = list(self._spans), list(self._arrivals)
        first = self._first
        if len(spans) == self._spans.maxlen:
            first = max(first, spans[0][0] + 1)  # what was before the first span is gone
        end = min(self._last + 1, running)
        steps = range(min(first, end), end)
        return Kept(
            spans=spans,
            arrivals=arrivals,
            ready=list(self._ready),
            commits=list(self._commits),
            steps=steps,
            offset=wall() - clock(),
        )


def lane_of(kept: Kept, node: str, step: int) -> Lane:
    """The node's part of the step, by unix time. The step is one of ``kept.steps``."""
    entries: list[Entry] = []
    earliest = 0.0  # when the step before began: this one's tensors may come in it
    for entry in reversed(kept.spans):
        if entry[0] < step - 1 or (entries and entry[0] > step):
            break
        if entry[0] == step:
            entries.append(entry)
        if entry[0] <= step:
            earliest = entry[2]
    entries.reverse()
    offset = kept.offset
    begin = entries[0][2] if entries else 0.0
    came = {key: at for key, at in _since(kept.arrivals, earliest) if key.step == step}
    newest = max((key.era for key in came), default=0)  # of before a rollback nothing counts
    arrivals = sorted((at, key) for key, at in came.items() if key.era == newest)
    heard = [at for of, at in _since(kept.commits, begin) if of == step]
    ready = [(stage, at) for (of, stage), at in _since(kept.ready, begin) if of == step]
    ready.reverse()
    return Lane(
        node=node,
        spans=tuple(_timed(what, since + offset, until + offset) for _, what, since, until in entries),
        arrivals=tuple(Arrival(key, at + offset) for at, key in arrivals),
        ready=tuple((stage, at + offset) for stage, at in ready),
        committed=heard[0] + offset if heard else None,
    )


def _since(noted: Sequence[tuple[T, float]], begin: float) -> Iterator[tuple[T, float]]:
    """The newest first."""
    return takewhile(lambda each: each[1] >= begin, reversed(noted))


def _timed(what: What, begin: float, end: float) -> TimedSpan:
    if isinstance(what, Instruction):
        return TimedSpan(doing=_DOING[what.op], begin=begin, end=end, instruction=what)
    if isinstance(what, Load):
        forward = Instruction(Duty(what.pipeline, 0), "E" if what.evaluated else "F", what.microbatch)
        return TimedSpan(doing=Doing.LOAD, begin=begin, end=end, instruction=forward)
    if isinstance(what, Key):
        return TimedSpan(doing=Doing.BUBBLE, begin=begin, end=end, awaited=what)
    doing, stage, index, instruction = what
    return TimedSpan(doing=doing, begin=begin, end=end, stage=stage, index=index, instruction=instruction)
