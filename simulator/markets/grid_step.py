"""How long a step takes whose stages may have several owners: the coordinator's own estimate, in seconds."""

from copy import copy
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from culm.coordinator.replicas import by_bucket
from culm.coordinator.step_cost import Situation, step_cost
from culm.pipeline.plan import Stages
from culm.pipeline.times import TimeSplit
from culm.pipeline.tree import largest
from culm.simulator.markets.workload import GRADIENT_BYTES

# Nodes of a grid run whatever has its input (``culm.pipeline.choice``), so no timetable tells when. The coordinator
# chooses shapes by ``step_cost``: the busiest node works through all that it has, and one microbatch passes all stages.
# Here layers cost measured seconds in place of parameters. Two things are added that the coordinator leaves out:
#
#     hops    of one microbatch there and back, over each boundary that some pipeline crosses between two nodes
#     sum     after the last backward parameter gradients go to the reducers that the plan names, and from there to all
#             holders: what the node sends that sends most, on its link. Of R owners each sends 2 (R - 1) / R of the
#             stage, and more if its pipelines are several blocks of the tree, each of which is sent alone. Nothing of
#             it is taken to overlap with backwards. (``gradient_bytes.most_sent``, which the coordinator weighs shapes
#             by, takes every owner to have one block.)
#
# When owners are lost, all nodes are taken to be equally far: a share g of their work is done.
#
#     nodes that stay    go on with the 1 - g that is left
#     heirs              run the duties that they take over from the beginning: their gradients went with the owner
#     a stage's only     its standbys have what was shipped, and do not repeat the share of the forwards that they had
#     owner was lost     run ahead


class StageSeconds(NamedTuple):
    """Of a microbatch's forward and backward."""

    forward: float
    backward: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GridWork:
    """What a step consists of. ``microbatches``: of each pipeline; ``layers``: seconds forward and backward."""

    layers: tuple[float, ...]
    stages: tuple[StageSeconds, ...]
    pipelines: int
    microbatches: int
    hop: float = 0.0
    parameters: tuple[float, ...] = ()  # of each layer
    bytes_per_second: float = float("inf")  # of a link

    def computing(self, stages: Stages) -> float:
        """The estimate by which the coordinator compares shapes."""
        situation = Situation(
            layer_costs=self.layers,
            layer_parameters=self.layers,
            microbatches=self.pipelines * self.microbatches,
            pipelines=self.pipelines,
            most_stages=len(stages),
            nodes=(),
            copies=1,
            seed_bytes_per_second=1.0,
            seconds_to_next_lost=0.0,
            slowness={},
        )
        return step_cost(stages, situation)

    def passing(self, stages: Stages) -> float:
        """What one microbatch's tensors need over all boundaries, there and back."""
        crossed = sum(before.owners != after.owners for before, after in pairwise(stages))
        return 2 * crossed * self.hop

    def summing(self, stages: Stages) -> float:
        """From the last backward until every holder has the sum over all owners."""
        if all(len(stage.distinct_owners) == 1 for stage in stages):
            return 0.0  # what standbys are sent overlaps with the next step: ``Cluster.lazy_share`` has it
        sent: dict[str, float] = {}
        for stage in stages if self.parameters else ():
            sizes = by_bucket(self.parameters[stage.first_layer : stage.end_layer], stage.buckets.counts)
            adds_up = dict.fromkeys(stage.distinct_owners, 0.0)
            for reducer, size in zip(stage.reducers, sizes, strict=True):
                adds_up[reducer] += size
            others, whole = len(stage.holders()) - 1, sum(sizes)
            pipelines: dict[str, list[int]] = {}
            for p, owner in enumerate(stage.owners):
                pipelines.setdefault(owner, []).append(p)
            for owner, own in adds_up.items():
                blocks = len(largest(pipelines[owner], len(stage.owners)))
                sent[owner] = sent.get(owner, 0.0) + blocks * (whole - own) + own * others
        return GRADIENT_BYTES * max(sent.values(), default=0.0) / self.bytes_per_second + self.hop

    def loads(self, stages: Stages) -> dict[str, tuple[float, float]]:
        """Seconds of forwards and of backwards that each owner has in the step."""
        found: dict[str, tuple[float, float]] = {}
        for stage, seconds in zip(stages, self.stages, strict=True):
            for owner in stage.owners:
                forward, backward = found.get(owner, (0.0, 0.0))
                forward += self.microbatches * seconds.forward
                backward += self.microbatches * seconds.backward
                found[owner] = (forward, backward)
        return found


class GridStep:
    """One step, as ``step_time.StepRun`` is of a single pipeline; times from its beginning. May lose owners."""

    def __init__(self, stages: Stages, work: GridWork) -> None:
        self._stages, self._work = stages, work
        self._since = 0.0
        # What each owner has left to compute at ``_since``, and what the step takes beside the busiest of them.
        self._left = {owner: forward + backward for owner, (forward, backward) in work.loads(stages).items()}
        self._beside = work.computing(stages) - max(self._left.values()) + work.passing(stages)
        self._sum = work.summing(stages)
        self.seconds = self._computed() + self._sum

    def _computed(self) -> float:
        return self._since + max(self._left.values()) + self._beside

    def of(self, stages: Stages) -> "GridStep":
        """The same step, run by the owners of these stages: one that may lose some of them."""
        same = copy(self)
        same._stages = stages
        return same

    def times(self, node: str) -> TimeSplit:
        """Where the node's compute thread's time goes."""
        forward, backward = self._work.loads(self._stages).get(node, (0.0, 0.0))
        return TimeSplit(forward=forward, backward=backward, bubble=max(0.0, self.seconds - forward - backward))

    def room_for_forwards(self) -> float:
        """The share of a stage's forwards that another's bubbles hold."""
        busiest = max(map(self.times, self._work.loads(self._stages)), key=lambda times: times.forward)
        return min(1.0, busiest.bubble / busiest.forward) if busiest.forward else 1.0

    def lose(self, at: float, resumed: float, stages: Stages, ahead: float = 0.0, ship_every: int = 0) -> int:
        """Owners that are not those of ``stages`` are lost at ``at``. Returns how many instructions are done again.

        The arguments are those of ``StepRun.lose``.
        """
        at = max(at, self._since)  # two were lost before the first was noticed
        resumed = max(at, resumed)
        ends = self._computed()
        done = min(1.0, (at - self._since) / (ends - self._since)) if ends > self._since else 1.0
        moved: dict[str, float] = {}  # seconds that heirs have on top
        redone = 0.0
        for before, after, seconds in zip(self._stages, stages, self._work.stages, strict=True):
            whole = self._work.microbatches * (seconds.forward + seconds.backward)
            kept, microbatches = 0.0, done * self._work.microbatches
            if len(before.distinct_owners) == 1:
                shipped = microbatches // ship_every * ship_every if ship_every else 0.0
                kept = shipped * (seconds.forward + seconds.backward)
                kept += ahead * (microbatches - shipped) * seconds.forward
                microbatches -= shipped
            for owner, heir in zip(before.owners, after.owners, strict=True):
                if owner != heir:
                    moved[heir] = moved.get(heir, 0.0) + whole - kept
                    redone += 2 * microbatches
        stay = {owner for stage in stages for owner in stage.owners}
        left = {owner: (1.0 - done) * self._left.get(owner, 0.0) for owner in stay}
        for heir, seconds_on_top in moved.items():
            left[heir] += seconds_on_top + resumed - at
        self._stages, self._since, self._left = stages, at, left
        self._beside *= 1.0 - done
        self._sum = self._work.summing(stages)
        self.seconds = self._computed() + self._sum
        return round(redone)
