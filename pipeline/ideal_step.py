"""The ideal of a measured step: the same work, every result at its taker at once, and the commit takes no time."""

# Every node does what ``choice`` says, as a real one does. Each forward or backward takes the mean of what it took on
# that node in that step. Tensors take no time to travel, and nothing else is done. So what a step took beyond its ideal
# went into sending, waiting for a processor, adding up gradients, the commit, and unevenness between microbatches.
#
# That is the best that this order of work allows, and no bound for other orders. The bound for any order is what the
# busiest node has to do.

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush

from culm.pipeline.choice import Left, choose
from culm.pipeline.flow import awaited
from culm.pipeline.instruction import Duty, Instruction, Pass
from culm.pipeline.schedule import Schedule
from culm.pipeline.timetable import STEP_WORK, Timetable
from culm.pipeline.turns import turns_of


@dataclass(frozen=True, slots=True)
class IdealSpan:
    """Seconds from the step's begin."""

    instruction: Instruction
    begin: float
    end: float


@dataclass(frozen=True, kw_only=True)
class IdealStep:
    """By node, in order of time."""

    spans: Mapping[str, tuple[IdealSpan, ...]]

    @property
    def seconds(self) -> float:
        return max((span.end for spans in self.spans.values() for span in spans), default=0.0)

    @property
    def busiest_seconds(self) -> float:
        """What the busiest node has to do: no order of work takes less."""
        return max(map(self.busy, self.spans), default=0.0)

    def busy(self, node: str) -> float:
        return sum(span.end - span.begin for span in self.spans.get(node, ()))

    def bubble(self, node: str) -> float:
        """Seconds in which the node has nothing to do, even ideally."""
        return self.seconds - self.busy(node)


Costs = Mapping[tuple[str, int, Pass], float]  # by node, stage and operation: seconds


class _Left:
    """What is left of one duty."""

    def __init__(self, duty: Duty, turn: int, counts: Mapping[Pass, int]) -> None:
        self.duty = duty
        self.turn = turn
        self.counts = counts
        self.done: dict[Pass, int] = {"F": 0, "B": 0, "W": 0, "E": 0}

    def head(self, op: Pass) -> Instruction | None:
        number = self.done[op]
        below: dict[Pass, Pass] = {"B": "F", "W": "B"}
        reach = self.done[below[op]] if op in below else self.counts[op]
        return Instruction(self.duty, op, number) if number < min(reach, self.counts[op]) else None

    def left(self, schedule: Schedule) -> Left:
        heads = {op: self.head(op) for op in self.done}
        splits = schedule.splits_at(self.duty.stage)
        return Left(
            duty=self.duty,
            turn=self.turn,
            forward=heads["F"],
            backward=heads["B"],
            weights=heads["W"] if splits else None,
            graphs=self.done["F"] - self.done["B"],
            evaluation=heads["E"],
            halves=self.done["F"] - self.done["W"] if splits else 0,
        )


def ideal_of(timetable: Timetable) -> IdealStep | None:
    """None where not every instruction ran once, all of a duty on one node: one is silent, or was lost in the step."""
    owners = timetable.owners()
    stages = 1 + max((duty.stage for duty in owners), default=-1)
    pipelines = 1 + max((duty.pipeline for duty in owners), default=-1)
    if not owners or len(owners) != stages * pipelines:
        return None
    evaluated = _evaluated(timetable)
    trains = any(op != "E" for _, op in timetable.mean_seconds())
    grid = [[owners[Duty(p, s)] for p in range(pipelines)] for s in range(stages)]
    try:
        ideal = ideal_step(grid, timetable.schedule, _costs(timetable), evaluated, trains)
    except LookupError:  # the node that ran most of a duty ran none of its backwards
        return None
    planned = Counter((node, span.instruction) for node, spans in ideal.spans.items() for span in spans)
    ran = Counter((x.node, s.instruction) for x in timetable.lanes for s in x.spans if s.doing in STEP_WORK)
    return ideal if ran == planned else None


def ideal_step(
    owners: Sequence[Sequence[str]], schedule: Schedule, costs: Costs, evaluated: int = 0, trains: bool = True
) -> IdealStep:
    """``owners``: of each stage, by pipeline; ``evaluated``: microbatches of each pipeline that go forward alone.

    Raises LookupError where a cost is missing.
    """
    stages, turns = len(owners), turns_of(owners)
    count = schedule.microbatches if trains else 0
    mine: dict[str, list[_Left]] = {}
    for s, stage in enumerate(owners):
        counts: dict[Pass, int] = {"F": count, "B": count, "W": count if schedule.splits_at(s) else 0, "E": evaluated}
        for p, node in enumerate(stage):
            mine.setdefault(node, []).append(_Left(Duty(p, s), turns[p], counts))
    for duties in mine.values():  # as a node has them
        duties.sort(key=lambda each: (each.turn, each.duty.pipeline, each.duty.stage))
    made: dict[Instruction, float] = {}
    found: dict[str, list[IdealSpan]] = {node: [] for node in mine}
    # Moments at which a node may go on: it has done something, or somebody else has. At each one all free nodes look.
    moments, free = [0.0], dict.fromkeys(mine, 0.0)

    def missing(now: float, instruction: Instruction) -> Instruction | None:
        needed = awaited(instruction, stages)
        return needed if needed is not None and made.get(needed, now + 1.0) > now else None

    while moments:
        now = heappop(moments)
        while moments and moments[0] == now:
            heappop(moments)
        for node, duties in mine.items():
            if free[node] > now:
                continue
            chosen = choose([each.left(schedule) for each in duties], schedule, stages, partial(missing, now))
            if chosen is None:
                continue
            end = now + costs[node, chosen.stage, chosen.op]
            found[node].append(IdealSpan(chosen, now, end))
            next(each for each in duties if each.duty == chosen.duty).done[chosen.op] += 1
            made[chosen] = free[node] = end
            heappush(moments, end)
    return IdealStep(spans={node: tuple(spans) for node, spans in found.items()})


def _costs(timetable: Timetable) -> Costs:
    found: dict[tuple[str, int, Pass], list[float]] = {}
    for lane in timetable.lanes:
        for span in lane.spans:
            if span.doing in STEP_WORK and span.instruction is not None:
                found.setdefault((lane.node, span.instruction.stage, span.instruction.op), []).append(span.seconds)
    return {which: sum(each) / len(each) for which, each in found.items()}


def _evaluated(timetable: Timetable) -> int:
    """Microbatches of a pipeline that were evaluated in the step."""
    indices = (s.instruction.microbatch for s in timetable.spans() if s.instruction and s.instruction.op == "E")
    return 1 + max(indices, default=-1)
