"""Every node: what it does, takes and costs, how that was before, and what its log says."""

from collections.abc import Collection

import streamlit as st

from culm.pipeline.counting import counted
from culm.protos import coordinator_pb2 as pb
from culm.ui import markup
from culm.ui.charts import bubble_share
from culm.ui.chunk_map import chunks_by_server, in_ranges
from culm.ui.counting import chunks_of
from culm.ui.curves import RANGES
from culm.ui.look import Look
from culm.ui.node_order import in_order
from culm.ui.screens import log_lines
from culm.ui.screens.node_charts import charts
from culm.ui.screens.widgets import (
    CHART_SECONDS,
    TABLE_SECONDS,
    TEXT_SECONDS,
    height_of,
    panel,
    preempt,
    show_banner,
)
from culm.ui.source import Source
from culm.ui.standing import is_over, nobody_is_here
from culm.ui.words import size, worth


def show(source: Source) -> None:
    panel(show_banner, source, TEXT_SECONDS)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        st.text_input("Nodes whose line contains", key="node", bind="query-params", width=260, placeholder="all")
        st.segmented_control("Range", list(RANGES), default="all", required=True, key="last", bind="query-params")
    panel(listing, source, TABLE_SECONDS)
    preempt(source)
    panel(charts, source, CHART_SECONDS)
    log_lines.choose(source)


def listing(source: Source) -> None:
    look = source.look()
    if not look.status.nodes:
        gone = "The nodes have gone: the run is over. The page Cost has the bill of each."
        st.html(markup.note(gone if is_over(look) else nobody_is_here(look)))
        return
    rows = [row(node, look) for node in sorted(look.status.nodes, key=in_order)]
    found = containing(rows, st.session_state.get("node") or "")
    st.html(markup.note(in_figures(look.status.nodes, len(found))))
    st.dataframe(
        found,
        hide_index=True,
        width="stretch",
        height=height_of(found),
        key="nodes",
        column_config={"bubble": st.column_config.ProgressColumn(format="%.0f%%", min_value=0.0, max_value=100.0)},
        alt="The nodes",
    )


def containing(rows: list[dict[str, object]], words: str) -> list[dict[str, object]]:
    sought = words.strip().lower()
    return [row for row in rows if not sought or sought in " ".join(map(str, row.values())).lower()]


def in_figures(nodes: Collection[pb.NodeStatus], shown: int) -> str:
    states: dict[str, int] = {}
    for node in nodes:
        states[node.state] = states.get(node.state, 0) + 1
    told = ", ".join(f"{count} {state}" for state, count in sorted(states.items(), key=lambda item: -item[1]))
    return f"{counted(len(nodes), 'node')}: {told}." + (f" {shown} shown." if shown < len(nodes) else "")


def row(node: pb.NodeStatus, look: Look) -> dict[str, object]:
    """A line of the table. What a node was paid ends with the run."""
    machine = node.machine
    bill = next((b for b in look.cost.nodes if (b.node, b.incarnation) == (node.id, node.incarnation)), None)
    paid = bill.dollars if bill else node.spent
    return {
        "node": node.id,
        "state": node.state,
        **runs_here(node, look),
        "stands by for": ", ".join(map(str, node.standby_of)),
        "runs now": node.instruction,
        "bubble": 100.0 * bubble_share(node),
        "memory": memory(node.resources),
        **({"tensor workers": helped(node.resources)} if node.resources.HasField("tensor_workers") else {}),
        "sent": size(sum(node.sent_bytes.values())),
        "machine": " ".join(filter(None, (machine.provider, machine.instance_type, machine.market))),
        "zone": node.zone,
        "$/h": f"{node.price_per_hour:.2f}" if node.price_per_hour else "–",
        "spent": worth(paid, bool(node.price_per_hour or paid)),
        "address": node.address,
        "process": str(node.pid or "–"),
    }


def runs_here(node: pb.NodeStatus, look: Look) -> dict[str, object]:
    """Its stages; of a graph its chunks, since a server runs all layers of them."""
    if chunks_of(look):
        return {"chunks": in_ranges(chunks_by_server(look.status).get(node.id, []))}
    return {"stages": ", ".join(map(str, node.stages))}


def helped(took: pb.Resources) -> str:
    """Who computes for a graph server, and how much so far."""
    work = took.tensor_workers
    waits = f", {work.waiting} tasks wait" if work.waiting else ""
    billed = f", {work.gigabyte_seconds:,.0f} GB-seconds" if work.gigabyte_seconds else ""
    return f"{work.workers}{waits}, {work.done:,} tasks in {work.seconds:,.0f} s{billed}"


def memory(took: pb.Resources) -> str:
    """What its process takes of the host's memory, and of how much."""
    return f"{size(took.resident_bytes)} of {size(took.memory_bytes)}" if took.memory_bytes else "–"
