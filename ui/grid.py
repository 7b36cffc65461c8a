"""Several pipelines as an SVG grid: pipelines down, stages across, in each cell the node that runs it. Pure.

Neighbouring pipelines of one owner are one cell, so that a node stands there once. Below stand the nodes that run
nothing: standbys, spares and those that were just lost.
"""

from collections.abc import Mapping
from html import escape

from culm.protos import coordinator_pb2 as pb
from culm.ui.ring import COLOURS, SHOWN_SECONDS, in_words

WIDTH = 860
LEFT, TOP = 64, 26  # of the numbers of pipelines, and of stages
ROW, GAP = 24, 3
LEGEND = 26


def has_peers(status: pb.GetStatusResponse) -> bool:
    """Whether some stage has several owners: then a ring would not show who runs what."""
    return any(len(set(stage.owners)) > 1 for stage in status.plan.stages)


def grid_svg(status: pb.GetStatusResponse, gone: Mapping[str, float], now: float, ink: str) -> str:
    """The picture. ``gone``: when each lost node was lost, in unix seconds. ``ink``: the page's colour of text."""
    nodes = {node.id: node for node in status.nodes}
    lost = [name for name, at in gone.items() if name not in nodes and now - at < SHOWN_SECONDS]
    stages = status.plan.stages
    pipelines = max((len(stage.owners) for stage in stages), default=0)
    width = (WIDTH - LEFT) / max(1, len(stages))
    parts = [_text(LEFT + width * (s + 0.5), TOP - 8, f"stage {s}") for s in range(len(stages))]
    parts += [_text(LEFT - 10, TOP + ROW * (p + 0.5) + 4, f"p{p}", "end") for p in range(pipelines)]
    for s, stage in enumerate(stages):
        for first, end, owner in _runs(list(stage.owners)):
            node = nodes.get(owner)
            state = node.state if node is not None else "lost"
            at = (LEFT + width * s, TOP + ROW * first, width - GAP, ROW * (end - first) - GAP)
            parts.append(_cell(at, owner, state, node.instruction if node is not None else ""))
    y = TOP + ROW * pipelines + 24
    for line in _idle(status, lost):
        parts.append(_text(LEFT, y, line, "start"))
        y += 18
    height = y + LEGEND
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'font-family="sans-serif" fill="{ink}" color="{ink}"><title>{escape(in_words(status, lost))}</title>'
    )
    return "".join([head, *parts, _legend(height - 10), "</svg>"])


def _runs(owners: list[str]) -> list[tuple[int, int, str]]:
    """Neighbouring pipelines of one owner: first, end, owner."""
    found: list[tuple[int, int, str]] = []
    for p, owner in enumerate(owners):
        if found and found[-1][2] == owner:
            found[-1] = (found[-1][0], p + 1, owner)
        else:
            found.append((p, p + 1, owner))
    return found


def _idle(status: pb.GetStatusResponse, lost: list[str]) -> list[str]:
    """Who runs nothing, a line for each kind."""
    owners = {owner for stage in status.plan.stages for owner in stage.owners}
    standbys = [
        f"{b.node} for {s} ({'hot' if b.hot else 'seeding'})"
        for s, stage in enumerate(status.plan.stages)
        for b in stage.standbys
    ]
    others = [n for n in status.nodes if n.id not in owners and not n.standby_of]
    lines = {
        "standbys": standbys,
        "run nothing": [f"{n.id} ({n.state})" for n in others],
        "lost": lost,
    }
    return [f"{what}: {', '.join(names)}" for what, names in lines.items() if names]


def _cell(at: tuple[float, float, float, float], name: str, state: str, running: str) -> str:
    x, y, width, height = at
    colour = COLOURS.get(state, COLOURS["spare"])
    dashes = "" if state == "active" else " stroke-dasharray='5 4'"
    box = (
        f"<rect x='{x:.1f}' y='{y:.1f}' width='{width:.1f}' height='{height:.1f}' rx='4' fill='{colour}' "
        f"fill-opacity='0.22' stroke='{colour}' stroke-width='1.5'{dashes}/>"
    )
    words = name if state == "active" else f"{name} · {state}"
    if running and width > 8 * (len(words) + len(running)):
        words += f" · {running}"
    return box + _text(x + width / 2, y + height / 2 + 4, words)


def _text(x: float, y: float, words: str, anchor: str = "middle") -> str:
    return f"<text x='{x:.1f}' y='{y:.1f}' font-size='12' text-anchor='{anchor}'>{escape(words)}</text>"


def _legend(y: float) -> str:
    parts = []
    for i, (state, colour) in enumerate(COLOURS.items()):
        x = LEFT + 120 * i
        parts.append(f"<rect x='{x}' y='{y - 9}' width='10' height='10' fill='{colour}'/>")
        parts.append(_text(x + 16, y, state, "start"))
    return "".join(parts)
