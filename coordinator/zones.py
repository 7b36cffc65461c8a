"""Zones: which nodes a single outage takes together, a ring that crosses them, and what crossing costs."""

# A stage's standby is its predecessor in the ring. So for a stage and its standby to be apart every neighbour in the
# ring has to be in another zone, and then activations cross at every boundary: no order of such a ring is cheaper.
#
#     zones a a b b, in order of name:    n0(a) n1(a) n2(b) n3(b)    stages 1 and 3 have both copies in one zone
#     the ring that crosses:              n0(a) n2(b) n1(a) n3(b)    every stage is apart from its standby
#
# An odd ring leaves one pair in one zone: ``standbys.with_standbys`` gives that stage a standby from elsewhere. Where
# a node does not say its zone it may be in any: it is apart from nobody, for all that is known.

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from types import MappingProxyType

from culm.pipeline.plan import Stages

Zones = Mapping[str, str]  # node -> zone; a node whose zone is empty or missing may be in any
NO_ZONES: Zones = MappingProxyType({})
GRADIENT_BYTES = 4  # of a parameter gradient in float32


def apart(zones: Zones, one: str, other: str) -> bool:
    """Whether the two nodes are known to be in different zones."""
    a, b = zones.get(one, ""), zones.get(other, "")
    return bool(a and b) and a != b


def several(zones: Zones) -> bool:
    """Whether there is any other zone to go to."""
    return len({z for z in zones.values() if z}) > 1


def ring(nodes: Sequence[str], zones: Zones, count: int, crossing: bool) -> list[str]:
    """``count`` of the nodes in the order in which they own stages, as few as can be next to their own zone.

    The zones give about as many nodes each, and within a zone the order stays. Where nothing is won by ``crossing``
    the zones follow one another, the largest first, so that few boundaries cross. With one zone the order is the
    nodes' own.
    """
    groups: dict[str, list[str]] = {}
    for node in nodes:
        groups.setdefault(zones.get(node, ""), []).append(node)
    if not several({n: zones.get(n, "") for n in nodes}):
        return list(nodes[:count])
    if not crossing:
        return [n for group in sorted(groups.values(), key=len, reverse=True) for n in group][:count]
    rounds = [n for one_of_each in zip_longest(*groups.values()) for n in one_of_each if n is not None]
    chosen = [[n for n in group if n in rounds[:count]] for group in groups.values()]
    listed = [n for group in sorted(chosen, key=len, reverse=True) for n in group]
    # Every second place first: two of a zone meet only if it has more than half of all.
    places = [*range(0, count, 2), *range(1, count, 2)]
    return [node for _, node in sorted(zip(places, listed, strict=True))]


@dataclass(frozen=True, slots=True)
class Crossing:
    """What a step sends between zones under a placement.

    ``boundaries`` of ``all_boundaries`` between stages, of every pipeline, are crossed by every microbatch's activation
    and its gradient; ``gradient_bytes`` of parameter gradients go to copies in other zones. ``together``: stages whose
    copies share a zone, for all that is known.
    """

    boundaries: int
    all_boundaries: int
    gradient_bytes: int
    together: tuple[int, ...]


def crossing(stages: Stages, zones: Zones, parameters: Sequence[float]) -> Crossing:
    """Counts what crosses; ``parameters[i]`` is the number of layer i's parameters."""
    pairs = [pair for p in range(len(stages[0].owners)) for pair in pairwise(stage.owners[p] for stage in stages)]
    sent, together = 0.0, []
    for s, stage in enumerate(stages):
        copies = [*stage.distinct_owners, *(b.node for b in stage.standbys)]
        away = [node for node in copies[1:] if apart(zones, copies[0], node)]
        sent += len(away) * GRADIENT_BYTES * sum(parameters[x] for x in stage.layers)
        if len(copies) > 1 and not away:
            together.append(s)
    return Crossing(sum(apart(zones, *pair) for pair in pairs), len(pairs), round(sent), tuple(together))


def in_words(stages: Stages, zones: Zones, parameters: Sequence[float]) -> str:
    """Who is apart and what that costs, for the reason of a placement; empty where there is one zone."""
    if not several({n: zones.get(n, "") for stage in stages for n in stage.holders()}):
        return ""
    counted = crossing(stages, zones, parameters)
    held = "every standby is in another zone than its stage's owner"
    if counted.together:
        held = f"owner and standby may be in one zone at these stages: {', '.join(map(str, counted.together))}"
    if not any(stage.standbys for stage in stages):
        held = "stages of one zone follow one another"
    return (
        f"{held}; between zones a step sends {counted.gradient_bytes / 1e6:.1f} MB of parameter gradients, "
        f"and activations at {counted.boundaries} of {counted.all_boundaries} boundaries"
    )
