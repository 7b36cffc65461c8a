"""What several pages show."""

import streamlit as st

from culm.protos import coordinator_pb2 as pb
from culm.ui.source import Look, Source
from culm.ui.words import literal, money


def banner(look: Look) -> None:
    """What everybody has to know first: a silent coordinator, the phase, a stall, stages without a hot standby."""
    status = look.status
    if look.problem:
        st.warning(literal(look.problem), icon=":material/cloud_off:")
    if status.phase == "failed":
        st.error(f"The run failed: {literal(status.detail)}")
    elif status.phase == "waiting":
        st.info(f"Waiting: {literal(status.detail)}", icon=":material/hourglass:")
    elif status.phase == "paused":
        st.info(f"Paused: {literal(status.detail)}", icon=":material/pause_circle:")
    elif status.phase == "done":
        st.success(f"Done: {literal(status.detail)}")
    if status.stalled_seconds:
        told = f"No commit for {status.stalled_seconds:.0f} s. Waiting for {literal(status.awaited)}"
        st.error(told, icon=":material/running_with_errors:")
    exposed = {s: seconds for s, seconds in sorted(status.exposure.items()) if seconds > 0}
    if exposed and status.phase == "running" and len(status.nodes) > 1:
        told = ", ".join(f"stage {s} for {seconds:.1f} s" for s, seconds in exposed.items())
        st.warning(f"Without a hot standby: {told}", icon=":material/shield:")


def preempt(source: Source, status: pb.GetStatusResponse) -> None:
    """A button that kills a node, where the coordinator allows it."""
    names = sorted(node.id for node in status.nodes)
    if not status.kill_allowed or not names:
        st.caption("This page may preempt nodes if the coordinator is started with `--allow-kill`.")
        return
    with st.container(horizontal=True, vertical_alignment="bottom"):
        node = st.selectbox("Node", names, key="victim", width=220)
        pressed = st.button(
            "Preempt it now", type="primary", icon=":material/bolt:", help="kill -9, as a spot market would"
        )
    if pressed and node:
        st.toast(literal(source.kill(node)), icon=":material/bolt:")


def spent(cost: pb.GetCostResponse) -> tuple[str, str, str]:
    """The tile of the money that the run has cost, as ``tiles`` takes it."""
    hour = money(cost.dollars_per_hour)
    return ("Spent", money(cost.dollars), f"{hour} an hour {'at the end' if cost.done else 'now'}")


def tiles(*each: tuple[str, str, str]) -> None:
    """Figures beside each other, each with its title and a note."""
    for column, (title, figure, more) in zip(st.columns(len(each)), each, strict=True):
        column.metric(title, figure, more or None, delta_color="off", delta_arrow="off", border=True, height="stretch")
