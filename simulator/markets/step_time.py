"""How long a step of one pipeline takes, calm or with a lost node: nodes' programs, with measured durations."""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol, Self

from culm.pipeline.flow import awaited
from culm.pipeline.instruction import Instruction
from culm.pipeline.plan import Stages
from culm.pipeline.schedule import Schedule, programs
from culm.pipeline.times import TimeSplit

# Each node runs its program in order. An instruction begins when its node is free and its input has arrived; its result
# arrives at another node a hop after its end. So a step needs no clock: one walk over the programs gives every time.
#
# When owners are lost at ``at``, the rest of the step is walked again under the new owners. What becomes of an
# instruction:
#
#     of a stage that stays, ended or running    stays as it is
#     of a lost stage, ended or running          its gradient went with the owner: the heir does it again, but for the
#                                                microbatches whose accumulated gradients were shipped
#     of a lost stage that was through           stays: its standby has the whole reduced gradient (rule 9)
#     not begun                                  the new owner does it
#
# A result that had arrived stays with its consumer, also where its producer does it again: nobody waits for it twice.
# An heir is free from ``resumed`` on, when the lost node was noticed. The share of the forwards that it had run ahead
# takes no time again.


class Step(Protocol):
    """A step under way, of one pipeline (``StepRun``) or of several (``grid_step.GridStep``). Seconds."""

    seconds: float  # from its beginning to the last gradient

    def of(self, stages: Stages) -> Self:
        """The same step, run by the owners of these stages: one that may lose some of them."""
        ...

    def lose(self, at: float, resumed: float, stages: Stages, ahead: float = 0.0, ship_every: int = 0) -> int:
        """Owners that are not those of ``stages`` are lost at ``at``. Returns how many instructions heirs do again."""
        ...

    def times(self, node: str) -> TimeSplit:
        """Where the node's compute thread's time goes."""
        ...

    def room_for_forwards(self) -> float:
        """The share of a stage's forwards that another's bubbles hold."""
        ...


@dataclass(frozen=True, slots=True)
class Durations:
    """Seconds of a microbatch's forward and backward on each stage, and of a tensor's way to a neighbour."""

    forward: tuple[float, ...]
    backward: tuple[float, ...]  # whole; a schedule that splits them takes half for each half
    hop: float = 0.0

    def of(self, instruction: Instruction, schedule: Schedule) -> float:
        if instruction.op == "F":
            return self.forward[instruction.stage]
        whole = self.backward[instruction.stage]
        return whole / 2 if schedule.splits_at(instruction.stage) else whole


@dataclass(kw_only=True)
class StepRun:
    """One step under way: when each instruction begins and ends, in seconds from the step's beginning."""

    owners: tuple[str, ...]
    schedule: Schedule
    durations: Durations
    began: dict[Instruction, float] = field(default_factory=dict)
    ended: dict[Instruction, float] = field(default_factory=dict)
    arrived: dict[Instruction, float] = field(default_factory=dict)  # when its result is there for another node
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self._run(programs([self.owners], self.schedule), dict.fromkeys(self.owners, 0.0))

    def times(self, node: str) -> TimeSplit:
        """Where the node's compute thread's time goes."""
        seconds = {"F": 0.0, "B": 0.0, "W": 0.0}
        for i in self.ended:
            if self.owners[i.stage] == node:
                seconds[i.op] += self.durations.of(i, self.schedule)
        backward = seconds["B"] + seconds["W"]
        return TimeSplit(forward=seconds["F"], backward=backward, bubble=self.seconds - seconds["F"] - backward)

    def room_for_forwards(self) -> float:
        """The share of a stage's forwards that another's bubbles hold."""
        busiest = max((self.times(node) for node in dict.fromkeys(self.owners)), key=lambda times: times.forward)
        return min(1.0, busiest.bubble / busiest.forward) if busiest.forward else 1.0

    def of(self, stages: Stages) -> "StepRun":
        """The same step, run by the owners of these stages: one that may lose some of them."""
        same = copy(self)
        same.owners = tuple(stage.owner for stage in stages)
        return same

    def lose(self, at: float, resumed: float, stages: Stages, ahead: float = 0.0, ship_every: int = 0) -> int:
        """The stages that get other owners are lost at ``at``. Returns how many instructions heirs do again.

        ``ahead``: the share of the lost forwards that an heir had run already. ``ship_every``: after so many backwards
        their gradients were with it.
        """
        owners = tuple(stage.owner for stage in stages)
        moved = {s for s, (old, new) in enumerate(zip(self.owners, owners, strict=True)) if old != new}
        lost = {s for s in moved if any(end > at for i, end in self.ended.items() if i.stage == s)}
        done = {i for i, end in self.ended.items() if end <= at and i.stage not in lost}
        running = {i for i, start in self.began.items() if start < at and i.stage not in lost} - done
        shipped = {
            s: _shipped([i for i, end in self.ended.items() if i.stage == s and end <= at], ship_every) for s in lost
        }
        had = {i for i, end in self.ended.items() if i.stage in lost and end <= at}
        redone = {i for i in had if i.microbatch >= shipped[i.stage]}
        kept = {i: end for i, end in self.ended.items() if i in done or i in running or i in had - redone}
        heirs = {owners[s] for s in lost}
        free = dict.fromkeys(owners, at)
        for i in running:
            free[owners[i.stage]] = self.ended[i]
        for heir in heirs:
            free[heir] = max(free[heir], resumed)
        self.arrived = {i: t for i, t in self.arrived.items() if i in kept or t <= at}
        self.began = {i: t for i, t in self.began.items() if i in kept}
        self.ended, self.owners = kept, owners
        left = {
            node: [i for i in mine if i not in kept] for node, mine in programs([self.owners], self.schedule).items()
        }
        self._run(left, free, {i for i in redone if i.op == "F"}, 1.0 - ahead)
        return len(redone)

    def _run(
        self,
        orders: Mapping[str, Sequence[Instruction]],
        free: dict[str, float],
        cheaper: "set[Instruction] | frozenset[Instruction]" = frozenset(),
        factor: float = 1.0,
    ) -> None:
        """Every node runs its program in order, each instruction as soon as its inputs are there."""
        stages = len(self.owners)
        position = dict.fromkeys(orders, 0)
        waiting: dict[Instruction, str] = {}  # what a node waits for
        ready = list(orders)
        while ready:
            node = ready.pop()
            mine = orders[node]
            while position[node] < len(mine):
                instruction = mine[position[node]]
                start, needed = free[node], awaited(instruction, stages)
                if needed is not None:
                    there = self.arrived.get(needed)
                    if there is None:
                        waiting[needed] = node
                        break
                    start = max(start, there)
                seconds = self.durations.of(instruction, self.schedule) * (factor if instruction in cheaper else 1.0)
                self.began[instruction] = start
                end = self.ended[instruction] = free[node] = start + seconds
                position[node] += 1
                if instruction not in self.arrived:
                    receiver = instruction.stage + (1 if instruction.op == "F" else -1)
                    away = 0 <= receiver < stages and self.owners[receiver] != node
                    self.arrived[instruction] = end + (self.durations.hop if away else 0.0)
                if instruction in waiting:
                    ready.append(waiting.pop(instruction))
        assert all(position[n] == len(orders[n]) for n in orders), "a program waits for ever"
        self.seconds = max(self.ended.values())


def _shipped(done: Sequence[Instruction], every: int) -> int:
    """How many of a stage's microbatches, the first ones, its standby has the gradients of."""
    if not every:
        return 0
    backwards = sum(i.op == "B" for i in done)
    return backwards // every * every


@lru_cache(maxsize=512)
def calm(places: tuple[int, ...], schedule: Schedule, durations: Durations) -> StepRun:
    """A step without lost nodes; ``places[stage]`` tells which stages share a node. Not to be changed."""
    return StepRun(owners=tuple(f"{place}" for place in places), schedule=schedule, durations=durations)
