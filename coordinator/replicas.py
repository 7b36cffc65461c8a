"""Stages that several nodes own, each for some of the pipelines: who runs which, and who adds up what. Pure."""

# A shape is replicas x stages: at every stage as many owners as there are replicas, each of which runs about as many
# pipelines. With D = 8 pipelines on 3 replicas of 2 stages:
#
#                 stage 0   stage 1
#     replica 0   n0        n1        pipelines 0, 1, 4
#     replica 1   n2        n3        pipelines 2, 3, 5
#     replica 2   n4        n5        pipelines 6, 7
#
# The pipelines of a replica are aligned to the tree by which gradients are added (``tree.divided``), so that few blocks
# are sent. Peers, the owners of one stage, are each other's copies: they need no standby. Any other ownership comes of
# lost nodes alone, and lasts until the shape follows (``repartition``).

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from heapq import heapify, heapreplace

from culm.pipeline import buckets, tree
from culm.pipeline.counting import STEPS, Counting, ranges
from culm.pipeline.plan import Buckets, StagePlan, Stages


def count(nodes: int, stages: int, pipelines: int) -> int:
    """How many replicas so many nodes make: as many as there are pipelines, at most."""
    return max(1, min(pipelines, nodes // stages))


def whole(nodes: Sequence[str], stages: int) -> list[list[str]]:
    """The owners ``[replica][stage]`` where each of the nodes runs all stages of its pipelines."""
    return [[node] * stages for node in nodes]


def laid_out(
    grid: Sequence[Sequence[str]], ranges: Sequence[tuple[int, int]], pipelines: int, costs: Sequence[float]
) -> Stages:
    """The stages of a shape. ``grid[replica][stage]`` are the owners, ``costs`` the layers' parameters."""
    replica_of = tree.divided(pipelines, len(grid))
    found = []
    for s, (first, end) in enumerate(ranges):
        owners = tuple(grid[replica][s] for replica in replica_of)
        counts = buckets.counts(costs[first:end], pipelines)
        slots = Buckets(counts, reducers(owners, by_bucket(costs[first:end], counts)))
        found.append(StagePlan(first, end, owners, (), slots))
    return tuple(found)


def by_bucket(costs: Sequence[float], counts: Sequence[int]) -> list[float]:
    """The costs of each layer's buckets. ``counts``: how many each has; empty where each is one."""
    return [cost / each for cost, each in zip(costs, counts or [1] * len(costs), strict=True) for _ in range(each)]


def reducers(owners: Sequence[str], costs: Sequence[float], before: Sequence[str] = ()) -> tuple[str, ...]:
    """Which of a stage's owners adds up each of its buckets; none where one node owns it in every pipeline.

    ``costs``: of the buckets. ``before``: who did; of these only those that are gone are replaced. The largest are
    given out first, each to the owner that has least so far.
    """
    distinct = list(dict.fromkeys(owners))
    if len(distinct) == 1:
        return ()
    slots = [name if name in distinct else "" for name in before] or [""] * len(costs)
    carried = dict.fromkeys(distinct, 0.0)
    for name, cost in zip(slots, costs, strict=True):
        if name:
            carried[name] += cost
    least = [(cost, i) for i, cost in enumerate(carried.values())]
    heapify(least)
    for slot in sorted((i for i, name in enumerate(slots) if not name), key=lambda i: (-costs[i], i)):
        cost, i = least[0]
        slots[slot] = distinct[i]
        heapreplace(least, (cost + costs[slot], i))
    return tuple(slots)


def duties(stages: Stages) -> Counter[str]:
    """How many duties each owner has: a stage in a pipeline each."""
    return Counter(owner for stage in stages for owner in stage.owners)


def moved(
    stage: StagePlan,
    gone: Collection[str],
    candidates: Sequence[str],
    load: Counter[str],
    costs: Sequence[float],
    lacks: Callable[[str, Sequence[str]], int] = lambda name, owners: 0,
) -> StagePlan:
    """The stage whose gone owners' pipelines the candidates take, the least loaded first, one at a time.

    ``load``: duties by node; it is kept up to date. An owner that was a standby stands by no more. ``lacks``: bytes
    that a node lacks if these are the owners; one that lacks none comes first, else who lacks least.
    """
    owners = list(stage.owners)
    for p, owner in enumerate(owners):
        if owner in gone:
            owners[p] = _heir(candidates, load, owners, p, lacks)
            load[owners[p]] += 1
    standbys = tuple(b for b in stage.standbys if b.node not in owners and b.node not in gone)
    counts = stage.buckets.counts
    slots = Buckets(counts, reducers(owners, by_bucket(costs, counts), stage.buckets.reducers))
    return StagePlan(stage.first_layer, stage.end_layer, tuple(owners), standbys, slots)


def _heir(
    candidates: Sequence[str],
    load: Counter[str],
    owners: Sequence[str],
    pipeline: int,
    lacks: Callable[[str, Sequence[str]], int],
) -> str:
    """Who takes the pipeline of these owners over."""

    def lacking(name: str) -> int:
        return lacks(name, [*owners[:pipeline], name, *owners[pipeline + 1 :]])

    order = sorted(candidates, key=lambda name: load[name])
    # Asked one by one: of a hundred peers the first nearly always has room.
    return next((name for name in order if not lacking(name)), None) or min(order, key=lacking)


def costs_of(stage: StagePlan, costs: Sequence[float]) -> Sequence[float]:
    """Of the stage's layers; all alike where nobody has told."""
    return costs[stage.first_layer : stage.end_layer] if costs else [1.0] * len(stage.layers)


def moved_in_words(s: int, before: StagePlan, after: StagePlan, counting: Counting = STEPS) -> str:
    """Who runs what of a stage in place of whom."""
    taken: dict[tuple[str, str], list[int]] = {}
    for p, (old, new) in enumerate(zip(before.owners, after.owners, strict=True)):
        if old != new:
            taken.setdefault((new, old), []).append(p)
    told = []
    for (heir, owner), pipelines in taken.items():
        role = ", the hot standby," if any(b.node == heir for b in before.standbys) else ""
        numbers = ", ".join(map(str, pipelines)) if counting == STEPS else ranges(pipelines)
        of = f" of {counting.share}{'s' * (len(pipelines) > 1)} {numbers}"
        told.append(f"{heir}{role} runs {counting.part} {s}{of if len(before.owners) > 1 else ''} in place of {owner}")
    return "; ".join(told)
