"""What the compute thread does, what it waits for and how long things took: told to others, and used to fill waits."""

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from culm.pipeline.keys import Key
from culm.pipeline.tensors.values import Value
from culm.protos import coordinator_pb2 as pb
from culm.stage_server.compute.keeping import Limit
from culm.stage_server.watching import spans
from culm.stage_server.watching.durations import Durations
from culm.stage_server.watching.kinds import kind_of
from culm.stage_server.watching.slack import CHECKS, COMMIT, LOADS, Awaited, Slack
from culm.stage_server.watching.spans import Kept, Spans
from culm.stage_server.watching.time_split import Times, redundant_share
from culm.stage_server.worker.work import Audit, Check, Load, Run, Work


class Activity:
    """The compute thread begins and ends; others tell what has arrived, and ask. One lock guards it, its node's."""

    def __init__(self, redundant_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        """``redundant_bytes``: how much memory a step's redundant forwards may take. ``clock``: seconds."""
        self._running: Work[Value] | Load | None = None
        self.finished = 0  # instructions
        self.times = Times(clock())
        self._clock = clock
        self._durations = Durations()
        self._slack = Slack()
        self._spans = Spans()
        self._limit = Limit(redundant_bytes)
        self._began = 0.0
        self._computed = 0.0
        self._step = 0  # of the present piece of work
        self._loading_since: float | None = None

    @property
    def present(self) -> Work[Value] | Load | None:
        """The piece of work that has begun and not ended."""
        return self._running

    @property
    def running(self) -> str:
        """From any thread: the piece of work, or nothing."""
        work = self._running
        return _words(work) if work is not None else ""

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Around whatever takes samples from the dataset. Storage may stall: that is not the instruction's time."""
        self._loading_since = began = self._clock()
        try:
            yield
        finally:
            self._durations.leave_out(self._clock() - began)
            self._loading_since = None

    def begin(self, work: Work[Value] | Load, owned: Collection[range], step: int) -> None:
        """``owned``: the layers of each stage that the node owns; ``step``: the one that runs."""
        self._began, self._step = self._clock(), step
        self._spans.goes_on(self._began)
        kind = kind_of(work)
        self.times.turn(kind.phase, self._began, redundant_share(work, owned) if kind.phase == "apply" else 0.0)
        self._running = work
        self._durations.begin(kind, self._began)

    def computed(self) -> None:
        """The present piece of work is done; its result is still to be handed on."""
        self._computed = self._clock()

    def end(self, work: Work[Value] | Load, step: int, kept_bytes: int) -> bool:
        """``kept_bytes``: of a redundant forward's graph. False if the step's memory for these is used up."""
        now = self._clock()
        self._running = None
        self._durations.end(now)
        self._spans.did(self._step, spans.what_of(work), self._began, self._computed)
        if isinstance(work, Load):
            self._slack.ran(LOADS, now - self._began)
        elif isinstance(work, Check):
            self._slack.ran(CHECKS, now - self._began)
        elif isinstance(work, Run):
            self.finished += 1
            if work.instruction.op == "F":
                self._slack.ran(work.instruction.stage, now - self._began)
        return not kept_bytes or not self._limit.exceeded(step, kept_bytes)

    def waits(self, awaited: Key | None, for_commit: bool) -> None:
        """There is no own work: for want of this tensor, or as the step is done here."""
        self._slack.awaits(_awaited(awaited) if awaited is not None else COMMIT if for_commit else None, self._clock())

    def rests(self, awaited: Key | None, for_commit: bool, step: int) -> None:
        """There is no work at all; the first two as in ``waits``."""
        now = self._clock()
        self.times.turn("bubble" if awaited is not None else "idle", now)
        self._spans.waits(step, awaited or (spans.COMMIT if for_commit else spans.IDLE), now)

    def arrived(self, key: Key, running: int) -> None:
        """A tensor is here. ``running``: the step that runs."""
        now = self._clock()
        self._spans.arrived(key, now)
        if key.step == running:
            self._slack.arrived(_awaited(key), now)

    def heard_commit(self, step: int) -> None:
        now = self._clock()
        self._spans.heard_commit(step, now)
        self._slack.arrived(COMMIT, now)

    def told_ready(self, step: int, stage: int) -> None:
        """The coordinator was told that a stage's whole gradient is here."""
        self._spans.told_ready(step, stage, self._clock())

    def kept(self, running: int) -> Kept:
        """What is kept of the last steps."""
        return self._spans.copy(running, self._clock)

    def has_time_for(self, work: Work[Value] | Load) -> bool:
        """Whether this is expected to be over before the wait is."""
        return self._slack.fits(_costs_as(work), self._clock())

    def forget(self) -> None:
        """The stages are others from now on."""
        self._durations.forget()
        self._slack.forget()

    def heartbeat(self) -> pb.Heartbeat:
        """From any thread, without the lock."""
        now, since = self._clock(), self._loading_since
        running, usual = self._durations.running(now)
        return pb.Heartbeat(
            instruction=self.running,
            finished=self.finished,
            running_seconds=running if since is None else 0.0,
            loading_seconds=max(0.0, now - since) if since is not None else 0.0,
            median_seconds=usual.median,
            deviation_seconds=usual.deviation,
            samples=usual.samples,
            slowness=self._durations.slowness(),
        )


def _awaited(key: Key) -> Awaited:
    return int(key.kind), key.stage, key.index


def _costs_as(work: Work[Value] | Load) -> int:
    """As what its time is known: a stage, LOADS or CHECKS."""
    if isinstance(work, Run):
        return work.instruction.stage
    return work.duty.stage if isinstance(work, Audit) else CHECKS if isinstance(work, Check) else LOADS


def _words(work: Work[Value] | Load) -> str:
    """What heartbeats and errors call it."""
    if isinstance(work, Run):
        return str(work.instruction)
    return str(work) if isinstance(work, Load) else type(work).__name__.lower()
