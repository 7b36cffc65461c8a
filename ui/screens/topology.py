"""Who runs what, as a picture that changes with it."""

import streamlit as st

from culm.ui import markup
from culm.ui.counting import chunks_of
from culm.ui.ring import FEWEST, MOST, in_words, ring_svg
from culm.ui.screens.graph import holders
from culm.ui.screens.widgets import TEXT_SECONDS, banner, panel, preempt, scheme
from culm.ui.source import Source
from culm.ui.stage_map import has_peers, lost_lately, stage_map
from culm.ui.standing import is_over, nobody_is_here


def show(source: Source) -> None:
    panel(picture, source, TEXT_SECONDS)
    preempt(source)


def picture(source: Source) -> None:
    look = source.look()
    banner(look)
    if chunks_of(look):
        holders(look)
        return
    status = look.status
    lost = lost_lately(status, look.history.gone, look.at)
    if not status.nodes and (is_over(look) or not lost):
        gone = "The nodes have gone: the run is over."
        st.html(markup.note(gone if is_over(look) else nobody_is_here(look)))
        return
    whole = stage_map(status, lost)
    if has_peers(status) or not FEWEST <= len(status.nodes) + len(lost) <= MOST:
        st.html(whole)
    else:  # a ring's letters would be too small on a phone
        with st.container(key="wide-ring"):
            st.image(ring_svg(status, lost, scheme()), width=860, alt=in_words(status, lost))
        with st.container(key="narrow-map"):
            st.html(whole)
    if status.plan.reason:
        st.html(markup.note(f"Plan {status.generation}: {status.plan.reason}"))
