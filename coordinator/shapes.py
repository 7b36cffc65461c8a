"""The shapes that nodes can make: what each takes at best, and which node has what in it. Pure."""

# To lay a shape out takes longer the more nodes there are, and there are as many shapes as layers, or more. So shapes
# are bounded first: its busiest stage is with the fastest node at best, and of as many nodes as a shape has one is as
# slow as the slowest that cannot be left out. Only those are laid out whose bound is below what was found
# (``repartition``).

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from culm.coordinator import replicas
from culm.coordinator.layout import Held, laid_out_in_zones
from culm.coordinator.slowness import NOTICEABLE
from culm.coordinator.standbys import repair, with_standbys
from culm.coordinator.step_cost import Estimate, Situation
from culm.coordinator.zone_places import Weights
from culm.coordinator.zones import GRADIENT_BYTES, first_of_several
from culm.pipeline.partition import partition, partitions
from culm.pipeline.plan import Stages

Ranges = Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Shape:
    """So many replicas, of stages that are cut like this. ``bound``: what its steps take and send at the least."""

    replicas: int
    ranges: Ranges
    bound: Estimate

    def fits(self, situation: Situation) -> bool:
        """Whether some node may have the memory for the largest stage; True where a node's is not known."""
        budget = situation.budget
        if not all(map(budget.binds, situation.nodes)):
            return True
        held = (sum(x.state + x.gradient for x in budget.layers[first:end]) for first, end in self.ranges)
        return max(held) <= max(budget.told[name] for name in situation.nodes)


def of_nodes(count: int, situation: Situation) -> Iterator[Shape]:
    """Every shape of so many nodes that is of use."""
    if situation.whole_pipelines:
        layers = range(len(situation.layer_costs))
        yield Shape(min(count, situation.pipelines), [(layer, layer + 1) for layer in layers], Estimate(0.0))
        return
    most = min(count, situation.most_stages, len(situation.layer_costs))
    slowness = sorted(situation.slowness.get(name, 1.0) for name in situation.nodes)
    # One pipeline takes all stages that it can get; several may be better off with more replicas of fewer stages.
    if situation.pipelines == 1:
        yield from _of_stages(partition(situation.layer_costs, most), range(1, 2), slowness, situation)
        return
    for ranges in partitions(situation.layer_costs, most):
        most_replicas = replicas.count(count, len(ranges), situation.pipelines)
        # Fewer replicas send less between zones, which counts only where dollars do. As many as there are to be copies
        # stay: owners are each other's.
        by_dollars = situation.by_value and situation.prices
        fewest = min(most_replicas, situation.copies) if by_dollars else most_replicas
        yield from _of_stages(ranges, range(fewest, most_replicas + 1), slowness, situation)


def _of_stages(
    ranges: Ranges, counts: Iterable[int], slowness: Sequence[float], situation: Situation
) -> Iterator[Shape]:
    """So many replicas of the same stages, each with its bound. ``slowness``: of the nodes, ascending."""
    costs = [sum(situation.layer_costs[first:end]) for first, end in ranges]
    total, widest, narrowest = sum(costs), max(costs), min(costs)
    largest = max(sum(situation.layer_parameters[first:end]) for first, end in ranges)
    mean = sum(situation.layer_parameters) / len(ranges)
    each = situation.microbatches / situation.pipelines
    for rows in counts:
        fewest, most = situation.pipelines // rows, -(-situation.pipelines // rows)  # that a replica runs
        busiest = slowness[0] * widest * (most * each - 1)
        if rows == 1:  # its cut follows how fast its nodes are: nobody knows yet how large the largest stage is
            sent = mean * (min(situation.copies, len(ranges)) - 1)
        else:  # of so many nodes the slowest is no faster than this
            busiest = max(busiest, slowness[rows * len(ranges) - 1] * narrowest * (fewest * each - 1))
            sent = largest * 2 * (rows - 1) / rows
        yield Shape(rows, ranges, Estimate(busiest + slowness[0] * total, GRADIENT_BYTES * sent))


def laid_out(shape: Shape, order: Sequence[str], before: Stages, situation: Situation) -> Stages:
    """The shape on these nodes, in whose order they are used; where they hold most of what they get, if it can be."""
    rows, count = shape.replicas, len(shape.ranges)
    parameters, pipelines = situation.layer_parameters, situation.pipelines
    if situation.whole_pipelines:
        grid = replicas.whole(first_of_several(order, rows, situation.zones), count)
        return _with_all_copies(replicas.laid_out(grid, shape.ranges, pipelines, parameters), before, situation)
    if rows == 1:
        slowness = [situation.slowness.get(name, 1.0) for name in order[:count]]
        ranges = partition(situation.layer_costs, count, slowness)
        alone = replicas.laid_out([order[:count]], ranges, pipelines, parameters)
        alone = with_standbys(alone, situation.copies, situation.nodes, situation.zones)
        return _with_all_copies(alone, before, situation)
    fastest = min(situation.slowness.get(name, 1.0) for name in order)
    slow = {name for name in order if situation.slowness.get(name, 1.0) > fastest * (1.0 + NOTICEABLE)}
    weights = Weights.of(shape.ranges, rows, pipelines, parameters, situation.passed)
    grid = laid_out_in_zones(order, rows, situation.zones, weights, _kept(before, shape.ranges, situation), slow)
    return _with_all_copies(replicas.laid_out(grid, shape.ranges, pipelines, parameters), before, situation)


def _with_all_copies(stages: Stages, before: Stages, situation: Situation) -> Stages:
    """With the standbys that repair gives the shape later: without these it would seem to send less than it will.

    Those that have no room beside ``before``, which is held until then, are left to repair.
    """
    budget = replace(situation.budget, target=before)
    while True:  # ends: each time a stage gets one copy more, and none gets more than is wanted
        more, _ = repair(stages, situation.nodes, (), situation.zones, situation.copies, budget)
        if more is stages:  # also where no node has memory for another one
            return stages
        hot = (replace(stage, standbys=tuple(replace(b, hot=True) for b in stage.standbys)) for stage in more)
        stages = tuple(hot)


def held_layers(stages: Stages) -> dict[str, frozenset[int]]:
    """The layers that each node has at the committed version; nodes that have the same share one set."""
    stages_of: dict[str, list[int]] = {}
    for s, stage in enumerate(stages):
        for node in stage.required():
            stages_of.setdefault(node, []).append(s)
    sets: dict[tuple[int, ...], frozenset[int]] = {}
    for held in map(tuple, stages_of.values()):
        if held not in sets:
            sets[held] = frozenset(x for s in held for x in stages[s].layers)
    return {node: sets[tuple(held)] for node, held in stages_of.items()}


def _kept(before: Stages, ranges: Ranges, situation: Situation) -> Held:
    """How many parameters of each of the new stages each node has."""
    stage_of = [s for s, (first, end) in enumerate(ranges) for _ in range(first, end)]
    found: dict[frozenset[int], tuple[tuple[int, float], ...]] = {}
    held = held_layers(before)
    for layers in set(held.values()):
        sizes: dict[int, float] = {}
        for layer in sorted(layers):
            sizes[stage_of[layer]] = sizes.get(stage_of[layer], 0.0) + situation.layer_parameters[layer]
        found[layers] = tuple((s, size) for s, size in sizes.items() if size > 0.0)
    return {node: found[layers] for node, layers in held.items()}
