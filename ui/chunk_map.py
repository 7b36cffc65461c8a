"""Which graph server holds which chunks, as HTML: a band for each server. Pure.

A server runs all layers of its chunks, so the map of a graph has no stages.
"""

from html import escape

from culm.pipeline.counting import counted
from culm.protos import coordinator_pb2 as pb
from culm.ui.node_order import in_order
from culm.ui.stage_map import WIDE, cell, legend, runs

EACH = 256  # chunks with a cell each; of more, neighbours of one server share one
NARROW = "46px"  # of a cell with one number


def chunks_by_server(status: pb.GetStatusResponse) -> dict[str, list[int]]:
    """The chunks of each server, ascending. While one is lost a chunk may be of two, which run a layer of it each."""
    found: dict[str, list[int]] = {}
    for stage in status.plan.stages:
        for chunk, owner in enumerate(stage.owners):
            held = found.setdefault(owner, [])
            if chunk not in held:
                held.append(chunk)
    return {server: sorted(held) for server, held in found.items()}


def in_ranges(chunks: list[int]) -> str:
    """Such as ``0–3, 6``."""
    return ", ".join(_range(first, end) for first, end in _ranges(chunks))


def _ranges(chunks: list[int]) -> list[tuple[int, int]]:
    """Neighbours together: first and end."""
    grouped = runs([str(chunk - i) for i, chunk in enumerate(chunks)])
    return [(chunks[first], chunks[end - 1] + 1) for first, end, _ in grouped]


def _range(first: int, end: int) -> str:
    return str(first) if end == first + 1 else f"{first}–{end - 1}"


def chunk_map(status: pb.GetStatusResponse, lost: list[str]) -> str:
    """``lost``: servers that were lost a moment ago."""
    held = chunks_by_server(status)
    nodes = {node.id: node for node in sorted(status.nodes, key=in_order)}
    close = sum(map(len, held.values())) <= EACH
    bands = []
    for name, node in nodes.items():
        if name in held:
            bands.append(_band(name, node, held[name], close))
    gone = [name for name in held if name not in nodes]
    bands += [_band(name, None, held[name], close) for name in gone]
    idle = [cell(name, node, _stands_by(node), "", tell=True) for name, node in nodes.items() if name not in held]
    idle += [cell(name, None, "", "", tell=False) for name in lost if name not in held]
    others = ""
    if idle:
        title = f'<section class="culm-stage" style="margin:0.5rem 0"><h4>no chunk ({len(idle)})</h4>'
        others = f'{title}<div class="culm-cells">{"".join(idle)}</div></section>'
    return (
        f'<div class="culm-stages culm-bands culm-chunks" style="--cell:{NARROW if close else WIDE}" role="group" '
        f'aria-label="graph servers and the chunks that they hold">{"".join(bands)}</div>{others}'
        f"{legend(standbys=False)}"
    )


def in_words(status: pb.GetStatusResponse) -> str:
    """The map in words, for those who cannot see it."""
    return "; ".join(f"{server}: chunks {in_ranges(held)}" for server, held in chunks_by_server(status).items())


def _band(name: str, node: pb.NodeStatus | None, held: list[int], close: bool) -> str:
    parts = [(chunk, chunk + 1) for chunk in held] if close else _ranges(held)
    state = node.state if node is not None else "lost"
    words = [f"<strong>{escape(name)}</strong>{f' {escape(state)}' if state != 'active' else ''}"]
    words.append(counted(len(held), "chunk"))
    words += [escape(node.zone)] if node is not None and node.zone else []
    cells = "".join(cell(_range(*part), node, "", "", tell=False, told=False) for part in parts)
    return f'<section class="culm-stage"><h4>{"<br>".join(words)}</h4><div class="culm-cells">{cells}</div></section>'


def _stands_by(node: pb.NodeStatus) -> str:
    return "stands by" if node.standby_of else ""
