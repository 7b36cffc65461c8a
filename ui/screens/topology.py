"""Who runs what, as a picture that changes with it."""

import streamlit as st

from culm.ui.grid import grid_svg, has_peers
from culm.ui.ring import ring_svg
from culm.ui.screens.widgets import banner, preempt
from culm.ui.source import Source
from culm.ui.words import literal


@st.fragment(run_every=0.5)
def show(source: Source) -> None:
    look = source.look()
    banner(look)
    preempt(source, look.status)
    if not look.status.nodes:
        st.caption("No node has joined yet. Start one with `culm stage`.")
        return
    ink = "#fafafa" if st.context.theme.type == "dark" else "#31333f"
    picture = grid_svg if has_peers(look.status) else ring_svg
    st.image(picture(look.status, look.history.gone, look.at, ink), width=860)
    plan = look.status.plan
    st.caption(f"Plan {look.status.generation}: {literal(plan.reason)}")
