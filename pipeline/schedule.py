"""The schedule as data: what every stage runs in a step, and one order of it all for nodes that host several stages.

With four stages and four microbatches (F forward, B backward, a backward twice as long as a forward):

    stage 0   F0 F1 F2 F3 .  .  .  .  .  B0 B0 B1 B1 ...
    stage 1      F0 F1 F2 .  .  .  B0 B0 F3 B1 B1 ...
    stage 2         F0 F1 .  B0 B0 F2 B1 B1 F3 ...
    stage 3            F0 B0 B0 F1 B1 B1 F2 ...
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

Pass = Literal["F", "B"]

FORWARD_COST = 1.0
BACKWARD_COST = 2.0


@dataclass(frozen=True, slots=True, order=True)
class Instruction:
    """One unit of work: a stage's forward or backward of one microbatch. Prints and parses as ``2B3``."""

    stage: int
    op: Pass
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.op}{self.microbatch}"

    @staticmethod
    def parse(text: str) -> "Instruction":
        """``2B3`` is stage 2's backward of microbatch 3. ValueError says what is wrong."""
        match = re.fullmatch(r"(\d+)([FB])(\d+)", text.strip())
        if match is None:
            raise ValueError(f"{text!r} is no instruction: write stage, F or B, microbatch, such as 2B3")
        op: Pass = "F" if match[2] == "F" else "B"
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


def inputs_of(instruction: Instruction, stages: int) -> tuple[Instruction, ...]:
    """The instructions whose results this one needs."""
    s, m = instruction.stage, instruction.microbatch
    if instruction.op == "F":
        return (Instruction(s - 1, "F", m),) if s > 0 else ()
    own = Instruction(s, "F", m)
    return (own, Instruction(s + 1, "B", m)) if s < stages - 1 else (own,)


def timetable(
    worker_of: Sequence[int],
    microbatches: int,
    costs: Mapping[str, float] | None = None,
    lead: int = 1,
) -> tuple[Slot, ...]:
    """When everything runs if every worker runs one thing at a time and starts it as soon as it can.

    ``worker_of[stage]`` is the worker that hosts the stage. Each stage keeps its 1F1B order; a worker with several
    stages takes the head that can start first, of equals the one furthest down the pipeline (backwards free memory).
    The slots come in order of start, so that the order restricted to any subset of unfinished work never deadlocks.
    """
    costs = costs or {"F": FORWARD_COST, "B": BACKWARD_COST}
    stages = len(worker_of)
    heads = [list(one_f_one_b(s, stages, microbatches, lead)) for s in range(stages)]
    position = [0] * stages
    free = dict.fromkeys(worker_of, 0.0)
    end: dict[Instruction, float] = {}
    slots: list[Slot] = []
    for _ in range(2 * stages * microbatches):
        best: tuple[float, int, Instruction] | None = None
        for s in range(stages):
            if position[s] == len(heads[s]):
                continue
            head = heads[s][position[s]]
            needs = inputs_of(head, stages)
            if any(n not in end for n in needs):
                continue
            start = max([free[worker_of[s]], *(end[n] for n in needs)])
            if best is None or (start, -s) < (best[0], best[1]):
                best = (start, -s, head)
        assert best is not None, "1F1B over any placement has a head that can run"
        start, _, head = best
        end[head] = free[worker_of[head.stage]] = start + costs[head.op]
        position[head.stage] += 1
        slots.append(Slot(head, worker_of[head.stage], start, end[head]))
    return tuple(slots)


@lru_cache(maxsize=1024)
def _order(worker_of: tuple[int, ...], microbatches: int, lead: int) -> tuple[Instruction, ...]:
    return tuple(slot.instruction for slot in timetable(worker_of, microbatches, lead=lead))


def program(owners: Sequence[str], node: str, microbatches: int, lead: int = 1) -> tuple[Instruction, ...]:
    """What the node runs in one step, in order, when ``owners[stage]`` hosts each stage.

    Every node derives it from the plan alone, so all agree on one order of the whole step; leaving out what is done
    keeps it free of deadlock.
    """
    index = {name: i for i, name in enumerate(dict.fromkeys(owners))}
    if node not in index:
        return ()
    order = _order(tuple(index[name] for name in owners), microbatches, lead)
    return tuple(i for i in order if owners[i.stage] == node)


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
