"""Every node that went, and how the others went on."""

import streamlit as st

from culm.ui.charts import timeline
from culm.ui.history import Preemption
from culm.ui.screens.widgets import banner, tiles
from culm.ui.source import Source
from culm.ui.words import clock, milliseconds, span

SHOWN = 40  # in the chart


@st.fragment(run_every=1.0)
def show(source: Source) -> None:
    look = source.look()
    banner(look)
    preemptions = look.history.preemptions
    if not preemptions:
        st.caption("No node has been lost or handed over yet. The page Topology has a button that preempts one.")
        return
    lost = [p for p in preemptions if p.kind != "handover"]
    resumed = sorted(p.resume_ms for p in lost if p.resume_ms is not None)
    tiles(
        ("Lost", str(len(lost)), ""),
        ("Handed over in time", str(len(preemptions) - len(lost)), ""),
        ("Resumed after (median)", milliseconds(resumed[len(resumed) // 2] if resumed else None), ""),
        ("Instructions redone", str(sum(p.redone or 0 for p in preemptions)), ""),
    )
    if lost:
        st.vega_lite_chart(None, timeline(lost[-SHOWN:]), width="stretch")
    st.dataframe([row(p) for p in reversed(preemptions)], hide_index=True, width="stretch")
    st.caption(
        "detect: the silence before the node was declared lost. The other times count from then: promote, to the plan "
        "without it; resume, to its heir's first instruction; restored, until every stage had a hot standby again. "
        "redone: instructions that ran a second time."
    )


def row(p: Preemption) -> dict[str, object]:
    """A line of the table."""
    return {
        "time": clock(p.time),
        "node": p.node,
        "what": p.kind,
        "step": p.step,
        "stages": p.stages,
        "notice": span(p.notice_seconds) if p.notice_seconds is not None else "none",
        "detect": milliseconds(p.detect_ms),
        "promote": milliseconds(p.promote_ms),
        "resume": milliseconds(p.resume_ms),
        "restored": milliseconds(p.restored_ms),
        "redone": p.redone,
        "why": p.why,
    }
