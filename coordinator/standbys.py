"""Who stands by for a stage: how many copies there are to be, where they lie, repair after a loss, and even burdens."""

# ``copies`` counts all holders of a stage: its owners, who are each other's copies, and its standbys. With 1 there are
# no standbys, but while a node hands over. A stage with one owner has copies - 1 standbys, one with several owners has
# standbys only where the owners are too few.
#
# An era begins with a chain: the owners of the stages before, the nearest first. They have what the stage's forwards
# need, and one bulk loss of neighbours in that ring takes at least ``copies`` of them to lose a stage. Where the chain
# would keep all copies in one zone another node stands by.
#
# Later standbys are asked for one after the other (``repair``). A stage that has one copy comes first: as long as it
# is being given a second one no other stage is given a third, since all seeding shares one rate.
#
# Moves make something better, or nothing moves, so that moves come to an end:
#
#     separate     a standby is replaced by one outside the owner's zone, which holds no more copies
#     spread       of several standby duties of one node one goes to a node that holds two copies less
#
# A copy goes where the node's memory has room for it (``memory``).
#
# At the first commit of a move the new standby is named and is seeded. Once its copy is whole the stage has a standby
# too many, and ``trimmed`` takes one away. So at no moment does a move leave a stage with fewer copies than before it.

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from culm.coordinator.memory import UNBOUND, Budget, Room
from culm.coordinator.zones import NO_ZONES, Zones, apart, several
from culm.pipeline.counting import STEPS, Counting
from culm.pipeline.plan import StagePlan, Stages, Standby
from culm.pipeline.text import natural_order

PAIR = 2  # copies of a stage that one lost node does not take both


class Burdens:
    """How much each node carries: ``burdens[node]`` is (copies held, stages owned). Counted once for all nodes."""

    # Copies come before stages when nodes are compared: memory is what a holder runs out of.
    def __init__(self, stages: Stages) -> None:
        self.copies = Counter(node for stage in stages for node in stage.holders())
        self.owned = Counter(owner for stage in stages for owner in stage.distinct_owners)

    def __getitem__(self, node: str) -> tuple[int, int]:
        return self.copies[node], self.owned[node]


def chain(owners: Sequence[Sequence[str]], stage: int, count: int) -> list[str]:
    """So many owners of the nearest earlier stages, going round, that do not own this one themselves.

    ``owners[s]``: those of stage s. There are fewer where there are too few nodes.
    """
    found: list[str] = []
    for back in range(1, len(owners)):
        for node in owners[(stage - back) % len(owners)]:
            if len(found) == count:
                return found
            if node not in owners[stage] and node not in found:
                found.append(node)
    return found[:count]


def with_standbys(stages: Stages, copies: int, nodes: Collection[str], zones: Zones = NO_ZONES) -> Stages:
    """The same owners, with standbys that are all hot: by the chain, and where it stays in a zone by one of ``nodes``
    elsewhere.
    """
    owners = [stage.distinct_owners for stage in stages]
    placed = tuple(
        replace(stage, standbys=tuple(Standby(n, True) for n in chain(owners, s, wanted)))
        for s, stage in enumerate(stages)
        for wanted in [max(0, copies - len(owners[s]))]
    )
    # Ends: each move takes one stage out of those that share a zone with their standbys.
    while (move := _find_apart(placed, nodes, zones, copies, UNBOUND)) is not None:
        s, given_up, chosen = move
        kept = [b for b in placed[s].standbys if b.node != given_up]
        placed = with_stage(placed, s, standbys=(*kept, Standby(chosen, True)))
    return placed


def with_stage(stages: Stages, s: int, **changes: object) -> Stages:
    """Stage s changed, and all others the very same objects."""
    return (*stages[:s], replace(stages[s], **changes), *stages[s + 1 :])  # type: ignore[arg-type]


def repair(
    stages: Stages,
    nodes: Collection[str],
    leaving: Collection[str] = (),
    zones: Zones = NO_ZONES,
    copies: int = PAIR,
    budget: Budget = UNBOUND,
    counting: Counting = STEPS,
) -> tuple[Stages, list[str]]:
    """Gives every stage with too few copies, hot or on their way, one more to be seeded: a spare, else who holds least.

    Among spares, and among the others, one in another zone than the owner's comes first. A copy that is about to leave
    does not count; ``nodes`` are those that stay. Where no node has memory for it no copy is made, but of a stage of
    which every copy leaves.
    """
    reasons: list[str] = []
    for enough in range(PAIR, copies + 1):
        if enough > PAIR and is_seeding(stages):
            break
        stages, asked = _given_one_more(stages, nodes, leaving, zones, enough, budget, counting.part)
        reasons.extend(asked)
    return stages, reasons


def _given_one_more(
    stages: Stages,
    nodes: Collection[str],
    leaving: Collection[str],
    zones: Zones,
    copies: int,
    budget: Budget,
    part: str,
) -> tuple[Stages, list[str]]:
    reasons: list[str] = []
    lacking = [s for s, stage in enumerate(stages) if _lacks_standbys(stage, leaving, copies)]
    if not lacking:
        return stages, reasons
    order, carried, zoned, room = natural_order(nodes), Burdens(stages), several(zones), Room(budget, stages)
    for s in lacking:
        stage = stages[s]
        holders = stage.holders()
        candidates = [n for n in order if n not in holders]
        if not candidates:
            continue
        least = room.least_lacking(candidates, stage)
        fitting = room.fitting(candidates, stage)
        if not fitting and not all(n in leaving for n in stage.required()):
            reasons.append(f"no node has memory for another copy of {part} {s}: {room.in_words(least, stage)}")
            continue
        candidates = fitting or [least]
        owner = next((n for n in stage.distinct_owners if n not in leaving), stage.owners[0])
        # A spare comes first, also one in the owner's zone: as heir it has this stage alone to run.
        spares = [n for n in candidates if carried[n] == (0, 0)]
        elsewhere = [n for n in spares or candidates if apart(zones, owner, n)] if zoned else []
        chosen = min(elsewhere or spares or candidates, key=carried.__getitem__)
        kind = "a spare" if spares else "which holds the fewest copies"
        if elsewhere:
            kind += " in another zone than the owner" if spares else " of those in another zone than the owner"
        elif zoned:
            kind += " though not known to be in another zone than the owner"
        reasons.append(f"{chosen}, {kind}, is seeded as standby of {part} {s}")
        stages = with_stage(stages, s, standbys=(*stage.standbys, Standby(chosen, False)))
        carried.copies[chosen] += 1
        room.add(chosen, stage)
    return stages, reasons


def is_seeding(stages: Stages) -> bool:
    """Whether any copy is on its way."""
    return any(not b.hot for stage in stages for b in stage.standbys)


def _standbys_wanted(stage: StagePlan, leaving: Collection[str], copies: int) -> int:
    # An owner that leaves counts until it has handed over: whoever takes its place stands by already.
    return max(0, copies - max(1, _staying(stage.distinct_owners, leaving)))


def _lacks_standbys(stage: StagePlan, leaving: Collection[str], copies: int) -> bool:
    staying = _staying([b.node for b in stage.standbys], leaving)
    return staying < _standbys_wanted(stage, leaving, copies)


def _staying(nodes: Sequence[str], leaving: Collection[str]) -> int:
    return sum(node not in leaving for node in nodes) if leaving else len(nodes)


def trimmed(
    stages: Stages,
    leaving: Collection[str] = (),
    zones: Zones = NO_ZONES,
    copies: int = PAIR,
    counting: Counting = STEPS,
) -> tuple[Stages, list[str]]:
    """Takes away the hot standbys that stages do not need, now that others are hot as well."""
    reasons: list[str] = []
    for s, stage in enumerate(stages):
        # Where several owners stay a node that leaves is here to hand over, which takes until the next commit.
        several_stay = _staying(stage.distinct_owners, leaving) > 1
        handing_over = {b.node for b in stage.standbys if several_stay and b.node in leaving}
        hot = [b.node for b in stage.standbys if b.hot and b.node not in handing_over]
        wanted = _standbys_wanted(stage, leaving, copies)
        if len(hot) <= wanted:
            continue
        kept = _kept(stages, s, hot, wanted, zones) if wanted else []
        coming = {b.node for b in stage.standbys if wanted and not b.hot}
        staying = {*kept, *coming, *handing_over}
        stages = with_stage(stages, s, standbys=tuple(b for b in stage.standbys if b.node in staying))
        only = "one standby" if wanted == 1 else f"{wanted} standbys"
        needs = f"only {only} and keeps {', '.join(kept)}" if wanted else "no standby"
        why = f": it has {len(stage.distinct_owners)} owners" if several_stay else ""
        reasons.append(f"{counting.part} {s} needs {needs}{why}")
    return stages, reasons


def _kept(stages: Stages, s: int, hot: Sequence[str], wanted: int, zones: Zones) -> list[str]:
    """The standbys that a stage keeps of several: who holds least, then by the chain; one of them in another zone.

    Who holds least comes before the chain: else a standby that ``spread`` has moved would be moved back.
    """
    before, carried = chain([stage.distinct_owners for stage in stages], s, wanted), Burdens(stages)
    order = sorted(hot, key=lambda n: (carried.copies[n], n not in before, carried.owned[n]))
    elsewhere = [n for n in order if apart(zones, stages[s].owners[0], n)]
    kept = order[:wanted]
    if elsewhere and not set(kept) & set(elsewhere):
        kept[-1] = elsewhere[0]
    return kept


def _complete(stages: Stages, copies: int) -> Iterator[tuple[int, StagePlan]]:
    """The stages of one owner that have standbys, and none too many: of these one may move."""
    for s, stage in enumerate(stages):
        if len(stage.distinct_owners) == 1 and 1 <= len(stage.standbys) < copies:
            yield s, stage


def _find_apart(
    stages: Stages, nodes: Collection[str], zones: Zones, copies: int, budget: Budget
) -> tuple[int, str, str] | None:
    """A stage that shares its zone with all its standbys, one of these, and a node elsewhere that holds no more.

    Each such move leaves one stage less to be moved, and no node with more than one copy beyond the others.
    """
    together = [
        (s, stage)
        for s, stage in _complete(stages, copies)
        if not any(apart(zones, stage.owner, b.node) for b in stage.standbys)
    ]
    if not together or not several(zones):
        return None
    carried = Burdens(stages)
    lightest, room = sorted(natural_order(nodes), key=carried.__getitem__), Room(budget, stages)
    for s, stage in together:
        holders = stage.holders()
        given_up = max((b.node for b in stage.standbys), key=lambda n: carried.copies[n])
        elsewhere = (n for n in lightest if n not in holders and apart(zones, stage.owner, n))
        chosen = next((n for n in elsewhere if not room.lacks(n, stage)), None)
        if chosen is not None and carried.copies[chosen] <= carried.copies[given_up]:
            return s, given_up, chosen
    return None


def separate(
    stages: Stages, nodes: Collection[str], zones: Zones, copies: int = PAIR, budget: Budget = UNBOUND
) -> tuple[Stages, list[str]]:
    """Starts seeding a standby in another zone than its stage, one at a time and while nothing else is seeded."""
    move = None if is_seeding(stages) else _find_apart(stages, nodes, zones, copies, budget)
    if move is None:
        return stages, []
    s, given_up, chosen = move
    owner = stages[s].owner
    reason = f"{chosen}, in another zone than the owner {owner}, is seeded as standby of stage {s} in place of"
    reason += f" {given_up}, which is not known to be in another one"
    return with_stage(stages, s, standbys=(*stages[s].standbys, Standby(chosen, False))), [reason]


def spread(
    stages: Stages, nodes: Collection[str], zones: Zones = NO_ZONES, copies: int = PAIR, budget: Budget = UNBOUND
) -> tuple[Stages, list[str]]:
    """Starts seeding a node with a standby duty of one that has several and holds two copies more, one move at a time.

    After nodes were lost their duties lie with the others. A node that comes back, or a spare, is to share them.
    Every move makes the copies more even, so moves come to an end. A spare stays one while nobody has two duties.
    """
    if is_seeding(stages):
        return stages, []
    carried = Burdens(stages)
    lightest, room = sorted(natural_order(nodes), key=carried.__getitem__), Room(budget, stages)
    held = [(s, stage, b.node) for s, stage in _complete(stages, copies) for b in stage.standbys]
    for s, stage, standby in sorted(held, key=lambda each: -carried.copies[each[2]]):
        duties = carried.copies[standby] - carried.owned[standby]
        if duties < 2:
            continue
        lighter = [n for n in lightest if carried.copies[n] <= carried.copies[standby] - 2 and n not in stage.holders()]
        # An even load is worth less than a copy that survives the zone.
        if apart(zones, stage.owner, standby):
            lighter = [n for n in lighter if apart(zones, stage.owner, n)]
        if lighter := room.fitting(lighter, stage):
            reason = f"{lighter[0]}, which holds the fewest copies, is seeded as standby of stage {s} in place of"
            reason += f" {standby}, which stands by for {duties} stages"
            return with_stage(stages, s, standbys=(*stage.standbys, Standby(lighter[0], False))), [reason]
    return stages, []
