"""The schedule as data: what every stage runs in a step, and one order of it all for nodes that host several stages.

With four stages and four microbatches (F forward, B backward, a backward twice as long as a forward):

    stage 0   F0 F1 F2 F3 .  .  .  .  .  B0 B0 B1 B1 ...
    stage 1      F0 F1 F2 .  .  .  B0 B0 F3 B1 B1 ...
    stage 2         F0 F1 .  B0 B0 F2 B1 B1 F3 ...
    stage 3            F0 B0 B0 F1 B1 B1 F2 ...
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush
from typing import Literal, NamedTuple

Pass = Literal["F", "B", "W"]

FORWARD_COST = 1.0
BACKWARD_COST = 2.0
SPLIT_COST = 1.0  # of either half of a backward


class Instruction(NamedTuple):
    """One unit of work: a stage's forward or backward of one microbatch. Prints and parses as ``2B3``.

    Where the schedule splits backwards, B is the gradient of the input and W, later, that of the parameters.
    """

    stage: int
    op: Pass
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.op}{self.microbatch}"

    @staticmethod
    def parse(text: str) -> "Instruction":
        """``2B3`` is stage 2's backward of microbatch 3. ValueError says what is wrong."""
        match = re.fullmatch(r"(\d+)([FBW])(\d+)", text.strip())
        if match is None:
            raise ValueError(f"{text!r} is no instruction: write stage, F, B or W, microbatch, such as 2B3")
        op: Pass = "F" if match[2] == "F" else "B" if match[2] == "B" else "W"
        return Instruction(int(match[1]), op, int(match[3]))


@dataclass(frozen=True, slots=True)
class Slot:
    """When an instruction runs in the timetable, in units of one forward."""

    instruction: Instruction
    worker: int
    start: float
    end: float


@lru_cache(maxsize=1024)
def one_f_one_b(stage: int, stages: int, microbatches: int, lead: int = 1) -> tuple[Instruction, ...]:
    """The 1F1B order of one stage: warmup forwards, then one forward one backward, then cooldown backwards.

    ``lead``: by how many microbatches a stage's forwards are ahead of the next one's. With 1, the least memory, every
    microbatch waits for its tensors to travel to the next stage and back; with 2 the next one is there meanwhile. The
    order among forwards, and among backwards, is the same with any: so are the bits.
    """
    warmup = min(lead * (stages - stage - 1), microbatches)
    order = [Instruction(stage, "F", m) for m in range(warmup)]
    for m in range(microbatches - warmup):
        order.append(Instruction(stage, "F", warmup + m))
        order.append(Instruction(stage, "B", m))
    order.extend(Instruction(stage, "B", m) for m in range(microbatches - warmup, microbatches))
    return tuple(order)


@lru_cache(maxsize=1024)
def zero_bubble(stage: int, stages: int, microbatches: int, lead: int = 1) -> tuple[Instruction, ...]:
    """The ZB-H1 order of one stage: 1F1B whose gradients of parameters wait for the bubbles of the cooldown.

    It is what every stage, on a worker of its own, does if it takes a backward first, then a forward as 1F1B allows it,
    then a gradient of parameters; and these as well once as many wait as the first stage's graphs are under 1F1B: no
    stage keeps more. Backwards of the first stage, for which nobody waits, are whole. After Qi et al., Zero Bubble
    Pipeline Parallelism (ICLR 2024).
    """
    return _zero_bubble(stages, microbatches, lead)[stage]


@lru_cache(maxsize=1024)
def _zero_bubble(stages: int, microbatches: int, lead: int) -> tuple[tuple[Instruction, ...], ...]:
    orders: list[list[Instruction]] = [[] for _ in range(stages)]
    counts = [{"F": 0, "B": 0, "W": 0} for _ in range(stages)]
    end: dict[Instruction, float] = {}
    free = [0.0] * stages
    most = lead * (stages - 1) + 1
    while any(len(order) < (2 if s == 0 else 3) * microbatches for s, order in enumerate(orders)):
        best: tuple[float, int, int, Instruction] | None = None
        for s, count in enumerate(counts):
            for rank, op in enumerate(_choices(s, stages, microbatches, lead, count, most)):
                instruction = Instruction(s, op, count[op])
                needs = inputs_of(instruction, stages)
                if any(n not in end for n in needs):
                    continue
                start = max([free[s], *(end[n] for n in needs)])
                if best is None or (start, rank, -s) < best[:3]:
                    best = (start, rank, -s, instruction)
        assert best is not None, "some stage can go on"
        start, _, _, chosen = best
        s = chosen.stage
        cost = FORWARD_COST if chosen.op == "F" else SPLIT_COST if s > 0 else BACKWARD_COST
        end[chosen] = free[s] = start + cost
        counts[s][chosen.op] += 1
        orders[s].append(chosen)
    return tuple(map(tuple, orders))


def _choices(s: int, stages: int, microbatches: int, lead: int, count: dict[str, int], most: int) -> list[Pass]:
    """What a stage may do next, by preference, its inputs apart."""
    backward: list[Pass] = ["B"] if count["B"] < count["F"] else []
    may = count["F"] < microbatches and count["F"] - count["B"] <= min(lead * (stages - s - 1), microbatches)
    if s == 0:
        return ["F", *backward] if may else backward
    forward: list[Pass] = ["F"] if may and count["F"] - count["W"] < most else []
    weights: list[Pass] = ["W"] if count["W"] < count["B"] else []
    return [*backward, *forward, *weights]


@dataclass(frozen=True, slots=True)
class Schedule:
    """How the stages of a step are ordered: 1F1B, or ZB-H1."""

    microbatches: int
    lead: int = 1
    splits: bool = False  # backwards: zero bubble

    def order(self, stage: int, stages: int) -> tuple[Instruction, ...]:
        """What the stage runs in a step, in order."""
        return (zero_bubble if self.splits else one_f_one_b)(stage, stages, self.microbatches, self.lead)

    def splits_at(self, stage: int) -> bool:
        """Whether the stage's backwards are in two halves."""
        return self.splits and stage > 0

    def closes(self, stage: int) -> Pass:
        """The operation after which a microbatch is done at the stage."""
        return "W" if self.splits_at(stage) else "B"

    def cost(self, instruction: Instruction) -> float:
        """In units of one forward."""
        if instruction.op == "F":
            return FORWARD_COST
        return SPLIT_COST if self.splits_at(instruction.stage) else BACKWARD_COST


def awaited(instruction: Instruction, stages: int) -> Instruction | None:
    """The neighbour's instruction whose result this one needs, if any."""
    s, op, m = instruction
    if op == "F":
        return Instruction(s - 1, "F", m) if s > 0 else None
    return Instruction(s + 1, "B", m) if op == "B" and s < stages - 1 else None


def inputs_of(instruction: Instruction, stages: int) -> tuple[Instruction, ...]:
    """The instructions whose results this one needs: its own stage's, earlier in its order, and another's."""
    s, op, m = instruction
    own = {"F": (), "B": (Instruction(s, "F", m),), "W": (Instruction(s, "B", m),)}[op]
    other = awaited(instruction, stages)
    return own if other is None else (*own, other)


@lru_cache(maxsize=1024)
def _awaited(stage: int, stages: int, schedule: Schedule) -> tuple[Instruction | None, ...]:
    return tuple(awaited(instruction, stages) for instruction in schedule.order(stage, stages))


def timetable(worker_of: Sequence[int], schedule: Schedule) -> tuple[Slot, ...]:
    """When everything runs if every worker runs one thing at a time and starts it as soon as it can.

    ``worker_of[stage]`` is the worker that hosts the stage. Each stage keeps its order; a worker with several stages
    takes the head that can start first, of equals the one furthest down the pipeline (backwards free memory).
    The slots come in order of start, so that the order restricted to any subset of unfinished work never deadlocks.
    """
    stages = len(worker_of)
    orders = [schedule.order(s, stages) for s in range(stages)]
    needs = [_awaited(s, stages, schedule) for s in range(stages)]
    position = [0] * stages
    free = [0.0] * (max(worker_of) + 1)
    end: dict[Instruction, float] = {}
    slots: list[Slot] = []
    # Heads whose inputs are there, by the earliest moment known: it may have become later, never earlier.
    ready = [(0.0, 0, 0)]
    while ready:
        known, _, s = heappop(ready)
        worker, head = worker_of[s], orders[s][position[s]]
        start = max(known, free[worker])
        if start > known:
            heappush(ready, (start, -s, s))
            continue
        end[head] = free[worker] = start + schedule.cost(head)
        position[s] += 1
        slots.append(Slot(head, worker, start, end[head]))
        near = s + 1 if head.op == "F" else s - 1
        for other in (s, near) if 0 <= near < stages else (s,):
            if position[other] == len(orders[other]):
                continue
            needed = needs[other][position[other]]
            if needed == head or (other == s and (needed is None or needed in end)):
                there = end[needed] if needed is not None else 0.0
                heappush(ready, (max(there, free[worker_of[other]]), -other, other))
    return tuple(slots)


@lru_cache(maxsize=1024)
def _order(worker_of: tuple[int, ...], schedule: Schedule) -> tuple[Instruction, ...]:
    return tuple(slot.instruction for slot in timetable(worker_of, schedule))


def programs(owners: Sequence[str], schedule: Schedule) -> dict[str, tuple[Instruction, ...]]:
    """What every node runs in one step, in order, when ``owners[stage]`` hosts each stage.

    Every node derives it from the plan alone, so all agree on one order of the whole step; leaving out what is done
    keeps it free of deadlock.
    """
    index = {name: i for i, name in enumerate(dict.fromkeys(owners))}
    found: dict[str, list[Instruction]] = {name: [] for name in index}
    for instruction in _order(tuple(index[name] for name in owners), schedule):
        found[owners[instruction.stage]].append(instruction)
    return {name: tuple(mine) for name, mine in found.items()}


def program(owners: Sequence[str], node: str, schedule: Schedule) -> tuple[Instruction, ...]:
    """What one node runs: nothing if it hosts no stage."""
    return programs(owners, schedule).get(node, ())


def bubble_fraction(slots: Sequence[Slot]) -> float:
    """The share of the workers' time, up to the end of the step, in which they have nothing to run."""
    makespan = max(slot.end for slot in slots)
    workers = {slot.worker for slot in slots}
    return 1.0 - sum(slot.end - slot.start for slot in slots) / (makespan * len(workers))


def chart(slots: Sequence[Slot]) -> str:
    """The timetable as text, a row a worker, a column a unit of time."""
    rows: dict[int, dict[int, str]] = {}
    for slot in slots:
        row = rows.setdefault(slot.worker, {})
        for t in range(round(slot.start), round(slot.end)):
            row[t] = str(slot.instruction)
    width = max(len(str(slot.instruction)) for slot in slots)
    makespan = round(max(slot.end for slot in slots))
    return "\n".join(
        f"{worker:>3} | " + " ".join(row.get(t, ".").ljust(width) for t in range(makespan)).rstrip()
        for worker, row in sorted(rows.items())
    )
