"""Who owns what: the first placement, promotion after a node is lost, handing over, and relief at a commit."""

# What a placement is made of:
#
# - *Owners.* One node a stage, neighbours doubling up where nodes are few. The order of nodes is the ring's, which
#   crosses zones at every step if there are several.
# - *Standbys* (``standbys``). The owners of the stages before, as many as there are to be copies.
#
# After a node is lost nothing is placed anew: ``promote`` moves as little as it can, since whatever moves has to be
# seeded or redone. ``repair`` then asks for new standbys. Only at commits are duties evened out again (``settle``), one
# move at a time, and every move has to make something better, so that moves come to an end:
#
#     relieve              a node that owns several stages gives one to a node that owns none
#     separate, spread     standbys move: see ``standbys``
#
# Every function is pure and returns stages together with its reasons in words. Knows nothing of streams or time.

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from culm.coordinator import replicas
from culm.coordinator.layout import laid_out_in_zones
from culm.coordinator.memory import UNBOUND, Budget
from culm.coordinator.remembering import remembering
from culm.coordinator.standbys import PAIR, Burdens, repair, separate, spread, trimmed, with_stage, with_standbys
from culm.coordinator.zone_places import Weights
from culm.coordinator.zones import NO_ZONES, Zones, apart, first_of_several, ring
from culm.pipeline.counting import STEPS, Counting
from culm.pipeline.partition import partition
from culm.pipeline.plan import StagePlan, Stages, Standby
from culm.pipeline.text import natural_order


def place(
    nodes: Collection[str],
    costs: Sequence[float],
    stages: int,
    *,
    copies: int,
    zones: Zones = NO_ZONES,
    pipelines: int = 1,
    parameters: Sequence[float] = (),
    passed: Sequence[float] = (),
    whole_pipelines: bool = False,
) -> Stages:
    """The placement that a run, or an era, begins with: as many replicas of all stages as the nodes make.

    The layers' ``costs`` decide where the model is cut, their ``parameters`` who adds up what; without these the costs.
    ``passed``: as in ``crossing.StepBytes``. Replicas lie in zones as ``zone_places`` has it. ``whole_pipelines``: a
    node runs all stages of its pipelines.
    With one replica the owners are a ring that crosses the zones; in natural order where there is one zone. With fewer
    nodes than stages neighbours double up. Every holder starts from the same initial state, so every standby is hot at
    once.
    """
    ranges = partition(costs, stages)
    if whole_pipelines:
        grid = replicas.whole(first_of_several(natural_order(nodes), pipelines, zones), stages)
    elif (rows := replicas.count(len(nodes), stages, pipelines)) > 1:
        weights = Weights.of(ranges, rows, pipelines, parameters or costs, passed)
        grid = laid_out_in_zones(natural_order(nodes), rows, zones, weights, {})
    else:
        order = ring(natural_order(nodes), zones, min(len(nodes), stages), copies > 1)
        # Neighbours in the chain, not every so many stages: what one node runs in a row crosses no link.
        grid = [[order[s * len(order) // stages] for s in range(stages)]]
    return with_standbys(replicas.laid_out(grid, ranges, pipelines, parameters or costs), copies, nodes, zones)


def promote(
    stages: Stages,
    lost: Collection[str],
    costs: Sequence[float] = (),
    budget: Budget = UNBOUND,
    counting: Counting = STEPS,
) -> tuple[Stages | None, list[str]]:
    """Moves every duty of a lost node to the stage's other owners or its hot standby, and ends what it stood by for.

    Returns None in place of the stages when a stage has no copy left. ``costs``: the layers' parameters. An heir is one
    that has memory for the work, if there is one.
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
                return None, [f"{counting.part} {s} was held by {', '.join(stage.required())} alone: no copy is left"]
            lacks = _lacking(budget, (*moved, *stages[s:]), s)
            after = replicas.moved(stage, gone, heirs, load, replicas.costs_of(stage, costs), lacks)
            reasons.append(replicas.moved_in_words(s, stage, after, counting))
            moved.append(after)
            continue
        names = ", ".join(b.node for b in stage.standbys if b.node in gone)
        reasons.append(f"{counting.part} {s} lost its standby {names}")
        moved.append(replace(stage, standbys=standbys))
    return tuple(moved), reasons


def _lacking(budget: Budget, stages: Stages, s: int) -> Callable[[str, Sequence[str]], int]:
    """Bytes that a node lacks if stage s has these owners."""

    def lacks(name: str, owners: Sequence[str]) -> int:
        if not budget.binds(name):
            return 0
        # Whoever owns a stage stands by for it no more.
        standbys = tuple(b for b in stages[s].standbys if b.node != name)
        return budget.lacks(name, with_stage(stages, s, owners=tuple(owners), standbys=standbys))

    return lacks


def hand_over(
    stages: Stages,
    leaving: Collection[str],
    costs: Sequence[float] = (),
    budget: Budget = UNBOUND,
    counting: Counting = STEPS,
) -> tuple[Stages, list[str]]:
    """Swaps the roles of owners that are about to leave and their hot standbys, and ends duties that others have."""
    # The owner that leaves stays on as a hot standby until others have been seeded: it holds the newest state anyhow,
    # and if its heir is lost before, nothing is lost with it.
    reasons: list[str] = []
    load = replicas.duties(stages)
    for s, stage in enumerate(stages):
        staying = [b.node for b in stage.standbys if b.hot and b.node not in leaving]
        peers = [n for n in stage.distinct_owners if n not in leaving]
        if peers and len(peers) < len(stage.distinct_owners):
            lacks = _lacking(budget, stages, s)
            after = replicas.moved(stage, leaving, [*peers, *staying], load, replicas.costs_of(stage, costs), lacks)
            kept = tuple(Standby(n, True) for n in stage.distinct_owners if n in leaving)
            stages = (*stages[:s], replace(after, standbys=(*kept, *after.standbys)), *stages[s + 1 :])
            reasons.append(replicas.moved_in_words(s, stage, after, counting))
        elif stage.owners[0] in leaving and staying and not peers:
            lacks = _lacking(budget, stages, s)
            heir, *others = sorted(staying, key=lambda name: lacks(name, [name] * len(stage.owners)))
            before = ", ".join(stage.distinct_owners)
            handed = tuple(Standby(n, True) for n in stage.distinct_owners)
            standbys = (*handed, *(b for b in stage.standbys if b.node != heir))
            stages = (*stages[:s], stage.run_by(heir, standbys), *stages[s + 1 :])
            reasons.append(f"{heir} takes {counting.part} {s} over from {before}, which hands over what it holds")
            staying = others
        if staying or len(peers) > 1:
            kept = tuple(b for b in stages[s].standbys if b.node not in leaving)
            if kept != stages[s].standbys:
                stages = with_stage(stages, s, standbys=kept)
    return stages, reasons


def release(stages: Stages, node: str) -> Stages:
    """Ends what standby duties are left with a node that goes."""
    return tuple(replace(x, standbys=tuple(b for b in x.standbys if b.node != node)) for x in stages)


# Asked at every commit, and mostly about what the one before left.
@remembering(answers=1)
def settle(
    stages: Stages,
    nodes: Collection[str],
    seeded: Collection[tuple[int, str]],
    leaving: Collection[str] = (),
    copies: int = PAIR,
    zones: Zones = NO_ZONES,
    costs: Sequence[float] = (),
    budget: Budget = UNBOUND,
    counting: Counting = STEPS,
) -> tuple[Stages, tuple[str, ...]]:
    """What changes at a commit: seeded standbys become hot, roles swap to relieve, spares are put to use.

    ``seeded`` are the (stage, node) pairs whose copies reach the committed version with this commit; ``nodes`` those
    that can be given work, ``leaving`` those that hand theirs over.
    """
    reasons: list[str] = []
    for s, stage in enumerate(stages):
        fresh = [b.node for b in stage.standbys if not b.hot and (s, b.node) in seeded]
        if fresh:
            standbys = tuple(Standby(b.node, b.hot or b.node in fresh) for b in stage.standbys)
            stages = with_stage(stages, s, standbys=standbys)
            of = f"{counting.part} {s}"
            reasons.extend(f"{n} is a hot standby of {of} from now on: its copy is complete" for n in fresh)
    stages, handed = hand_over(stages, leaving, costs, budget, counting)
    reasons.extend(handed)
    if copies == 1:  # standbys exist only to hand over to
        for s, stage in enumerate(stages):
            stages = with_stage(stages, s, standbys=tuple(b for b in stage.standbys if not b.hot))
            if set(stage.owners) <= set(leaving):
                stages, asked = repair(stages, nodes, leaving, zones, budget=budget, counting=counting)
                reasons.extend(asked)
        return stages, tuple(reasons)
    # A difference of two, not of one: with one the roles would swap back at the next commit.
    owning = Burdens(stages).owned
    for s, stage in enumerate(stages):
        if len(stage.distinct_owners) > 1:
            continue  # its pipelines are spread anew with the shape
        lacks, pipelines = _lacking(budget, stages, s), len(stage.owners)
        hot = [b.node for b in stage.standbys if b.hot and b.node not in leaving]
        lighter = [n for n in hot if owning[stage.owner] - owning[n] >= 2 and not lacks(n, [n] * pipelines)]
        relief = min(lighter, key=lambda n: owning[n], default=None)
        if relief is not None:
            owning[stage.owner] -= 1
            owning[relief] += 1
            standbys = (Standby(stage.owner, True), *(b for b in stage.standbys if b.node != relief))
            stages = (*stages[:s], stage.run_by(relief, standbys), *stages[s + 1 :])
            reasons.append(
                f"{relief} takes stage {s} over from {stage.owner}, which ran several stages and now stands by for it"
            )
    stages, dropped = trimmed(stages, leaving, zones, copies, counting)
    stages, repaired = repair(stages, nodes, leaving, zones, copies, budget, counting)
    stages, relieved = relieve(stages, nodes, zones, budget)
    stages, separated = separate(stages, nodes, zones, copies, budget)
    stages, spread_out = spread(stages, nodes, zones, copies, budget)
    return stages, (*reasons, *dropped, *repaired, *relieved, *separated, *spread_out)


def relieve(
    stages: Stages, nodes: Collection[str], zones: Zones = NO_ZONES, budget: Budget = UNBOUND
) -> tuple[Stages, list[str]]:
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
    lacks, pipelines = _lacking(budget, stages, busiest), len(stages[busiest].owners)
    best = sorted(idle, key=lambda n: (carried[n], not apart(zones, owner, n)))
    chosen = next((n for n in best if not lacks(n, [n] * pipelines)), None)
    if chosen is None or chosen in stages[busiest].holders():
        return stages, []
    standbys = (*stages[busiest].standbys, Standby(chosen, False))
    return with_stage(stages, busiest, standbys=standbys), [
        f"{chosen}, which runs no stage, is seeded with stage {busiest} to take it over from {owner}, which runs "
        f"{carried.owned[owner]}"
    ]
