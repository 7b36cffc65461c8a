"""Another shape for the nodes there are: when it pays, and which. Pure, with a reason in words."""

# A step's length is estimated as what 1F1B takes: the first microbatch passes all stages, and the busiest node then
# works through the others. A new cut has to earn what moving costs, in the time that is likely left until the next node
# is lost and the shape changes anyhow:
#
#     saved = gain * seconds until the next lost node
#     spent = SLOWDOWN * seconds that the moved state needs on the link
#
# Units cancel: costs are relative, so the gain is a fraction, and seconds come from the link and from how often nodes
# are lost. Gradients have to cross links in every step: the more replicas, the more bytes. What a byte costs is known
# once steps have been timed and links measured; where links are slow a shape of more stages wins.

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from culm.coordinator import replicas
from culm.coordinator.gradient_bytes import most_sent
from culm.coordinator.memory import UNBOUND, Budget
from culm.coordinator.standbys import with_standbys
from culm.coordinator.zones import Zones
from culm.pipeline.partition import partition
from culm.pipeline.plan import Stages

STATE_BYTES = 12  # of a parameter with two optimizer moments, in float32
# The part of training's speed that is lost while state moves: ``seed_bytes_per_second`` is chosen so that it is no
# more.
SLOWDOWN = 0.1
# A gain below this is within what the estimate cannot tell: it knows nothing of transfer, caches or other guests.
WORTHWHILE = 0.05
# Of a step, at least: a link that was slow for a moment must not make all of the step the link's.
LEAST_COMPUTING = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What the decision depends on. ``slowness``: seconds for the same cost, against the fastest node."""

    layer_costs: tuple[float, ...]  # in any unit: seconds, or parameters
    layer_parameters: tuple[float, ...]  # they decide what moving costs
    microbatches: int  # of a step, all pipelines together
    pipelines: int
    most_stages: int
    nodes: tuple[str, ...]  # that can be given work, in the order in which they are to be used
    copies: int
    seed_bytes_per_second: float
    seconds_to_next_lost: float
    slowness: Mapping[str, float]
    zones: Zones = field(default_factory=dict)
    # What a step takes under the present shape, in seconds, and the slowest link. Without either sending costs nothing.
    step_seconds: float = 0.0
    bytes_per_second: float = 0.0
    budget: Budget = UNBOUND  # of the nodes' memory


def propose(stages: Stages, situation: Situation) -> tuple[Stages, str] | None:
    """A better shape than the present one and why it pays, or None.

    Nodes keep the stages that they hold, as far as they can, so that most layers stay where they are.
    """
    order = list(dict.fromkeys([*(owner for stage in stages for owner in stage.owners), *situation.nodes]))
    order = [name for name in order if name in set(situation.nodes)]
    most = min(len(order), situation.most_stages, len(situation.layer_costs))
    if most == 0:
        return None
    of_byte = cost_of_byte(stages, situation)
    before = step_cost(stages, situation, of_byte)
    if before * (1.0 - WORTHWHILE) < least_cost(order, situation):
        return None  # to cut in vain at every commit takes longer the more stages there are
    # One pipeline takes all stages that it can get; several may be better off with more replicas of fewer stages.
    counts = [most] if situation.pipelines == 1 else range(1, most + 1)
    shapes = [_shape(order, count, stages, situation) for count in counts]
    better, too_large = _that_fits(shapes, stages, situation, of_byte)
    if not better:
        return None
    after = step_cost(better, situation, of_byte)
    gain = 1.0 - after / before if before else 0.0
    if gain < WORTHWHILE:
        return None
    held = _held(stages)
    moved = sum(
        situation.layer_parameters[layer]
        for stage in better
        for node in stage.holders()
        for layer in stage.layers
        if layer not in held.get(node, ())
    )
    seconds = moved * STATE_BYTES / situation.seed_bytes_per_second
    saved, spent = gain * situation.seconds_to_next_lost, SLOWDOWN * seconds
    if saved <= spent:
        return None
    reason = (
        f"{_in_words(better)} in place of {_in_words(stages)}: a step takes {100 * gain:.0f} % less, "
        f"which saves {saved:.0f} s until the next node is expected to be lost; "
        f"moving {moved * STATE_BYTES / 1e6:.0f} MB costs {spent:.1f} s{too_large}"
    )
    return better, reason


def _that_fits(shapes: Sequence[Stages], before: Stages, situation: Situation, of_byte: float) -> tuple[Stages, str]:
    """The best shape that fits the memory, beside what is held until then; and of a better one why it does not."""
    too_large = ""
    for shape in sorted(shapes, key=lambda shape: (step_cost(shape, situation, of_byte), -len(shape))):
        small = situation.budget.too_small(shape, before)
        if not small:
            return shape, too_large
        what = f"{_in_words(shape)} would be faster and does not fit"
        too_large = too_large or f"; {what}: {situation.budget.in_words(small, shape, before)}"
    return (), too_large


def _in_words(stages: Stages) -> str:
    rows = max(len(stage.distinct_owners) for stage in stages)
    stages_in_words = f"{len(stages)} stage{'s' * (len(stages) != 1)}"
    return f"{rows} replicas of {stages_in_words}" if rows > 1 else stages_in_words


def cost_of_byte(stages: Stages, situation: Situation) -> float:
    """What it costs to send a byte of gradients, in units of cost; 0.0 while no link was measured, or no step timed.

    The present step tells how long a unit of cost takes: what is left of it beside the time of its gradients.
    """
    if not situation.step_seconds or not situation.bytes_per_second:
        return 0.0
    sending = most_sent(stages, situation.layer_parameters) / situation.bytes_per_second
    computing = max(situation.step_seconds - sending, LEAST_COMPUTING * situation.step_seconds)
    return step_cost(stages, situation) / computing / situation.bytes_per_second


def step_cost(stages: Stages, situation: Situation, of_byte: float = 0.0) -> float:
    """A step's length in units of cost: the busiest node works through all its microbatches, one passes all stages.

    Then gradients are sent, at ``of_byte`` each byte.
    """
    work: dict[str, float] = {}  # in a step
    each: dict[str, float] = {}  # of the microbatch that passes: it is in the sum over all stages
    total = 0.0
    microbatches = situation.microbatches / situation.pipelines
    for stage in stages:
        cost = sum(situation.layer_costs[x] for x in stage.layers)
        for owner in stage.distinct_owners:
            own = cost * situation.slowness.get(owner, 1.0)
            work[owner] = work.get(owner, 0.0) + own * microbatches * stage.owners.count(owner)
            each[owner] = each.get(owner, 0.0) + own
        total += cost * max(situation.slowness.get(owner, 1.0) for owner in stage.distinct_owners)
    sending = of_byte * most_sent(stages, situation.layer_parameters) if of_byte else 0.0
    return max(work[owner] - each[owner] for owner in work) + total + sending


def least_cost(owners: Sequence[str], situation: Situation) -> float:
    """What no shape of these nodes falls short of: layers that could be divided among them at will, but for one."""
    slowness = [situation.slowness.get(name, 1.0) for name in owners]
    total, fastest = sum(situation.layer_costs), min(slowness)
    if situation.pipelines > 1:  # a layer may be on every node, and no microbatch has to pass from one to another
        return situation.microbatches * total / sum(1.0 / x for x in slowness)
    slowness = slowness[: min(len(owners), situation.most_stages, len(situation.layer_costs))]
    busiest = max(total / sum(1.0 / x for x in slowness), min(slowness) * max(situation.layer_costs))
    return (situation.microbatches - 1) * busiest + fastest * total


def _shape(order: Sequence[str], count: int, before: Stages, situation: Situation) -> Stages:
    """So many stages on these nodes, in as many replicas as they make."""
    rows = replicas.count(len(order), count, situation.pipelines)
    if rows == 1:
        slowness = [situation.slowness.get(name, 1.0) for name in order[:count]]
        ranges = partition(situation.layer_costs, count, slowness)
        owners = order[:count]
        alone = replicas.laid_out([owners], ranges, situation.pipelines, situation.layer_parameters)
        return with_standbys(alone, situation.copies, situation.nodes, situation.zones)
    ranges = partition(situation.layer_costs, count)
    # Whoever holds most of a stage's layers owns it, as long as the stage has owners to come.
    held = _held(before)
    wanted = [
        (-sum(situation.layer_parameters[x] for x in held.get(name, ()) if first <= x < end), i, s)
        for i, name in enumerate(order)
        for s, (first, end) in enumerate(ranges)
    ]
    columns: list[list[str]] = [[] for _ in ranges]
    placed: set[str] = set()
    for _, i, s in sorted(wanted):
        if order[i] not in placed and len(columns[s]) < rows:
            columns[s].append(order[i])
            placed.add(order[i])
    grid = [[column[row] for column in columns] for row in range(rows)]
    return replicas.laid_out(grid, ranges, situation.pipelines, situation.layer_parameters)


def _held(stages: Stages) -> dict[str, set[int]]:
    """The layers that each node has at the committed version."""
    held: dict[str, set[int]] = {}
    for stage in stages:
        for node in stage.required():
            held.setdefault(node, set()).update(stage.layers)
    return held
