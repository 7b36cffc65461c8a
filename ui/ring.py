"""The ring of nodes as an SVG picture: who runs which stage, who stands by for whom. Pure.

A node's state has a shape and a word besides its colour, for those who do not see colours apart.
"""

import math
from html import escape
from itertools import pairwise

from culm.protos import coordinator_pb2 as pb
from culm.ui.palette import INK, PAGE, STATES

WIDTH, HEIGHT = 860, 560
CENTRE = (WIDTH / 2, HEIGHT / 2 - 10)
RADIUS = 165.0
SIZE = 26.0  # of a node's mark
FEWEST, MOST = 2, 12  # nodes in a ring; of one, or of more, a map of stages tells more
Point = tuple[float, float]


def ring_svg(status: pb.GetStatusResponse, lost: list[str], scheme: str) -> str:
    """The picture, on a page of the scheme "light" or "dark". ``lost``: nodes that were lost a moment ago."""
    ink = INK.on(scheme)
    nodes = {node.id: node for node in status.nodes}
    placed = places([*_in_order(status), *lost])
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'font-family="system-ui, sans-serif" fill="{ink}" color="{ink}">',
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z" fill="currentColor"/></marker></defs>',
    ]
    stages = status.plan.stages
    for stage, after in pairwise(stages):
        for one, other in zip(stage.owners, after.owners, strict=False):
            if one != other and one in placed and other in placed:
                parts.append(_edge(placed[one], placed[other], -0.10, "stroke-width='2.2'"))
    for s, stage in enumerate(stages):
        for standby in stage.standbys:
            owner = stage.owners[0]
            if owner in placed and standby.node in placed and owner != standby.node:
                dashes = "stroke-dasharray='7 5'" if standby.hot else "stroke-dasharray='1.5 6' stroke-linecap='round'"
                word = f"{s} hot" if standby.hot else f"{s} seeding"
                style = f"{dashes} stroke-width='1.8' opacity='0.75'"
                parts.append(_edge(placed[owner], placed[standby.node], -0.22, style, word, PAGE.on(scheme)))
    for name, at in placed.items():
        node = nodes.get(name)
        parts.append(_node(at, name, node, scheme))
    return "".join([*parts, _legend(scheme), "</svg>"])


def in_words(status: pb.GetStatusResponse, lost: list[str]) -> str:
    """The picture in words, for those who cannot see it."""
    told = [
        f"stage {s}: {', '.join(stage.owners)}, standby "
        + (", ".join(f"{b.node} ({'hot' if b.hot else 'being seeded'})" for b in stage.standbys) or "none")
        for s, stage in enumerate(status.plan.stages)
    ]
    others = [f"{node.id}: {node.state}" for node in status.nodes if node.state != "active"]
    return "; ".join([*told, *others, *(f"{name}: lost" for name in lost)]) or "no nodes"


def _in_order(status: pb.GetStatusResponse) -> list[str]:
    """Owners by stage, then those that only stand by, then the rest."""
    here = [node.id for node in status.nodes]
    owners = [owner for stage in status.plan.stages for owner in stage.owners]
    standbys = [standby.node for stage in status.plan.stages for standby in stage.standbys]
    return [name for name in dict.fromkeys([*owners, *standbys, *here]) if name in here]


def places(names: list[str]) -> dict[str, Point]:
    """Around the ring, the first at the top, clockwise."""
    turns = {name: 2 * math.pi * i / max(len(names), 1) - math.pi / 2 for i, name in enumerate(names)}
    x, y = CENTRE
    return {name: (x + 1.45 * RADIUS * math.cos(turn), y + RADIUS * math.sin(turn)) for name, turn in turns.items()}


def _edge(one: Point, other: Point, bend: float, style: str, word: str = "", page: str = "") -> str:
    (x1, y1), (x2, y2) = one, other
    length = math.hypot(x2 - x1, y2 - y1) or 1.0
    ux, uy = (x2 - x1) / length, (y2 - y1) / length
    gap = SIZE + 6
    x1, y1, x2, y2 = x1 + gap * ux, y1 + gap * uy, x2 - gap * ux, y2 - gap * uy
    cx, cy = (x1 + x2) / 2 - bend * length * uy, (y1 + y2) / 2 + bend * length * ux
    path = f"<path d='M{x1:.1f},{y1:.1f} Q{cx:.1f},{cy:.1f} {x2:.1f},{y2:.1f}'"
    line = f"{path} fill='none' stroke='currentColor' {style} marker-end='url(#head)'/>"
    if not word:
        return line
    mx, my = (x1 + 2 * cx + x2) / 4, (y1 + 2 * cy + y2) / 4
    halo = f"stroke='{page}' stroke-width='5' paint-order='stroke'"  # the word is read over the lines
    return f"{line}<text x='{mx:.1f}' y='{my + 4:.1f}' font-size='11.5' text-anchor='middle' {halo}>{word}</text>"


def _node(at: Point, name: str, node: pb.NodeStatus | None, scheme: str) -> str:
    x, y = at
    state = node.state if node is not None else "lost"
    lines = [f"<tspan font-weight='600'>{escape(name)}</tspan> · {escape(state)}"]
    if node is not None:
        if node.stages:
            lines.append(f"runs {_numbered(list(node.stages))}")
        if node.standby_of:
            lines.append(f"stands by for {', '.join(map(str, node.standby_of))}")
        if node.zone:
            lines.append(f"in {escape(node.zone)}")
    below = y >= CENTRE[1] - 1
    first = y + SIZE + 18 if below else y - SIZE - 8 - 15 * (len(lines) - 1)
    words = "".join(
        f"<text x='{x:.1f}' y='{first + 15 * i:.1f}' font-size='13' text-anchor='middle'>{line}</text>"
        for i, line in enumerate(lines)
    )
    inside = ",".join(map(str, node.stages)) if node is not None else ""
    label = f"<text x='{x:.1f}' y='{y + 5:.1f}' font-size='15' font-weight='700' text-anchor='middle'>{inside}</text>"
    return _mark(x, y, state, SIZE, scheme) + label + words


def _numbered(stages: list[int]) -> str:
    return f"stage{'s' if len(stages) > 1 else ''} {', '.join(map(str, stages))}"


def _mark(x: float, y: float, state: str, size: float, scheme: str) -> str:
    colour = STATES.get(state, STATES["spare"]).on(scheme)
    look = f"fill='{colour}' stroke='{colour}' fill-opacity='0.16' stroke-width='2.5'"
    if state == "lost":
        a = size * 0.7
        cross = f"M{x - a:.1f},{y - a:.1f} L{x + a:.1f},{y + a:.1f} M{x - a:.1f},{y + a:.1f} L{x + a:.1f},{y - a:.1f}"
        return f"<path d='{cross}' stroke='{colour}' stroke-width='4' stroke-linecap='round'/>"
    if state == "draining":
        return f"<path d='M{x},{y - size} L{x + size},{y} L{x},{y + size} L{x - size},{y} z' {look}/>"
    if state == "detached":
        return f"<path d='M{x},{y - size} L{x + size},{y + size * 0.8} L{x - size},{y + size * 0.8} z' {look}/>"
    if state == "joining":
        a = size * 0.85
        return f"<rect x='{x - a:.1f}' y='{y - a:.1f}' width='{2 * a:.1f}' height='{2 * a:.1f}' rx='4' {look}/>"
    dashed = " stroke-dasharray='5 4'" if state == "spare" else ""
    return f"<circle cx='{x:.1f}' cy='{y:.1f}' r='{size:.1f}' {look}{dashed}/>"


def _legend(scheme: str) -> str:
    parts, y = [], HEIGHT - 16
    for i, state in enumerate(STATES):
        x = 60 + 105 * i
        parts.append(_mark(x, y, state, 8.0, scheme))
        parts.append(f"<text x='{x + 15}' y='{y + 4}' font-size='12'>{state}</text>")
    for x, word, dashes in ((700, "data", ""), (775, "standby", " stroke-dasharray='7 5'")):
        parts.append(f"<line x1='{x}' y1='{y}' x2='{x + 30}' y2='{y}' stroke='currentColor' stroke-width='2'{dashes}/>")
        parts.append(f"<text x='{x + 36}' y='{y + 4}' font-size='12'>{word}</text>")
    return "".join(parts)
