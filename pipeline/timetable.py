"""A step as it was: what each node's compute thread did or waited for, and when. Pure."""

# A node tells its spans by its own clock (``culm.stage_server.watching.spans``). All of a step's nodes together are its
# timetable, a row a node:
#
#     n0   F0 F1 F2 F3 .  .  .  B0 B0 ... B3 B3 reduce  commit  apply
#     n1   .  F0 F1 F2 .  B0 B0 ...
#
# A node's part of step t goes from the end of its Apply of step t - 1 to the end of that of step t. So what it loads
# for the next step while it waits for a commit is in the part of the step before: that is where the time went.
#
# Times of two machines differ by what their clocks do. ``Timetable.least_skew`` says by how much at least.

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from itertools import chain, pairwise

from culm.pipeline.flow import maker_of
from culm.pipeline.instruction import Duty, Instruction
from culm.pipeline.keys import ACCUMULATED, PARTIAL, REDUCED, Key
from culm.pipeline.schedule import Schedule


class Doing(StrEnum):
    """What a compute thread does, or waits for: as ``Doing`` in stage.proto has it."""

    FORWARD = "forward"
    BACKWARD = "backward"
    WEIGHTS = "weights"
    REDUNDANT = "redundant"
    LOAD = "load"
    REDUCE = "reduce"
    SUM = "sum"
    APPLY = "apply"
    ARRANGE = "arrange"
    INSTALL = "install"
    SAVE = "save"
    RESUME = "resume"
    BUBBLE = "bubble"
    COMMIT = "commit"
    IDLE = "idle"
    CHECK = "check"


WAITS = (Doing.BUBBLE, Doing.COMMIT, Doing.IDLE)
STEP_WORK = (Doing.FORWARD, Doing.BACKWARD, Doing.WEIGHTS)  # what an ideal step consists of
BETWEEN = "between"  # the share of what lies between two spans: the node chooses, hands on, takes its lock
STATE = "state"
# What is shown as one. All else is shown by its own name.
_GROUPS = {
    **dict.fromkeys((Doing.ARRANGE, Doing.INSTALL, Doing.SAVE, Doing.RESUME), STATE),
    Doing.CHECK: Doing.REDUNDANT.value,
}
# Every use of time that is shown, in the order of legends.
USES: tuple[str, ...] = (*dict.fromkeys(_GROUPS.get(doing, doing.value) for doing in Doing), BETWEEN)
MEANING: Mapping[str, str] = {
    "forward": "forward",
    "backward": "backward",
    "weights": "W (second half of a backward)",
    "redundant": "redundant (ahead for another node, audits, checks)",
    "load": "load (samples)",
    "reduce": "reduce",
    "sum": "sum",
    "apply": "apply",
    "state": "state (arranged, installed, saved)",
    "bubble": "bubble (waiting for a tensor)",
    "commit": "commit (waiting for it)",
    "idle": "idle (waiting for anything else)",
    "between": "between two pieces of work",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedSpan:
    """Times are unix seconds by the node's clock. ``schedule.Span`` is of a schedule, in units of a forward."""

    doing: Doing
    begin: float
    end: float
    # Of FORWARD, BACKWARD, WEIGHTS and REDUNDANT: what ran. Of LOAD: the forward that takes the samples.
    instruction: Instruction | None = None
    awaited: Key | None = None  # of BUBBLE
    stage: int = 0  # of REDUCE and SUM
    index: int = 0  # of SUM the bucket, of INSTALL and CHECK the layer

    @property
    def seconds(self) -> float:
        return self.end - self.begin

    @property
    def use(self) -> str:
        """One of USES."""
        return _GROUPS.get(self.doing, self.doing.value)

    @property
    def is_work(self) -> bool:
        return self.doing not in WAITS

    @property
    def name(self) -> str:
        """In short: ``p1/2B3``, ``load 0F3``, ``waits for 1F2``."""
        match self.doing:
            case Doing.LOAD:
                return f"load {self.instruction}"
            case Doing.REDUCE:
                return f"reduce {self.stage}"
            case Doing.SUM:
                return f"sum {self.stage}, bucket {self.index}"
            case Doing.INSTALL | Doing.CHECK:
                return f"{self.doing} layer {self.index}"
            case Doing.BUBBLE:
                return f"waits for {tensor_name(self.awaited)}" if self.awaited is not None else "waits for a tensor"
            case Doing.COMMIT:
                return "waits for the commit"
            case _:
                return str(self.instruction) if self.instruction is not None else self.doing.value


def tensor_name(key: Key) -> str:
    """In short, within a step: what gives it."""
    if key.kind is REDUCED:
        return f"the gradient of stage {key.stage}, bucket {key.index}"
    if key.kind is PARTIAL:
        return f"the gradient of stage {key.stage}, bucket {key.index}, of pipelines {key.block}"
    if key.kind is ACCUMULATED:
        return f"gradients of {key.duty} after {key.index} microbatches"
    return str(maker_of(key))


@dataclass(frozen=True, slots=True)
class Arrival:
    """A whole tensor was there, at this unix time."""

    key: Key
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One node's part of a step. ``spans`` and ``arrivals`` are in order of time; no two spans overlap."""

    node: str
    spans: tuple[TimedSpan, ...]
    arrivals: tuple[Arrival, ...] = ()
    ready: tuple[tuple[int, float], ...] = ()  # a stage, and when its whole gradient was reported
    committed: float | None = None  # when the node heard of the commit

    def end_of(self, instruction: Instruction) -> float | None:
        """When its own run of it was over; None: it did not run it."""
        return next((s.end for s in self.spans if s.instruction == instruction and s.doing in STEP_WORK), None)

    @property
    def stages(self) -> tuple[int, ...]:
        """That it ran."""
        ran = {s.instruction.stage for s in self.spans if s.doing in STEP_WORK and s.instruction is not None}
        return tuple(sorted(ran))


@dataclass(frozen=True, kw_only=True)
class Timetable:
    """All nodes' parts of one step. ``silent``: why a node is not among them, in words."""

    step: int
    schedule: Schedule
    lanes: tuple[Lane, ...]
    silent: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def begin(self) -> float:
        """When the step's first forward began; unix seconds, as all times here."""
        ran = [s.begin for s in self.spans() if s.doing in STEP_WORK]
        return min(ran or [s.begin for s in self.spans()], default=0.0)

    @cached_property
    def end(self) -> float:
        """When the last node had applied the step."""
        applied = [s.end for s in self.spans() if s.doing is Doing.APPLY]
        return max(applied or [s.end for s in self.spans()], default=self.begin)

    @property
    def seconds(self) -> float:
        return self.end - self.begin

    @property
    def committed(self) -> float | None:
        """When the first node heard of the commit."""
        return min((lane.committed for lane in self.lanes if lane.committed is not None), default=None)

    @property
    def is_empty(self) -> bool:
        return not any(lane.spans for lane in self.lanes)

    def spans(self) -> Iterator[TimedSpan]:
        return chain.from_iterable(lane.spans for lane in self.lanes)

    def inside(self, lane: Lane) -> Iterator[tuple[TimedSpan, float, float]]:
        """The node's spans with the part of each that lies within the step."""
        for span in lane.spans:
            begin, end = max(span.begin, self.begin), min(span.end, self.end)
            if end > begin:
                yield span, begin, end

    def shares(self, lane: Lane) -> dict[str, float]:
        """Seconds of the step by use, BETWEEN among them; together all of it."""
        spent = dict.fromkeys(USES, 0.0)
        for span, begin, end in self.inside(lane):
            spent[span.use] += end - begin
        spent[BETWEEN] = max(0.0, self.seconds - sum(spent.values()))
        return spent

    def owners(self) -> dict[Duty, str]:
        """Who ran each duty; of several nodes, the one that ran most of it."""
        counts: dict[Duty, dict[str, int]] = {}
        for lane in self.lanes:
            for span in lane.spans:
                if span.doing in STEP_WORK and span.instruction is not None:
                    of_duty = counts.setdefault(span.instruction.duty, {})
                    of_duty[lane.node] = of_duty.get(lane.node, 0) + 1
        return {duty: max(nodes, key=lambda node: nodes[node]) for duty, nodes in sorted(counts.items())}

    def mean_seconds(self) -> dict[tuple[int, str], tuple[float, int]]:
        """By stage and operation (F, B, W, E): the mean of a microbatch, and of how many."""
        found: dict[tuple[int, str], list[float]] = {}
        for span in self.spans():
            if span.doing in STEP_WORK and span.instruction is not None:
                found.setdefault((span.instruction.stage, span.instruction.op), []).append(span.seconds)
        return {which: (sum(each) / len(each), len(each)) for which, each in sorted(found.items())}

    def least_skew(self) -> float:
        """By how many seconds two nodes' clocks differ at least: a tensor was there before it was made."""
        made = {(lane.node, s.instruction): s.end for lane in self.lanes for s in lane.spans if s.doing in STEP_WORK}
        ends: dict[Instruction, float] = {}
        for (_, instruction), end in made.items():
            if instruction is not None:
                ends[instruction] = min(end, ends.get(instruction, end))
        early = [
            ends[maker_of(arrival.key)] - arrival.at
            for lane in self.lanes
            for arrival in lane.arrivals
            if arrival.key.kind not in (REDUCED, PARTIAL, ACCUMULATED) and maker_of(arrival.key) in ends
        ]
        return max([0.0, *early])


def are_apart(spans: Sequence[TimedSpan]) -> bool:
    """Whether each span begins where the one before has ended, or later."""
    return all(a.end <= b.begin for a, b in pairwise(spans))
