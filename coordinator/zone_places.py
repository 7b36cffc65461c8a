"""Which zone gives the owner of which stage in which replica: activations stay in one, copies lie in several. Pure."""

# Places are a grid: a row is a replica, a column is a stage. Activations pass along rows, parameter gradients along
# columns. With 6 nodes in each of the zones a and b, 4 in zone c, and 4 stages:
#
#     a a a a      no boundary is crossed                a a a a      one boundary is crossed, and fewer gradients:
#     b b b b                                            b b b b      every stage is in two zones in place of three
#     c c c c                                            a a b b
#
# What comes first:
#
#     1  every stage has owners in two zones or more: an outage of any one zone leaves a copy of each
#     2  few bytes between zones; while nobody knows how large activations are few boundaries, then few gradients
#
# Two ways are tried, each with all zones and with as few of the largest as have nodes enough:
#
#     whole rows     as many replicas as lie in one zone each; the others are made of what the zones have left
#     pairs first    two rows that take one zone after the other, and of no zone more places than a row has. So the two
#                    places of a stage are in different zones, whatever the other rows are. Where the nodes can keep the
#                    owners of every stage apart at all, this does
#
# A node that names no zone may be in any: it is apart from nobody, and nothing is known to cross on the way to it.

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from culm.coordinator.zones import GRADIENT_BYTES

UNKNOWN = ""  # the zone of nodes that name none

Row = tuple[str, ...]  # the zone of each stage's owner


@dataclass(frozen=True, slots=True)
class Weights:
    """Bytes of a step: each stage's parameter gradient, and what one replica sends over each boundary, both ways.

    ``activations`` is empty while nobody knows. Invariant: else it has one entry less than ``gradients``.
    """

    gradients: tuple[float, ...]
    activations: tuple[float, ...] = ()

    @staticmethod
    def of(
        ranges: Sequence[tuple[int, int]],
        rows: int,
        pipelines: int,
        parameters: Sequence[float],
        passed: Sequence[float] = (),
    ) -> "Weights":
        """Of stages that are cut like this. ``parameters`` and ``passed``: of each layer, as ``crossing`` has them."""
        of_replica = 2 * pipelines / rows  # there and back
        return Weights(
            tuple(GRADIENT_BYTES * sum(parameters[first:end]) for first, end in ranges),
            tuple(of_replica * passed[end - 1] for _, end in ranges[:-1]) if passed else (),
        )


def places(nodes: Mapping[str, int], rows: int, weights: Weights) -> list[Row]:
    """The zones of so many replicas; ``nodes``: how many each zone has, which are enough in sum."""
    stages = len(weights.gradients)
    order = sorted(nodes, key=lambda zone: (zone == UNKNOWN, -nodes[zone]))
    fewest = next(i for i in range(1, len(order) + 1) if sum(nodes[z] for z in order[:i]) >= rows * stages)
    tried = []
    for count in dict.fromkeys((max(fewest, min(2, len(order))), len(order))):
        left = {zone: nodes[zone] for zone in order[:count]}
        tried += [_whole_rows(dict(left), stages, rows, spared=1), _pairs_first(dict(left), stages, rows)]
    return min(tried, key=lambda found: _crossed(found, weights))


def apart(found: Sequence[Row]) -> int:
    """How many stages have owners in two zones or more."""
    columns = zip(*dict.fromkeys(found), strict=True)
    return sum(len({zone for zone in column if zone != UNKNOWN}) > 1 for column in columns)


def most_apart(nodes: Mapping[str, int], stages: int) -> int:
    """How many stages any places of two replicas or more can keep apart: one for each pair of nodes in two zones."""
    named = [count for zone, count in nodes.items() if zone != UNKNOWN]
    return min(stages, sum(named) // 2, sum(named) - max(named)) if named else 0


def _crossed(found: Sequence[Row], weights: Weights) -> tuple[float, ...]:
    """What is to be least: stages in one zone, then what crosses."""
    alike, rows = Counter(found), len(found)
    boundaries, sent = 0, 0.0
    for row, count in alike.items():
        crossed = [s for s, (one, other) in enumerate(pairwise(row)) if UNKNOWN != one != other != UNKNOWN]
        boundaries += count * len(crossed)
        if weights.activations:
            sent += count * sum(weights.activations[s] for s in crossed)
    gradients = 0.0
    for s, size in enumerate(weights.gradients):
        owners: Counter[str] = Counter()
        for row, count in alike.items():
            if row[s] != UNKNOWN:
                owners[row[s]] += count
        # Each owner adds up a share of the stage: it is sent the others' parts of that, and sends them the sum.
        named = sum(owners.values())
        gradients += 2 * size * sum(count * (named - count) for count in owners.values()) / rows
    together = len(weights.gradients) - apart(found)
    return (together, sent + gradients, boundaries) if weights.activations else (together, boundaries, gradients)


def _whole_rows(left: dict[str, int], stages: int, rows: int, spared: int = 0) -> list[Row]:
    """Takes from ``left``, whose largest zone comes first. ``spared``: rows that others get if they can fill one."""
    # The largest zone first, and as much of it as may be: the fewer owners are elsewhere, the fewer gradients cross.
    found: list[Row] = []
    others = any(count >= stages for zone, count in list(left.items())[1:] if zone != UNKNOWN)
    for zone, count in left.items():
        most = rows - len(found) - (spared if others and not found else 0)
        taken = min(count // stages, most)
        found += [(zone,) * stages] * taken
        left[zone] -= taken * stages
    return found + _of_what_is_left(left, stages, rows - len(found))


def _of_what_is_left(left: dict[str, int], length: int, rows: int) -> list[Row]:
    """Rows that change their zone seldom: each takes the zone that just fills it, else the largest, and goes on."""
    sizes = sorted((count, -i, zone) for i, (zone, count) in enumerate(left.items()) if count)
    found: list[Row] = []
    for _ in range(rows):
        row: list[str] = []
        while len(row) < length:
            needed = length - len(row)
            at = bisect_left(sizes, (needed,))
            count, order, zone = sizes.pop(min(at, len(sizes) - 1))
            taken = min(count, needed)
            row += [zone] * taken
            left[zone] -= taken
            if count > taken:
                insort(sizes, (count - taken, order, zone))
        found.append(tuple(row))
    return found


def _pairs_first(left: dict[str, int], stages: int, rows: int) -> list[Row]:
    """Takes from ``left``, whose largest zone comes first."""
    count = most_apart(left, stages)
    pairs: list[str] = []
    for zone in [zone for zone in left if zone != UNKNOWN]:
        taken = min(left[zone], count, 2 * count - len(pairs))
        pairs += [zone] * taken
        left[zone] -= taken
    ends = _of_what_is_left(left, stages - count, 2)
    first = [(*pairs[i * count : (i + 1) * count], *end) for i, end in enumerate(ends)]
    return first + _whole_rows(left, stages, rows - 2)
