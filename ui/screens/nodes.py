"""Every node: what it does, what it costs, where its time goes."""

import streamlit as st

from culm.protos import coordinator_pb2 as pb
from culm.ui.charts import time_split
from culm.ui.screens.widgets import banner, preempt
from culm.ui.source import Source
from culm.ui.words import money, size


@st.fragment(run_every=1.0)
def show(source: Source) -> None:
    look = source.look()
    banner(look)
    nodes = sorted(look.status.nodes, key=lambda node: node.id)
    if not nodes:
        st.caption("No node has joined yet. Start one with `culm stage`.")
        return
    st.dataframe([row(node) for node in nodes], hide_index=True, width="stretch")
    split = time_split(nodes)
    if split["data"]["values"]:
        st.subheader("Where the time goes")
        st.vega_lite_chart(None, split, width="stretch")
    preempt(source, look.status)


def row(node: pb.NodeStatus) -> dict[str, object]:
    """A line of the table."""
    machine = node.machine
    return {
        "node": node.id,
        "state": node.state,
        "stages": ", ".join(map(str, node.stages)),
        "standby of": ", ".join(map(str, node.standby_of)),
        "running": node.instruction,
        "machine": " ".join(filter(None, (machine.provider, machine.instance_type, machine.market))),
        "zone": node.zone,
        "$/h": node.price_per_hour,
        "spent": money(node.spent),
        "sent": size(sum(node.sent_bytes.values())),
        "address": node.address,
        "process": node.pid or None,
    }
