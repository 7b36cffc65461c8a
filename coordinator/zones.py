"""Zones: which nodes a single outage takes together, and a ring of nodes that crosses them."""

# A stage's standby is its predecessor in the ring. So for a stage and its standby to be apart every neighbour in the
# ring has to be in another zone, and then activations cross at every boundary: no order of such a ring is cheaper.
#
#     zones a a b b, in order of name:    n0(a) n1(a) n2(b) n3(b)    stages 1 and 3 have both copies in one zone
#     the ring that crosses:              n0(a) n2(b) n1(a) n3(b)    every stage is apart from its standby
#
# An odd ring leaves one pair in one zone: ``standbys.with_standbys`` gives that stage a standby from elsewhere. Where
# a node does not say its zone it may be in any: it is apart from nobody, for all that is known.

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from types import MappingProxyType

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


def in_several_zones(nodes: Iterable[str], zones: Zones) -> bool:
    """Whether no single outage takes all of the nodes, as far as their zones are known."""
    return len({zones[node] for node in nodes if zones.get(node)}) > 1


def first_of_several(nodes: Sequence[str], count: int, zones: Zones) -> list[str]:
    """The first ``count`` nodes; where one outage takes these, the first that it spares is in the last one's place."""
    chosen = list(nodes[:count])
    if len(chosen) > 1 and not in_several_zones(chosen, zones):
        others = (name for name in nodes[count:] if in_several_zones([*chosen[:-1], name], zones))
        chosen[-1] = next(others, chosen[-1])
    return chosen


def in_turns(nodes: Iterable[str], zones: Zones) -> list[str]:
    """The first node of each zone, then the second of each, and so on; within a zone the order stays."""
    groups: dict[str, list[str]] = {}
    for node in nodes:
        groups.setdefault(zones.get(node, ""), []).append(node)
    return [n for one_of_each in zip_longest(*groups.values()) for n in one_of_each if n is not None]


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
    taken = set(in_turns(nodes, zones)[:count])
    chosen = [[n for n in group if n in taken] for group in groups.values()]
    listed = [n for group in sorted(chosen, key=len, reverse=True) for n in group]
    # Every second place first: two of a zone meet only if it has more than half of all.
    places = [*range(0, count, 2), *range(1, count, 2)]
    return [node for _, node in sorted(zip(places, listed, strict=True))]
