"""Which node runs which stage in which replica: in the place of its zone, and where it holds most already. Pure."""

# ``zone_places`` says which zone gives the owner of each stage in each replica. Here nodes take the places of their
# zone. Whoever holds most of a stage's layers takes a place of that stage, as long as there is one: so little has to
# move. Nodes that hold nothing of use take the places that are left, one replica after the other.

from collections.abc import Collection, Mapping, Sequence
from itertools import islice

from culm.coordinator.zone_places import UNKNOWN, Weights, places
from culm.coordinator.zones import Zones, several

# node -> (stage, how much of it the node holds), all of which are more than nothing
Held = Mapping[str, tuple[tuple[int, float], ...]]


def laid_out_in_zones(
    nodes: Sequence[str], rows: int, zones: Zones, weights: Weights, held: Held, later: Collection[str] = ()
) -> list[list[str]]:
    """The owners of so many replicas, ``[replica][stage]``. Nodes that are left over are in none.

    ``nodes``: enough for all replicas, in the order in which they are used; those of ``later`` after all others.
    """
    groups: dict[str, list[str]] = {}
    apart = several({n: zones.get(n, UNKNOWN) for n in nodes})
    for node in nodes:
        groups.setdefault(zones.get(node, UNKNOWN) if apart else UNKNOWN, []).append(node)
    if apart:
        found = places({zone: len(group) for zone, group in groups.items()}, rows, weights)
    else:
        found = [(UNKNOWN,) * len(weights.gradients)] * rows
    columns: dict[str, list[int]] = {}  # of each zone's places, one replica after the other
    for row in found:
        for s, zone in enumerate(row):
            columns.setdefault(zone, []).append(s)
    taken = {zone: _taken(groups[zone], of_zone, held, set(later)) for zone, of_zone in columns.items()}
    return [[taken[zone][s].pop(0) for s, zone in enumerate(row)] for row in found]


def _taken(nodes: Sequence[str], columns: Sequence[int], held: Held, later: Collection[str]) -> dict[int, list[str]]:
    """Of one zone: the nodes of each column, in the order of replicas; there are as many as ``columns`` names it."""
    room: dict[int, int] = {}
    for s in columns:
        room[s] = room.get(s, 0) + 1
    taken: dict[int, list[str]] = {s: [] for s in room}
    for now in (False, True):
        # By what they hold: a thousand nodes that hold the same are one case.
        alike: dict[tuple[tuple[int, float], ...], list[str]] = {}
        using = [node for node in nodes if (node in later) is now]
        for node in using:
            alike.setdefault(held.get(node, ()), []).append(node)
        groups = [(which, iter(names)) for which, names in alike.items()]
        wanted = sorted((-size, g, s) for g, (which, _) in enumerate(groups) for s, size in which if s in room)
        placed: set[str] = set()
        for _, g, s in wanted:
            found = list(islice(groups[g][1], room[s] - len(taken[s])))
            taken[s] += found
            placed.update(found)
        others = iter([node for node in using if node not in placed])
        before, passed = {s: len(names) for s, names in taken.items()}, dict.fromkeys(taken, 0)
        for s in columns:
            passed[s] += 1
            if passed[s] > before[s] and (node := next(others, "")):
                taken[s].append(node)
    return taken
