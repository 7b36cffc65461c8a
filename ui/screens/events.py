"""What happened and why."""

from datetime import UTC, tzinfo

import streamlit as st

from culm.pipeline.money.codec import Entry
from culm.pipeline.money.kinds import FREQUENT, KINDS
from culm.ui import markup
from culm.ui.counting import counting
from culm.ui.screens.widgets import TABLE_SECONDS, TEXT_SECONDS, height_of, panel, show_banner, zone, zone_note
from culm.ui.source import Source
from culm.ui.words import moment

SHOWN, SHOWN_NARROW = 500, 50
WIDTHS = {
    "when": 170,
    "step": 80,
    "epoch": 80,
    "kind": 130,
    "what and why": 940,
}  # pixels; a wider page stretches them all
OFFERED = sorted(kind for kind, known in KINDS.items() if known not in FREQUENT)


def show(source: Source) -> None:
    panel(show_banner, source, TEXT_SECONDS)
    with st.container(horizontal=True):
        st.multiselect("Kinds", OFFERED, placeholder="all", key="kinds", width=420, bind="query-params")
        st.text_input("Containing", key="words", width=320, bind="query-params")
    panel(listing, source, TABLE_SECONDS)


def listing(source: Source) -> None:
    look = source.look()
    here = zone()
    events = chosen(look.history.notable, st.session_state.get("kinds") or [], st.session_state.get("words") or "")
    step = counting(look).step
    rows = [row(event, here, step) for event in events[: -SHOWN - 1 : -1]]
    if not rows:
        st.html(markup.note("No event is known yet." if not look.history.notable else "No event is of this kind."))
        return
    with st.container(key="wide-events"):
        st.dataframe(
            rows,
            hide_index=True,
            width="stretch",
            height=height_of(rows, 560),
            key="events",
            column_config={name: st.column_config.Column(width=width) for name, width in WIDTHS.items()},
            alt="Events, the newest first",
        )
    with st.container(key="narrow-events"):  # of the table a phone shows everything but what happened
        newest = events[: -SHOWN_NARROW - 1 : -1]
        st.html(markup.told_events([(f"{moment(e.time, here)} · {step} {e.step:,}", e.kind, e.text) for e in newest]))
    st.html(
        markup.note(
            f"{len(events)} of {len(look.history.notable)} events, newest first. At most {SHOWN} are shown, on a "
            f"narrow page {SHOWN_NARROW}, without commits and usage: culm events lists all. {zone_note(look)}"
        )
    )


def chosen(events: list[Entry], kinds: list[str], words: str) -> list[Entry]:
    """The events of these kinds (of all, if none is chosen) that contain the words."""
    sought = words.strip().lower()
    return [e for e in events if (not kinds or e.kind in kinds) and sought in f"{e.kind} {e.text}".lower()]


def row(event: Entry, zone: tzinfo = UTC, step: str = "step") -> dict[str, object]:
    return {"when": moment(event.time, zone), step: event.step, "kind": event.kind, "what and why": event.text}
