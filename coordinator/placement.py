"""Who holds what: the first placement, promotion after a node is lost, repair of redundancy, and relief at a commit."""

# What a placement is made of:
#
# - *Owners.* One node a stage, neighbours doubling up where nodes are few. The order of nodes is the ring's, which
#   crosses zones at every step if there are several.
# - *Standbys.* The owner of stage s - 1 stands by for stage s, the last one for stage 0: it has the stage's inputs
#   anyway. Where that would keep both copies in one zone, or on one node, another node stands by.
#
# After a node is lost nothing is placed anew: ``promote`` moves as little as it can, since whatever moves has to be
# seeded or redone. ``repair`` then asks for new standbys. Only at commits are duties evened out again (``settle``), one
# move at a time, and every move has to make something better, so that moves come to an end:
#
#     relieve      a node that owns several stages gives one to a node that owns none
#     separate     a standby in its owner's zone is replaced by one elsewhere that holds no more copies
#     spread       of several standby duties of one node one goes to a node that holds two copies less
#
# A move takes two commits or more. At the first the new holder is named, not hot, and is seeded while training goes on.
# At the one at which its copy is at the committed version it becomes hot, and the stage gives up the standby that it
# does not need (``_kept_standby``). So at no moment does a move leave a stage with fewer copies than before it.
#
# Every function is pure and returns stages together with its reasons in words. Knows nothing of streams or time.

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import lru_cache

from culm.coordinator import replicas
from culm.coordinator.zones import NO_ZONES, Zones, apart, ring, several
from culm.pipeline.partition import partition
from culm.pipeline.plan import StagePlan, Stages, Standby


@lru_cache(maxsize=1 << 14)
def _words_and_numbers(name: str) -> list[tuple[int, str]]:
    return [(int(d) if d else 0, w) for d, w in re.findall(r"(\d+)|(\D+)", name)]


def natural_order(nodes: Collection[str]) -> list[str]:
    """n2 before n10."""
    return sorted(nodes, key=_words_and_numbers)


def ring_standby(owners: Sequence[str], stage: int) -> str | None:
    """The owner of the nearest earlier stage, going round, that does not own this one itself."""
    for back in range(1, len(owners)):
        node = owners[(stage - back) % len(owners)]
        if node != owners[stage]:
            return node
    return None


def place(
    nodes: Collection[str],
    costs: Sequence[float],
    stages: int,
    redundancy: bool,
    zones: Zones = NO_ZONES,
    pipelines: int = 1,
    parameters: Sequence[float] = (),
) -> Stages:
    """The placement that a run, or an era, begins with: as many replicas of all stages as the nodes make.

    The layers' ``costs`` decide where the model is cut, their ``parameters`` who adds up what; without these the costs.
    With one replica there are standbys, in a ring that crosses the zones; in natural order where there is one zone.
    With fewer nodes than stages neighbours double up. Every holder starts from the same initial state, so every standby
    is hot at once.
    """
    if (rows := replicas.count(len(nodes), stages, pipelines)) > 1:
        order = replicas.by_zone(natural_order(nodes), zones)
        grid = [order[r * stages : (r + 1) * stages] for r in range(rows)]
        return replicas.laid_out(grid, partition(costs, stages), pipelines, parameters or costs)
    order = ring(natural_order(nodes), zones, min(len(nodes), stages), redundancy)
    # Neighbours in the chain, not every so many stages: what one node runs in a row crosses no link.
    owners = [order[s * len(order) // stages] for s in range(stages)]
    return with_standbys(owners, partition(costs, stages), redundancy, nodes, zones, pipelines)


def with_standbys(
    owners: Sequence[str],
    ranges: Sequence[tuple[int, int]],
    redundancy: bool,
    nodes: Collection[str],
    zones: Zones = NO_ZONES,
    pipelines: int = 1,
) -> Stages:
    """Stages with their standbys, all hot: by the ring, and where it stays in a zone by one of ``nodes`` elsewhere.

    The owner of a stage runs it in every pipeline.
    """
    alone: list[StagePlan] = []
    for s, (first, end) in enumerate(ranges):
        # None where one node owns everything: then there is one copy, and the stage is exposed.
        standby = ring_standby(owners, s) if redundancy else None
        hot = (Standby(standby, True),) if standby else ()
        alone.append(StagePlan(first, end, (owners[s],) * pipelines, hot))
    # Ends: each move takes one stage out of those that share a zone with their standby.
    placed = tuple(alone)
    while (move := find_apart(placed, nodes, zones)) is not None:
        placed = _with(placed, move[0], standbys=(Standby(move[1], True),))
    return placed


def promote(stages: Stages, lost: Collection[str], costs: Sequence[float] = ()) -> tuple[Stages | None, list[str]]:
    """Moves every duty of a lost node to the stage's other owners or its hot standby, and ends what it stood by for.

    Returns None in place of the stages when a stage has no copy left. ``costs``: the layers' parameters.
    """
    # A standby that is still being seeded is no heir: its layers may be of different versions (rule 11). So a stage
    # whose owner and hot standby are lost has no copy left, though a node is halfway to one.
    reasons: list[str] = []
    moved: list[StagePlan] = []
    gone, load = frozenset(lost), replicas.duties(stages)
    for s, stage in enumerate(stages):
        # With a thousand stages a lost node concerns two or three: all others keep their very objects.
        if gone.isdisjoint(stage.holders()):
            moved.append(stage)
            continue
        standbys = tuple(b for b in stage.standbys if b.node not in gone)
        owners_lost = [owner for owner in stage.distinct_owners if owner in gone]
        if owners_lost:
            heirs = [n for n in stage.required() if n not in gone]
            if not heirs:
                return None, [f"stage {s} was held by {', '.join(stage.required())} alone: no copy is left"]
            after = replicas.moved(stage, gone, heirs, load, replicas.costs_of(stage, costs))
            reasons.append(replicas.moved_in_words(s, stage, after))
            moved.append(after)
            continue
        names = ", ".join(b.node for b in stage.standbys if b.node in gone)
        reasons.append(f"stage {s} lost its standby {names}")
        moved.append(replace(stage, standbys=standbys))
    return tuple(moved), reasons


class Burdens:
    """How much each node carries: ``burdens[node]`` is (copies held, stages owned). Counted once for all nodes."""

    # Copies come before stages when nodes are compared: memory is what a holder runs out of.
    def __init__(self, stages: Stages) -> None:
        self.copies = Counter(node for stage in stages for node in stage.holders())
        self.owned = Counter(owner for stage in stages for owner in stage.distinct_owners)

    def __getitem__(self, node: str) -> tuple[int, int]:
        return self.copies[node], self.owned[node]


def repair(
    stages: Stages, nodes: Collection[str], leaving: Collection[str] = (), zones: Zones = NO_ZONES
) -> tuple[Stages, list[str]]:
    """Gives every stage without a standby, hot or on its way, one to be seeded: a spare, else who holds least.

    Among spares, and among the others, one in another zone than the owner's comes first. A standby that is about to
    leave does not count; ``nodes`` are those that stay.
    """
    reasons: list[str] = []
    bare = [s for s, stage in enumerate(stages) if _is_bare(stage, leaving)]
    if not bare:
        return stages, reasons
    order, carried, zoned = natural_order(nodes), Burdens(stages), several(zones)
    for s in bare:
        stage = stages[s]
        holders = stage.holders()
        candidates = [n for n in order if n not in holders]
        if not candidates:
            continue
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
        reasons.append(f"{chosen}, {kind}, is seeded as standby of stage {s}")
        stages = _with(stages, s, standbys=(*stage.standbys, Standby(chosen, False)))
        carried.copies[chosen] += 1
    return stages, reasons


def _is_bare(stage: StagePlan, leaving: Collection[str]) -> bool:
    """Whether one copy at most stays, and none is on its way."""
    staying = [n for n in stage.distinct_owners if n not in leaving]
    return len(staying) < 2 and all(b.node in leaving for b in stage.standbys)


def hand_over(stages: Stages, leaving: Collection[str], costs: Sequence[float] = ()) -> tuple[Stages, list[str]]:
    """Swaps the roles of owners that are about to leave and their hot standbys, and ends duties that others have."""
    # The owner that leaves stays on as a hot standby until others have been seeded: it holds the newest state anyhow,
    # and if its heir is lost before, nothing is lost with it.
    reasons: list[str] = []
    load = replicas.duties(stages)
    for s, stage in enumerate(stages):
        staying = [b.node for b in stage.standbys if b.hot and b.node not in leaving]
        peers = [n for n in stage.distinct_owners if n not in leaving]
        if peers and len(peers) < len(stage.distinct_owners):
            after = replicas.moved(stage, leaving, [*peers, *staying], load, replicas.costs_of(stage, costs))
            kept = tuple(Standby(n, True) for n in stage.distinct_owners if n in leaving)
            stages = (*stages[:s], replace(after, standbys=(*kept, *after.standbys)), *stages[s + 1 :])
            reasons.append(replicas.moved_in_words(s, stage, after))
        elif stage.owners[0] in leaving and staying and not peers:
            heir, *others = staying
            before = ", ".join(stage.distinct_owners)
            handed = tuple(Standby(n, True) for n in stage.distinct_owners)
            standbys = (*handed, *(b for b in stage.standbys if b.node != heir))
            stages = (*stages[:s], stage.run_by(heir, standbys), *stages[s + 1 :])
            reasons.append(f"{heir} takes stage {s} over from {before}, which hands over what it holds")
            staying = others
        if staying or len(peers) > 1:
            kept = tuple(b for b in stages[s].standbys if b.node not in leaving)
            if kept != stages[s].standbys:
                stages = _with(stages, s, standbys=kept)
    return stages, reasons


def release(stages: Stages, node: str) -> Stages:
    """Ends what standby duties are left with a node that goes."""
    return tuple(replace(x, standbys=tuple(b for b in x.standbys if b.node != node)) for x in stages)


def settle(
    stages: Stages,
    nodes: Collection[str],
    seeded: Collection[tuple[int, str]],
    leaving: Collection[str] = (),
    redundancy: bool = True,
    zones: Zones = NO_ZONES,
    costs: Sequence[float] = (),
) -> tuple[Stages, list[str]]:
    """What changes at a commit: seeded standbys become hot, roles swap to relieve, spares are put to use.

    ``seeded`` are the (stage, node) pairs whose copies reach the committed version with this commit; ``nodes`` those
    that can be given work, ``leaving`` those that hand theirs over.
    """
    reasons: list[str] = []
    for s, stage in enumerate(stages):
        fresh = [b.node for b in stage.standbys if not b.hot and (s, b.node) in seeded]
        if fresh:
            standbys = tuple(Standby(b.node, b.hot or b.node in fresh) for b in stage.standbys)
            stages = _with(stages, s, standbys=standbys)
            reasons.extend(f"{n} is a hot standby of stage {s} from now on: its copy is complete" for n in fresh)
    stages, handed = hand_over(stages, leaving, costs)
    reasons.extend(handed)
    if not redundancy:  # standbys exist only to hand over to
        for s, stage in enumerate(stages):
            stages = _with(stages, s, standbys=tuple(b for b in stage.standbys if not b.hot))
            if set(stage.owners) <= set(leaving):
                stages, asked = repair(stages, nodes, leaving, zones)
                reasons.extend(asked)
        return stages, reasons
    # A difference of two, not of one: with one the roles would swap back at the next commit.
    owning = Burdens(stages).owned
    for s, stage in enumerate(stages):
        if len(stage.distinct_owners) > 1:
            continue  # its pipelines are spread anew with the shape
        hot = [b.node for b in stage.standbys if b.hot and b.node not in leaving]
        relief = min(hot, key=lambda n: owning[n], default=None)
        if relief is not None and owning[stage.owner] - owning[relief] >= 2:
            owning[stage.owner] -= 1
            owning[relief] += 1
            standbys = (Standby(stage.owner, True), *(b for b in stage.standbys if b.node != relief))
            stages = (*stages[:s], stage.run_by(relief, standbys), *stages[s + 1 :])
            reasons.append(
                f"{relief} takes stage {s} over from {stage.owner}, which ran several stages and now stands by for it"
            )
    for s, stage in enumerate(stages):
        hot = [b.node for b in stage.standbys if b.hot]
        if hot and sum(n not in leaving for n in stage.distinct_owners) > 1:
            stages = _with(stages, s, standbys=tuple(b for b in stage.standbys if b.node in leaving))
            reasons.append(f"stage {s} needs no standby: it has {len(stage.distinct_owners)} owners")
        elif len(hot) > 1:
            kept = _kept_standby(stages, s, hot, zones)
            stages = _with(stages, s, standbys=tuple(b for b in stage.standbys if b.node == kept or not b.hot))
            reasons.append(f"stage {s} needs only one standby and keeps {kept}")
    stages, repaired = repair(stages, nodes, leaving, zones)
    stages, relieved = relieve(stages, nodes, zones)
    stages, separated = separate(stages, nodes, zones)
    stages, spread_out = spread(stages, nodes, zones)
    return stages, [*reasons, *repaired, *relieved, *separated, *spread_out]


def _kept_standby(stages: Stages, s: int, hot: Sequence[str], zones: Zones) -> str:
    """The one standby that a stage keeps of several: in another zone, then who holds least, then by the ring.

    Who holds least comes before the ring: else a standby that ``spread`` has moved would be moved back.
    """
    before, carried = ring_standby([stage.owners[0] for stage in stages], s), Burdens(stages)
    hot = [n for n in hot if apart(zones, stages[s].owners[0], n)] or hot
    return min(hot, key=lambda n: (carried.copies[n], n != before, carried.owned[n]))


def find_apart(stages: Stages, nodes: Collection[str], zones: Zones) -> tuple[int, str] | None:
    """A stage that shares its zone with its only standby, and a node elsewhere that holds no more than that standby.

    Each such move leaves one stage less to be moved, and no node with more than one copy beyond the others.
    """
    together = [
        (s, stage)
        for s, stage in enumerate(stages)
        if _has_one_standby(stage) and not apart(zones, stage.owner, stage.standbys[0].node)
    ]
    if not together or not several(zones):
        return None
    carried = Burdens(stages)
    lightest = sorted(natural_order(nodes), key=carried.__getitem__)
    for s, stage in together:
        holders = stage.holders()
        chosen = next((n for n in lightest if n not in holders and apart(zones, stage.owner, n)), None)
        if chosen is not None and carried.copies[chosen] <= carried.copies[stage.standbys[0].node]:
            return s, chosen
    return None


def _has_one_standby(stage: StagePlan) -> bool:
    return len(stage.distinct_owners) == len(stage.standbys) == 1


def separate(stages: Stages, nodes: Collection[str], zones: Zones) -> tuple[Stages, list[str]]:
    """Starts seeding a standby in another zone than its stage, one at a time and while nothing else is seeded."""
    if any(not b.hot for stage in stages for b in stage.standbys):
        return stages, []
    move = find_apart(stages, nodes, zones)
    if move is None:
        return stages, []
    s, chosen = move
    owner, standby = stages[s].owner, stages[s].standbys[0].node
    reason = f"{chosen}, in another zone than the owner {owner}, is seeded as standby of stage {s} in place of"
    reason += f" {standby}, which is not known to be in another one"
    return _with(stages, s, standbys=(*stages[s].standbys, Standby(chosen, False))), [reason]


def relieve(stages: Stages, nodes: Collection[str], zones: Zones = NO_ZONES) -> tuple[Stages, list[str]]:
    """Starts seeding a node that owns nothing with a stage of a node that owns several, one move at a time.

    Of nodes that hold as much, one in another zone than the owner's: the owner stands by afterwards.
    """
    carried = Burdens(stages)
    busiest = max(range(len(stages)), key=lambda s: (carried.owned[stages[s].owners[0]], s))
    owner = stages[busiest].owners[0]
    if any(len(stage.distinct_owners) > 1 for stage in stages):
        return stages, []  # its pipelines are spread anew with the shape
    if carried.owned[owner] < 2 or any(not b.hot for b in stages[busiest].standbys):
        return stages, []
    # Who is being seeded for something else gets no second stage: seeding shares one limit of bytes a second.
    seeding = {b.node for stage in stages for b in stage.standbys if not b.hot}
    idle = [n for n in natural_order(nodes) if carried.owned[n] == 0 and n not in seeding]
    if not idle:
        return stages, []
    chosen = min(idle, key=lambda n: (carried[n], not apart(zones, owner, n)))
    if chosen in stages[busiest].holders():
        return stages, []
    standbys = (*stages[busiest].standbys, Standby(chosen, False))
    return _with(stages, busiest, standbys=standbys), [
        f"{chosen}, which runs no stage, is seeded with stage {busiest} to take it over from {owner}, which runs "
        f"{carried.owned[owner]}"
    ]


def spread(stages: Stages, nodes: Collection[str], zones: Zones = NO_ZONES) -> tuple[Stages, list[str]]:
    """Starts seeding a node with a standby duty of one that has several and holds two copies more, one move at a time.

    After nodes were lost their duties lie with the others. A node that comes back, or a spare, is to share them.
    Every move makes the copies more even, so moves come to an end. A spare stays one while nobody has two duties.
    """
    if any(not b.hot for stage in stages for b in stage.standbys):
        return stages, []
    carried = Burdens(stages)
    lightest = sorted(natural_order(nodes), key=carried.__getitem__)
    single = [(s, stage, stage.standbys[0].node) for s, stage in enumerate(stages) if _has_one_standby(stage)]
    for s, stage, standby in sorted(single, key=lambda each: -carried.copies[each[2]]):
        duties = carried.copies[standby] - carried.owned[standby]
        lighter = [n for n in lightest if carried.copies[n] <= carried.copies[standby] - 2 and n not in stage.holders()]
        # An even load is worth less than a copy that survives the zone.
        if apart(zones, stage.owner, standby):
            lighter = [n for n in lighter if apart(zones, stage.owner, n)]
        if duties > 1 and lighter:
            reason = f"{lighter[0]}, which holds the fewest copies, is seeded as standby of stage {s} in place of"
            reason += f" {standby}, which stands by for {duties} stages"
            return _with(stages, s, standbys=(*stage.standbys, Standby(lighter[0], False))), [reason]
    return stages, []


def _with(stages: Stages, s: int, **changes: object) -> Stages:
    return (*stages[:s], replace(stages[s], **changes), *stages[s + 1 :])  # type: ignore[arg-type]
