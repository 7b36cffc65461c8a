"""What happened and why."""

import streamlit as st

from culm.pipeline.money.codec import Entry
from culm.ui.screens.widgets import banner
from culm.ui.source import Source
from culm.ui.words import clock

SHOWN = 500


@st.fragment(run_every=1.0)
def show(source: Source) -> None:
    look = source.look()
    banner(look)
    kinds = sorted({event.kind for event in look.history.notable})
    with st.container(horizontal=True):
        wanted = st.multiselect("Kinds", kinds, placeholder="all", key="kinds", width=420)
        words = st.text_input("Containing", key="words", width=320)
    events = chosen(look.history.notable, wanted, words)
    st.dataframe([row(event) for event in events[: -SHOWN - 1 : -1]], hide_index=True, width="stretch", height=560)
    st.caption(
        f"{len(events)} of {len(look.history.notable)} events, newest first. The table shows {SHOWN} at most, without "
        "commits and usage: `culm events` lists all."
    )


def chosen(events: list[Entry], kinds: list[str], words: str) -> list[Entry]:
    """The events of these kinds (of all, if none is chosen) that contain the words."""
    sought = words.strip().lower()
    return [e for e in events if (not kinds or e.kind in kinds) and sought in f"{e.kind} {e.text}".lower()]


def row(event: Entry) -> dict[str, object]:
    return {"time": clock(event.time), "step": event.step, "kind": event.kind, "what and why": event.text}
