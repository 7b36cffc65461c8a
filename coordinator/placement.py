"""Who holds what: the first placement, promotion after a loss, repair of redundancy, and relief at a commit.

Every function is pure and returns stages together with its reasons in words. Knows nothing of streams or time.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import replace

from pipeline.partition import partition
from pipeline.plan import StagePlan, Stages, Standby


def natural_order(nodes: Collection[str]) -> list[str]:
    """n2 before n10."""
    return sorted(nodes, key=lambda n: [(int(d) if d else 0, w) for d, w in re.findall(r"(\d+)|(\D+)", n)])


def ring_standby(owners: Sequence[str], stage: int) -> str | None:
    """The owner of the nearest earlier stage, going round, that does not own this one itself."""
    for back in range(1, len(owners)):
        node = owners[(stage - back) % len(owners)]
        if node != owners[stage]:
            return node
    return None


def place(nodes: Collection[str], costs: Sequence[float], stages: int, redundancy: bool) -> Stages:
    """The placement that a run, or an era, begins with: one stage a node in natural order, standbys in a ring.

    With fewer nodes than stages neighbours double up. Every holder starts from the same initial state, so every
    standby is hot at once.
    """
    order = natural_order(nodes)
    if len(order) >= stages:
        owners = order[:stages]
    else:
        owners = [order[s * len(order) // stages] for s in range(stages)]
    placed = []
    for s, (first, end) in enumerate(partition(costs, stages)):
        standby = ring_standby(owners, s) if redundancy else None
        placed.append(StagePlan(first, end, (owners[s],), (Standby(standby, True),) if standby else ()))
    return tuple(placed)


def promote(stages: Stages, lost: Collection[str]) -> tuple[Stages | None, list[str]]:
    """Moves every stage that a lost node owned to its hot standby and ends the lost nodes' standby duties.

    Returns None in place of the stages when a stage has no copy left.
    """
    reasons: list[str] = []
    moved: list[StagePlan] = []
    for s, stage in enumerate(stages):
        standbys = tuple(b for b in stage.standbys if b.node not in lost)
        owners = stage.owners
        if stage.owner in lost:
            heir = next((b.node for b in standbys if b.hot), None)
            if heir is None:
                return None, [f"stage {s} was held by {', '.join(stage.required())} alone: no copy is left"]
            owners = (heir,)
            standbys = tuple(b for b in standbys if b.node != heir)
            reasons.append(f"{heir} runs stage {s} for {stage.owner}, whose standby it was")
        elif len(standbys) < len(stage.standbys):
            reasons.append(f"stage {s} lost a standby")
        moved.append(replace(stage, owners=owners, standbys=standbys))
    return tuple(moved), reasons


def owned(stages: Stages, node: str) -> int:
    return sum(stage.owner == node for stage in stages)


def burden(stages: Stages, node: str) -> tuple[int, int]:
    """How much a node carries: (copies held, stages owned)."""
    return sum(node in stage.holders() for stage in stages), owned(stages, node)


def repair(stages: Stages, nodes: Collection[str], leaving: Collection[str] = ()) -> tuple[Stages, list[str]]:
    """Gives every stage without a standby, hot or on its way, one to be seeded: a spare, else who holds least.

    A standby that is about to leave does not count; ``nodes`` are those that stay.
    """
    reasons: list[str] = []
    for s, stage in enumerate(stages):
        if any(b.node not in leaving for b in stage.standbys):
            continue
        candidates = [n for n in natural_order(nodes) if n not in stage.holders()]
        if not candidates:
            continue
        chosen = min(candidates, key=lambda n: burden(stages, n))
        kind = "a spare" if burden(stages, chosen) == (0, 0) else "holding least"
        reasons.append(f"{chosen}, {kind}, is seeded as standby of stage {s}")
        stages = _with(stages, s, standbys=(*stage.standbys, Standby(chosen, False)))
    return stages, reasons


def hand_over(stages: Stages, leaving: Collection[str]) -> tuple[Stages, list[str]]:
    """Swaps the roles of owners that are about to leave and their hot standbys, and ends duties that others have."""
    reasons: list[str] = []
    for s, stage in enumerate(stages):
        staying = [b.node for b in stage.standbys if b.hot and b.node not in leaving]
        if stage.owner in leaving and staying:
            heir, *others = staying
            standbys = (Standby(stage.owner, True), *(b for b in stage.standbys if b.node != heir))
            stages = _with(stages, s, owners=(heir,), standbys=standbys)
            reasons.append(f"{heir} takes stage {s} over from {stage.owner}, which hands over")
            staying = others
        if staying:
            kept = tuple(b for b in stages[s].standbys if b.node not in leaving)
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
            reasons.append(f"{', '.join(fresh)} holds stage {s} at the committed version and is hot")
    stages, handed = hand_over(stages, leaving)
    reasons.extend(handed)
    if not redundancy:  # standbys exist only to hand over to
        for s, stage in enumerate(stages):
            stages = _with(stages, s, standbys=tuple(b for b in stage.standbys if not b.hot))
            if stage.owner in leaving:
                stages, asked = repair(stages, nodes, leaving)
                reasons.extend(asked)
        return stages, reasons
    for s, stage in enumerate(stages):
        hot = [b.node for b in stage.standbys if b.hot and b.node not in leaving]
        relief = min(hot, key=lambda n: owned(stages, n), default=None)
        if relief is not None and owned(stages, stage.owner) - owned(stages, relief) >= 2:
            standbys = (Standby(stage.owner, True), *(b for b in stage.standbys if b.node != relief))
            stages = _with(stages, s, owners=(relief,), standbys=standbys)
            reasons.append(f"{relief} takes stage {s} over from {stage.owner}, which ran several and now stands by")
    for s, stage in enumerate(stages):
        hot = [b.node for b in stage.standbys if b.hot]
        if len(hot) > 1:
            before = ring_standby([st.owner for st in stages], s)
            kept = before if before in hot else min(hot, key=lambda n: burden(stages, n))
            stages = _with(stages, s, standbys=tuple(b for b in stage.standbys if b.node == kept or not b.hot))
            reasons.append(f"stage {s} needs one standby and keeps {kept}")
    stages, repaired = repair(stages, nodes, leaving)
    stages, relieved = relieve(stages, nodes)
    return stages, [*reasons, *repaired, *relieved]


def relieve(stages: Stages, nodes: Collection[str]) -> tuple[Stages, list[str]]:
    """Starts seeding a node that owns nothing with a stage of a node that owns several, one move at a time."""
    seeding = {b.node for stage in stages for b in stage.standbys if not b.hot}
    idle = [n for n in natural_order(nodes) if owned(stages, n) == 0 and n not in seeding]
    busiest = max(range(len(stages)), key=lambda s: (owned(stages, stages[s].owner), s))
    owner = stages[busiest].owner
    if not idle or owned(stages, owner) < 2 or any(not b.hot for b in stages[busiest].standbys):
        return stages, []
    chosen = min(idle, key=lambda n: burden(stages, n))
    if chosen in stages[busiest].holders():
        return stages, []
    standbys = (*stages[busiest].standbys, Standby(chosen, False))
    return _with(stages, busiest, standbys=standbys), [f"{chosen} is seeded with stage {busiest} to relieve {owner}"]


def _with(stages: Stages, s: int, **changes: object) -> Stages:
    return (*stages[:s], replace(stages[s], **changes), *stages[s + 1 :])  # type: ignore[arg-type]
