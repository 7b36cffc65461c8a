"""Cutting the model anew for the nodes there are: when it pays, and into what. Pure, with a reason in words."""

# A step's length is estimated as what 1F1B takes: the first microbatch passes all stages, and the busiest node then
# works through the others. A new cut has to earn what moving costs, in the time that is likely left until the next node
# is lost and the shape changes anyhow:
#
#     saved = gain * seconds until the next lost node
#     spent = SLOWDOWN * seconds that the moved state needs on the link
#
# Units cancel: costs are relative, so the gain is a fraction, and seconds come from the link and from how often nodes
# are lost.

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from culm.coordinator.placement import with_standbys
from culm.coordinator.zones import Zones
from culm.pipeline.partition import partition
from culm.pipeline.plan import StagePlan, Stages

STATE_BYTES = 12  # of a parameter with two optimizer moments, in float32
# The part of training's speed that is lost while state moves: ``seed_bytes_per_second`` is chosen so that it is no
# more.
SLOWDOWN = 0.1
# A gain below this is within what the estimate cannot tell: it knows nothing of transfer, caches or other guests.
WORTHWHILE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What the decision depends on. ``slowness``: seconds for the same cost, against the fastest node."""

    layer_costs: tuple[float, ...]
    microbatches: int  # of a step, all pipelines together
    pipelines: int
    most_stages: int
    nodes: tuple[str, ...]  # that can be given work, in the order in which they are to be used
    redundancy: bool
    seed_bytes_per_second: float
    seconds_to_next_lost: float
    slowness: Mapping[str, float]
    zones: Zones = field(default_factory=dict)


def propose(stages: Stages, situation: Situation) -> tuple[Stages, str] | None:
    """Better stages than the present ones and why they pay, or None.

    The owners keep their order, so that most layers stay where they are.
    """
    given = set(situation.nodes)
    order = list(dict.fromkeys([*(stage.owner for stage in stages if stage.owner in given), *situation.nodes]))
    count = min(len(order), situation.most_stages, len(situation.layer_costs))
    if count == 0:
        return None
    owners = order[:count]
    before = step_cost(stages, situation)
    if before * (1.0 - WORTHWHILE) < least_cost(owners, situation):
        return None  # to cut in vain at every commit takes longer the more stages there are
    better = _cut(owners, situation)
    after = step_cost(better, situation)
    gain = 1.0 - after / before if before else 0.0
    if gain < WORTHWHILE:
        return None
    moved = sum(
        situation.layer_costs[layer]
        for stage in better
        for node in stage.holders()
        for layer in _new(stages, node, stage)
    )
    seconds = moved * STATE_BYTES / situation.seed_bytes_per_second
    saved, spent = gain * situation.seconds_to_next_lost, SLOWDOWN * seconds
    if saved <= spent:
        return None
    reason = (
        f"{count} stages in place of {len(stages)}: a step takes {100 * gain:.0f} % less, which saves {saved:.0f} s "
        f"until the next node is expected to be lost; moving {moved * STATE_BYTES / 1e6:.0f} MB costs {spent:.1f} s"
    )
    return better, reason


def step_cost(stages: Stages, situation: Situation) -> float:
    """A step's length in units of cost: the busiest node works through all microbatches, one passes all stages."""
    load: dict[str, float] = {}
    for stage in stages:
        load[stage.owner] = load.get(stage.owner, 0.0) + _cost(stage, situation)
    total = sum(_cost(stage, situation) for stage in stages)
    return (situation.microbatches - 1) * max(load.values()) + total


def least_cost(owners: Sequence[str], situation: Situation) -> float:
    """What no cut for these owners falls short of: layers that could be divided among them at will, but for one."""
    slowness = [situation.slowness.get(name, 1.0) for name in owners]
    total, fastest = sum(situation.layer_costs), min(slowness)
    busiest = max(total / sum(1.0 / x for x in slowness), fastest * max(situation.layer_costs))
    return (situation.microbatches - 1) * busiest + fastest * total


def _cost(stage: StagePlan, situation: Situation) -> float:
    return sum(situation.layer_costs[x] for x in stage.layers) * situation.slowness.get(stage.owner, 1.0)


def _cut(owners: Sequence[str], situation: Situation) -> Stages:
    slowness = [situation.slowness.get(name, 1.0) for name in owners]
    ranges = partition(situation.layer_costs, len(owners), slowness)
    return with_standbys(owners, ranges, situation.redundancy, situation.nodes, situation.zones, situation.pipelines)


def _new(stages: Stages, node: str, stage: StagePlan) -> list[int]:
    """The layers of a stage to be that the node does not hold yet."""
    held = {layer for old in stages if node in old.required() for layer in old.layers}
    return [layer for layer in stage.layers if layer not in held]
