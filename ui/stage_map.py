"""Who runs what, as HTML: a card for each stage, or a band where a stage has several owners. Pure.

It stays readable from one node to some hundreds. A state has a word and a frame besides its colour, for those who do
not see colours apart. Neighbouring pipelines of one owner are one cell.
"""

from collections.abc import Mapping
from html import escape

from culm.pipeline.counting import counted
from culm.protos import coordinator_pb2 as pb
from culm.ui.palette import STATES

SHOWN_SECONDS = 20.0  # that a lost node stays in the picture
LINED_UP = 2  # owners of a stage with which it is a card; with more it is a band
WIDE, CLOSE, SMALL = "150px", "112px", "92px"  # of a card at least: of few stages, of many; of a node among many
MANY, MANY_NODES = 24, 48  # stages and nodes, of which more tell less each, closer to each other


def lost_lately(status: pb.GetStatusResponse, gone: Mapping[str, float], now: float) -> list[str]:
    """Nodes that were lost a moment ago and are not back."""
    here = {node.id for node in status.nodes}
    return [name for name, at in gone.items() if name not in here and now - at < SHOWN_SECONDS]


def has_peers(status: pb.GetStatusResponse) -> bool:
    """Whether some stage has several owners: then a ring would not show who runs what."""
    return any(len(set(stage.owners)) > 1 for stage in status.plan.stages)


def stage_map(status: pb.GetStatusResponse, lost: list[str]) -> str:
    nodes = {node.id: node for node in status.nodes}
    stages = status.plan.stages
    bands = any(len(set(stage.owners)) > LINED_UP for stage in stages)
    close = len(stages) > MANY or len(nodes) > MANY_NODES
    parts = [_stage(s, stage, nodes, close, bands) for s, stage in enumerate(stages)]
    kind = "culm-stages culm-bands" if bands else "culm-stages"
    card, cell = (CLOSE, SMALL) if close else (WIDE, WIDE)
    return (
        f'<div class="{kind}" style="--least:{card};--cell:{cell}" role="group" '
        f'aria-label="stages and who runs them">{"".join(parts)}</div>{_others(status, lost)}{legend()}'
    )


def legend(standbys: bool = True) -> str:
    marks = "".join(f'<span><i style="{_state(state)}"></i>{state}</span>' for state in STATES)
    marks += "<span>dashed: stands by</span><span>dotted: is being seeded</span>" if standbys else ""
    return f'<div class="culm-legend">{marks}</div>'


def _state(state: str) -> str:
    return f"--state:var(--culm-state-{state if state in STATES else 'spare'})"


def _stage(s: int, stage: pb.StagePlan, nodes: Mapping[str, pb.NodeStatus], close: bool, band: bool) -> str:
    layers = f"layers {stage.first_layer}–{stage.end_layer - 1}" if stage.end_layer > stage.first_layer + 1 else ""
    layers = layers or f"layer {stage.first_layer}"
    cells = [
        cell(owner, nodes.get(owner), _pipelines(first, end, len(stage.owners)), "", tell=not close)
        for first, end, owner in runs(list(stage.owners))
    ]
    for standby in stage.standbys:
        word, kind = ("hot", "culm-stands") if standby.hot else ("seeding", "culm-seeds")
        cells.append(cell(standby.node, nodes.get(standby.node), "" if close else word, kind, tell=False))
    title = f"stage {s}" if close and not band else f"stage {s} · {layers}"
    if band:
        title = f"stage {s}<br>{layers}<br>{counted(len(set(stage.owners)), 'owner')}"
    return f'<section class="culm-stage"><h4>{title}</h4><div class="culm-cells">{"".join(cells)}</div></section>'


def runs(owners: list[str]) -> list[tuple[int, int, str]]:
    """Neighbouring pipelines of one owner: first, end, owner."""
    found: list[tuple[int, int, str]] = []
    for p, owner in enumerate(owners):
        if found and found[-1][2] == owner:
            found[-1] = (found[-1][0], p + 1, owner)
        else:
            found.append((p, p + 1, owner))
    return found


def _pipelines(first: int, end: int, of: int) -> str:
    if of <= 1 or (first, end) == (0, of):
        return ""
    return f"p{first}" if end == first + 1 else f"p{first}–{end - 1}"


def cell(name: str, node: pb.NodeStatus | None, note: str, kind: str, tell: bool, told: bool = True) -> str:
    """``tell``: with the zone; ``told``: with the state, where it is not the usual one."""
    state = node.state if node is not None else "lost"
    words = [] if state == "active" or not told else [state]
    words += [note] if note else []
    if tell and node is not None and node.zone:
        words.append(node.zone)
    small = f" <small>{escape(' · '.join(words))}</small>" if words else ""
    return f'<span class="culm-cell {kind}" style="{_state(state)}">{escape(name)}{small}</span>'


def _others(status: pb.GetStatusResponse, lost: list[str]) -> str:
    """Nodes that no stage names, and those that were just lost."""
    named = {owner for stage in status.plan.stages for owner in stage.owners}
    named |= {standby.node for stage in status.plan.stages for standby in stage.standbys}
    idle = [cell(node.id, node, "", "", tell=True) for node in status.nodes if node.id not in named]
    idle += [cell(name, None, "", "", tell=False) for name in lost]
    if not idle:
        return ""
    return (
        f'<section class="culm-stage" style="margin:0.5rem 0"><h4>no stage ({len(idle)})</h4>'
        f'<div class="culm-cells">{"".join(idle)}</div></section>'
    )
