"""Every incident: a node that went, a rollback, another coordinator, a stall. One of them has a page of its own."""

from collections import Counter
from datetime import tzinfo
from functools import partial

import streamlit as st

from culm.pipeline.counting import counted
from culm.pipeline.money.codec import Entry
from culm.pipeline.money.example_prices import WORDS as EXAMPLE_PRICES
from culm.pipeline.money.example_prices import at_example_prices
from culm.ui import markup
from culm.ui.counting import counting
from culm.ui.curves import View
from culm.ui.incident_facts import facts, origin_of
from culm.ui.incidents import Incident
from culm.ui.look import Look
from culm.ui.screens import log_lines
from culm.ui.screens.overview import draw_curves
from culm.ui.screens.widgets import TABLE_SECONDS, TEXT_SECONDS, height_of, panel, show_banner, zone, zone_note
from culm.ui.source import Source
from culm.ui.standing import is_over
from culm.ui.words import after, clock, fewer, milliseconds, moment, money, span

TONES = {
    "lost": "bad",
    "stall": "bad",
    "differed": "bad",
    "handover": "leaving",
    "rollback": "apart",
    "coordinator": "apart",
}
WHY_SHOWN = 4  # parts of a reason: of a stall, nodes that it waits for
AROUND_SECONDS = 30.0  # before and after an incident, in its charts at least
EXPLAINED = (
    "Times of an incident count from one origin: for a lost node its last sign of life. Restored: every stage has two "
    "copies again. Redone: instructions that ran a second time. Cost: how much longer that one step took than a calm "
    "one; slower steps after it, on fewer nodes, are not counted."
)


def show(source: Source) -> None:
    chosen = st.query_params.get("incident", "")
    if chosen:
        one(source, chosen)
        return
    panel(show_banner, source, TEXT_SECONDS)
    panel(listing, source, TABLE_SECONDS)


# ---- all of them -----------------------------------------------------------------------------------------------------
def listing(source: Source) -> None:
    look = source.look()
    found = look.history.incidents
    if not look.status.phase:
        st.html(markup.note("Nothing is known of the run yet."))
        return
    if not found:
        st.html(markup.note("Nothing has gone wrong yet: no node was lost or handed over, and nothing stood still."))
        return
    st.html(markup.figures(told(look)))
    rows = [row(i, look, zone()) for i in reversed(found)]
    st.session_state["listed"] = [str(i.sequence) for i in reversed(found)]
    key = f"incidents-{st.session_state.get('looked_at', 0)}"  # another table each time: nothing stays selected
    st.dataframe(
        rows,
        hide_index=True,
        width="stretch",
        height=height_of(rows),
        key=key,
        on_select=partial(select, key),
        selection_mode="single-row",
        column_config={"why": st.column_config.TextColumn(width="large")},
        alt="Incidents, the newest first. Select a row to see one.",
    )
    st.html(markup.note(f"Select a row to see the incident. {EXPLAINED} {zone_note(look)}"))
    if st.query_params.get("incident"):
        st.rerun()


def select(key: str) -> None:
    """A row was selected: the page is that of its incident from now on."""
    chosen = st.session_state[key]["selection"]["rows"]
    listed = st.session_state["listed"]
    if chosen and chosen[0] < len(listed):
        st.session_state["looked_at"] = st.session_state.get("looked_at", 0) + 1
        st.query_params["incident"] = listed[chosen[0]]


def told(look: Look) -> list[markup.Figure]:
    """All incidents in figures."""
    found, cost = look.history.incidents, look.cost
    lost = (i.after_origin(i.resume_ms) for i in found if i.kind == "lost")
    resumed = sorted(ms for ms in lost if ms is not None)
    kinds = Counter(i.kind for i in found)
    made_up = EXAMPLE_PRICES if at_example_prices(cost.nodes) else ""
    back = sum(i.back_to is not None for i in found)
    return [
        ("Nodes lost", str(sum(i.lost for i in found)), counted(back, "rollback")),
        ("Handed over in time", str(kinds["handover"]), ""),
        ("Resumed after", milliseconds(resumed[len(resumed) // 2] if resumed else None), "median of lost nodes"),
        ("Instructions redone", f"{sum(i.redone or 0 for i in found):,}", ""),
        ("Time lost", f"{sum(x.seconds for x in cost.interruptions):.1f} s", ""),
        ("Cost", money(sum(x.dollars for x in cost.interruptions)), made_up),
        ("Others", str(kinds["stall"] + kinds["coordinator"]), "stalls, coordinators"),
    ]


def row(incident: Incident, look: Look, zone: tzinfo) -> dict[str, object]:
    """A line of the table."""
    charge = incident.charge(look.cost.interruptions)
    return {
        "when": moment(incident.time, zone),
        "what": incident.title,
        counting(look).step: f"{incident.step:,}",
        "stages": incident.stages,
        "notice": span(incident.notice_seconds) if incident.notice_seconds is not None else "none",
        "detected": milliseconds(incident.detect_ms),
        "resumed": milliseconds(incident.after_origin(incident.resume_ms)),
        "restored": milliseconds(incident.after_origin(incident.restored_ms)),
        "redone": "" if incident.redone is None else str(incident.redone),
        "cost": money(charge.dollars) if charge else "–",
        "why": incident.why,
    }


# ---- one of them -----------------------------------------------------------------------------------------------------
def one(source: Source, chosen: str) -> None:
    panel(show_banner, source, TEXT_SECONDS)
    st.query_params["incident"] = chosen  # a run that ends in another one does not tell the browser
    st.button("All incidents", icon=":material/arrow_back:", key="all_incidents", type="tertiary", on_click=forget)
    panel(detail, source, TABLE_SECONDS)


def forget() -> None:
    st.query_params.pop("incident", None)


def find(look: Look, chosen: str) -> Incident | None:
    return next((i for i in look.history.incidents if str(i.sequence) == chosen), None)


def detail(source: Source) -> None:
    look = source.look()
    chosen = st.query_params.get("incident", "")
    incident = find(look, chosen)
    if incident is None:
        st.html(markup.note(f"This run has no incident {chosen}. The link may be one of another run."))
        return
    here, tone = zone(), TONES[incident.kind]
    st.html(
        markup.title(
            incident.title, incident.kind, tone, f"{moment(incident.time, here)}. {fewer(incident.why, WHY_SHOWN)}"
        )
    )
    left, right = st.columns([3, 2], gap="large")
    with left:
        moments = incident.moments()
        clocks = [clock(incident.origin + ms / 1e3, here) for _, ms in moments]
        if incident.detect_ms is not None or len(moments) > 1:
            origin = origin_of(incident) if incident.detect_ms is not None else "decided"
            st.html(markup.time_line(moments, origin, tone, clocks))
    with right:
        charge, made_up = incident.charge(look.cost.interruptions), at_example_prices(look.cost.nodes)
        st.html(markup.facts(facts(incident, charge, is_over(look), here, made_up, counting(look).step)))
    draw_around(look, incident)
    log_lines.of_the_lost(source, incident)
    st.html(markup.table([story(entry, incident, here) for entry in incident.story], "What the log says of it"))
    st.html(markup.note(f"{EXPLAINED} {zone_note(look)}"))


def story(entry: Entry, incident: Incident, zone: tzinfo) -> dict[str, str]:
    """A line of what the log says."""
    ms = (entry.time - incident.origin) * 1e3
    at = f"{'+' if ms >= 0 else '-'}{after(abs(ms))}"
    return {"after": at, "at": clock(entry.time, zone), "kind": entry.kind, "what and why": entry.text}


def draw_around(look: Look, incident: Incident) -> None:
    """The loss and the speed around it, in seconds after its origin."""
    moments = incident.moments()
    around = max(AROUND_SECONDS, moments[-1][1] / 1e3 if moments else 0.0)
    since, until = incident.origin - around, incident.origin + around
    view = View(look.history, "time", since, until, zero=incident.origin)
    draw_curves(look, view, f"incident-{incident.sequence}", beside=True)
