"""The schedule as data: what every stage runs in a step, and in which order a node runs several stages.

With four stages and four microbatches (F forward, B backward, a backward twice as long as a forward):

    stage 0   F0 F1 F2 F3 .  .  .  .  .  B0 B0 B1 B1 ...
    stage 1      F0 F1 F2 .  .  .  B0 B0 F3 B1 B1 ...
    stage 2         F0 F1 .  B0 B0 F2 B1 B1 F3 ...
    stage 3            F0 B0 B0 F1 B1 B1 F2 ...
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heapify, heappop, heappush

from culm.pipeline.flow import awaited, awaits, inputs_of, stages_after, takes_samples
from culm.pipeline.instruction import Duty, Instruction, Pass

# The timetable is made of these costs alone, never of measured times. It is for charts, estimates and simulations.
FORWARD_COST = 1.0
BACKWARD_COST = 2.0  # two gradients, of the input and of the parameters, each about as much work as a forward
SPLIT_COST = 1.0  # of either half of a backward


@dataclass(frozen=True, slots=True)
class Span:
    """When an instruction runs in the timetable, in units of one forward."""

    instruction: Instruction
    host: int
    start: float
    end: float


@lru_cache(maxsize=1024)
def one_f_one_b(duty: Duty, stages: int, microbatches: int, lead: int = 1) -> tuple[Instruction, ...]:
    """The 1F1B order of one stage: warmup forwards, then one forward one backward, then cooldown backwards.

    ``lead``: by how many microbatches a stage's forwards are ahead of the next one's. With 1, the least memory, every
    microbatch waits for its tensors to travel to the next stage and back; with 2 the next one is there meanwhile. The
    order among forwards, and among backwards, is the same with any: so are the bits.
    """
    warmup = min(lead * stages_after(duty.stage, stages), microbatches)
    order = [Instruction(duty, "F", m) for m in range(warmup)]
    for m in range(microbatches - warmup):
        order.append(Instruction(duty, "F", warmup + m))
        order.append(Instruction(duty, "B", m))
    order.extend(Instruction(duty, "B", m) for m in range(microbatches - warmup, microbatches))
    return tuple(order)


@lru_cache(maxsize=1024)
def zero_bubble(duty: Duty, stages: int, microbatches: int, lead: int = 1) -> tuple[Instruction, ...]:
    """The ZB-H1 order of one stage: 1F1B whose parameter gradients (W) wait for the bubbles of the cooldown.

    Each stage, on a node of its own, takes a B first, then an F as far as 1F1B allows one, then a W. A stage that keeps
    as many graphs as the first stage does under 1F1B takes a W before the next F. Nobody waits for the first stage's
    backwards, so these are whole. After Qi et al., Zero Bubble Pipeline Parallelism (ICLR 2024).
    """
    return _zero_bubble(duty.pipeline, stages, microbatches, lead)[duty.stage]


@lru_cache(maxsize=1024)
def _zero_bubble(pipeline: int, stages: int, microbatches: int, lead: int) -> tuple[tuple[Instruction, ...], ...]:
    orders: list[list[Instruction]] = [[] for _ in range(stages)]
    counts = [{"F": 0, "B": 0, "W": 0} for _ in range(stages)]
    end: dict[Instruction, float] = {}
    free = [0.0] * stages
    most = lead * (stages - 1) + 1  # graphs that a stage keeps: the warmup of the first stage, and one
    while any(len(order) < (2 if takes_samples(s) else 3) * microbatches for s, order in enumerate(orders)):
        best: tuple[float, int, int, Instruction] | None = None
        for s, count in enumerate(counts):
            for rank, op in enumerate(_choices(s, stages, microbatches, lead, count, most)):
                instruction = Instruction(Duty(pipeline, s), op, count[op])
                needs = inputs_of(instruction, stages)
                if any(n not in end for n in needs):
                    continue
                start = max([free[s], *(end[n] for n in needs)])
                if best is None or (start, rank, -s) < best[:3]:
                    best = (start, rank, -s, instruction)
        assert best is not None, "some stage can go on"
        start, _, _, chosen = best
        s = chosen.stage
        cost = FORWARD_COST if chosen.op == "F" else BACKWARD_COST if takes_samples(s) else SPLIT_COST
        end[chosen] = free[s] = start + cost
        counts[s][chosen.op] += 1
        orders[s].append(chosen)
    return tuple(map(tuple, orders))


def _choices(s: int, stages: int, microbatches: int, lead: int, count: dict[str, int], most: int) -> list[Pass]:
    """What a stage may do next, preferred first, as if all its inputs were there."""
    backward: list[Pass] = ["B"] if count["B"] < count["F"] else []
    may = count["F"] < microbatches and count["F"] - count["B"] <= min(lead * stages_after(s, stages), microbatches)
    if takes_samples(s):  # others wait for its forwards, and nobody for its backwards
        return ["F", *backward] if may else backward
    forward: list[Pass] = ["F"] if may and count["F"] - count["W"] < most else []
    weights: list[Pass] = ["W"] if count["W"] < count["B"] else []
    return [*backward, *forward, *weights]


@dataclass(frozen=True, slots=True)
class Schedule:
    """In which order the stages of a step run: 1F1B, or ZB-H1."""

    microbatches: int
    lead: int = 1
    splits: bool = False  # whether backwards are in two halves, B and W: zero bubble

    def order(self, duty: Duty, stages: int) -> tuple[Instruction, ...]:
        """The instructions of the duty in a step, in order."""
        return (zero_bubble if self.splits else one_f_one_b)(duty, stages, self.microbatches, self.lead)

    def splits_at(self, stage: int) -> bool:
        """Whether the stage's backwards are in two halves."""
        return self.splits and not takes_samples(stage)

    def closes(self, stage: int) -> Pass:
        """The operation after which a microbatch is done at the stage."""
        return "W" if self.splits_at(stage) else "B"

    def cost(self, instruction: Instruction) -> float:
        """In units of one forward."""
        if instruction.op == "F":
            return FORWARD_COST
        return SPLIT_COST if self.splits_at(instruction.stage) else BACKWARD_COST


@lru_cache(maxsize=1024)
def _awaited(duty: Duty, stages: int, schedule: Schedule) -> tuple[Instruction | None, ...]:
    return tuple(awaited(instruction, stages) for instruction in schedule.order(duty, stages))


Hosts = Sequence[Sequence[int]]  # by pipeline and stage: who runs it


def timetable(hosts: Hosts, schedule: Schedule) -> tuple[Span, ...]:
    """When everything runs if every host runs one thing at a time and starts it as soon as it can.

    Each duty keeps its order; a host with several duties takes the head that can start first, of equals the one
    furthest down its pipeline (backwards free memory). The spans come in order of start, so that the order restricted
    to any subset of unfinished work never deadlocks.
    """
    host_of = {Duty(p, s): host for p, stages in enumerate(hosts) for s, host in enumerate(stages)}
    stages = len(hosts[0])
    orders = {duty: schedule.order(duty, stages) for duty in host_of}
    needs = {duty: _awaited(duty, stages, schedule) for duty in host_of}
    position = dict.fromkeys(host_of, 0)
    free = [0.0] * (max(host_of.values()) + 1)
    end: dict[Instruction, float] = {}
    spans: list[Span] = []
    # Heads whose inputs are there, by the earliest moment known. Invariant: the true moment is that one or later, since
    # a host only becomes free later. So a head that comes up too early goes back with its new moment.
    ready = [(0.0, 0, duty) for duty in host_of if needs[duty][0] is None]
    heapify(ready)
    while ready:
        known, _, duty = heappop(ready)
        host, head = host_of[duty], orders[duty][position[duty]]
        start = max(known, free[host])
        if start > known:
            heappush(ready, (start, -duty.stage, duty))
            continue
        end[head] = free[host] = start + schedule.cost(head)
        position[duty] += 1
        spans.append(Span(head, host, start, end[head]))
        follower = awaits(head, stages)
        for other in (duty,) if follower is None else (duty, follower.duty):
            if position[other] == len(orders[other]):
                continue
            needed = needs[other][position[other]]
            if needed == head or (other == duty and (needed is None or needed in end)):
                there = end[needed] if needed is not None else 0.0
                heappush(ready, (max(there, free[host_of[other]]), -other.stage, other))
    return tuple(spans)


@lru_cache(maxsize=1024)
def _order(hosts: tuple[tuple[int, ...], ...], schedule: Schedule) -> tuple[Instruction, ...]:
    return tuple(span.instruction for span in timetable(hosts, schedule))


def programs(owners: Sequence[Sequence[str]], schedule: Schedule) -> dict[str, tuple[Instruction, ...]]:
    """What every node runs in one step, in the timetable's order, when ``owners[pipeline][stage]`` hosts each duty.

    An estimate: real nodes run whatever has its input (``culm.pipeline.choice``).
    """
    index = {name: i for i, name in enumerate(dict.fromkeys(name for stages in owners for name in stages))}
    found: dict[str, list[Instruction]] = {name: [] for name in index}
    for instruction in _order(tuple(tuple(index[name] for name in stages) for stages in owners), schedule):
        found[owners[instruction.duty.pipeline][instruction.duty.stage]].append(instruction)
    return {name: tuple(mine) for name, mine in found.items()}


def bubble_fraction(spans: Sequence[Span]) -> float:
    """The share of the workers' time, up to the end of the step, in which they have nothing to run."""
    makespan = max(span.end for span in spans)
    hosts = {span.host for span in spans}
    return 1.0 - sum(span.end - span.start for span in spans) / (makespan * len(hosts))


def chart(spans: Sequence[Span]) -> str:
    """The timetable as text, a row a worker, a column a unit of time."""
    rows: dict[int, dict[int, str]] = {}
    for span in spans:
        row = rows.setdefault(span.host, {})
        for t in range(round(span.start), round(span.end)):
            row[t] = str(span.instruction)
    width = max(len(str(span.instruction)) for span in spans)
    makespan = round(max(span.end for span in spans))
    return "\n".join(
        f"{host:>3} | " + " ".join(row.get(t, ".").ljust(width) for t in range(makespan)).rstrip()
        for host, row in sorted(rows.items())
    )
