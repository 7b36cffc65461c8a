"""Ended runs side by side: the logs of a folder."""

import streamlit as st

from culm.ui import markup
from culm.ui.charts import overlay_spec
from culm.ui.curves import AXES
from culm.ui.runs import Run, Runs, overlay, row
from culm.ui.screens.widgets import chart, height_of, scheme, zone
from culm.ui.words import moment, money, span, zone_in_words

MOST = 7  # curves in one chart
COMPARED = {"loss": "loss", "evaluation": "evaluated loss"}


def show(runs: Runs) -> None:
    known = runs.all()
    if not known:
        words = f"No log lies in {runs.folder}. Keep one there: culm events --json > {runs.folder}/NAME.jsonl"
        st.html(markup.note(words))
        return
    rows = [in_words(row(run)) for run in known]
    st.dataframe(rows, hide_index=True, width="stretch", height=height_of(rows), key="runs", alt="Runs")
    readable = [run for run in known if not run.problem]
    names = [run.name for run in readable]
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        st.multiselect(
            "Compare", names, key="compare", max_selections=MOST, bind="query-params", placeholder="the newest"
        )
        st.segmented_control("What", list(COMPARED), default="loss", required=True, key="what", bind="query-params")
        st.segmented_control("Over", AXES, default="step", required=True, key="over", bind="query-params")
    picked = st.session_state.get("compare") or names[:MOST]
    compare([run for run in readable if run.name in picked])
    with st.container(horizontal=True, vertical_alignment="bottom"):
        opened = st.selectbox("All pages of", names, index=None, placeholder="choose a run", key="opened", width=320)
        if st.button("Open", key="open", disabled=not opened) and opened:
            st.session_state["run"] = opened
            st.session_state.pop("opened", None)
            st.switch_page(st.session_state["first_page"], query_params={"run": opened})
    at = readable[0].look.at if readable else 0.0
    st.html(markup.note(f"Logs in {runs.folder}. Times are {zone_in_words(zone(), at)}."))


def compare(picked: list[Run]) -> None:
    what, axis = st.session_state.get("what") or "loss", st.session_state.get("over") or "step"
    columns = overlay(picked, axis, what)
    if not columns["x"]:
        st.html(markup.note("None of these runs has anything to draw here."))
        return
    names = [run.name for run in picked]
    title = "seconds after the first plan" if axis == "time" else axis
    alt = f"{COMPARED[what]} over {title} of {', '.join(names)}"
    chart(overlay_spec(title, COMPARED[what], scheme(), names), {"curves": columns}, alt, "overlay")


def in_words(told: dict[str, object]) -> dict[str, str]:
    """A line of the table, no cell of it empty by accident."""
    zone_here = zone()

    def shown(name: str, value: object) -> str:
        match name, value:
            case _, None:
                return "–"
            case "begun", float(at):
                return moment(at, zone_here)
            case "seconds", float(seconds):
                return span(seconds)
            case "dollars", float(dollars):
                return money(dollars)
            case "goodput", float(share):
                return f"{share:.1%}"
            case "samples/s", float(rate):
                return f"{rate:,.0f}"
            case _, float(number):
                return f"{number:.4f}"
            case _, int(count):
                return f"{count:,}"
        return str(value)

    titles = {"seconds": "took", "dollars": "cost"}
    return {titles.get(name, name): shown(name, value) for name, value in told.items()}
