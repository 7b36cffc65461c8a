"""The dashboard: ``streamlit run ui/app.py``, which is what ``culm ui`` does."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import streamlit as st

from culm.pipeline import default_ports
from culm.pipeline.errors import JobError
from culm.ui.counting import chunks_of
from culm.ui.kept_logs import KeptLogs
from culm.ui.recorded import DEMO, Recorded
from culm.ui.runs import Runs
from culm.ui.screens import cost, events, graph, incidents, nodes, overview, runs, timetable, topology
from culm.ui.screens.widgets import guarded, tell_what_was_said
from culm.ui.source import Live, Source
from culm.ui.style import CSS
from culm.ui.words import literal

ICON = str(Path(__file__).with_name("icon.svg"))
# The order is that of the menu. "Graph" is there while the run trains on one.
PAGES: dict[str, tuple[Callable[[Source], None], str]] = {
    "Overview": (overview.show, ":material/speed:"),
    "Graph": (graph.show, ":material/graph_3:"),
    "Topology": (topology.show, ":material/hub:"),
    "Incidents": (incidents.show, ":material/bolt:"),
    "Nodes": (nodes.show, ":material/dns:"),
    "Timetable": (timetable.show, ":material/view_timeline:"),
    "Cost": (cost.show, ":material/payments:"),
    "Events": (events.show, ":material/list:"),
}


@st.cache_resource(show_spinner=False, max_entries=16)
def source_of(coordinator: str, recorded: str, speed: float, folder: str = "") -> Source:
    """One source for everybody who looks. ``recorded`` is a log's path, "demo", or empty: then the coordinator, the
    log of whose run is kept in the folder, if there is one.
    """
    if recorded:
        return Recorded(DEMO if recorded == "demo" else Path(recorded), speed)
    return Live(coordinator, KeptLogs(Path(folder)) if folder else None)


@st.cache_resource(show_spinner=False)
def runs_of(folder: str) -> Runs:
    return Runs(Path(folder))


def source_here(kept: Runs | None) -> Source:
    """What this window shows: the run of ``?run=NAME`` where the folder has it, else what the command line says."""
    env = os.environ.get
    name = st.query_params.get("run") or st.session_state.get("run") or ""
    path = kept.path_of(name) if kept is not None and name else None
    if path is not None:
        st.session_state["run"] = st.query_params["run"] = name
        return source_of("", str(path), 0.0)
    st.session_state.pop("run", None)
    speed = float(env("CULM_UI_SPEED") or 1.0)
    return source_of(
        env("CULM_COORDINATOR") or default_ports.COORDINATOR, env("CULM_UI_LOG") or "", speed, env("CULM_UI_RUNS") or ""
    )


def main() -> None:
    st.set_page_config(page_title="Culm", page_icon=ICON, layout="wide")
    st.html(f"<style>{CSS}</style>")
    st.logo(ICON, size="large")
    folder = os.environ.get("CULM_UI_RUNS") or ""
    kept = runs_of(folder) if folder else None
    try:
        source = source_here(kept)
    except JobError as error:
        st.error(literal(str(error)))
        return
    on_graph = chunks_of(source.look()) > 0
    pages_here = {title: page for title, page in PAGES.items() if on_graph or title != "Graph"}
    shown = {title: (partial(guarded(show), source), icon) for title, (show, icon) in pages_here.items()}
    if kept is not None:
        shown["Runs"] = (partial(runs.show, kept), ":material/stacked_line_chart:")
    pages = [
        st.Page(draw, title=title, icon=icon, url_path=title.lower() if number else "", default=not number)
        for number, (title, (draw, icon)) in enumerate(shown.items())
    ]
    st.session_state["first_page"] = pages[0]
    page = st.navigation([*pages, _by_its_name(pages[0])], position="top")
    tell_what_was_said()
    page.run()
    leave(source)


def _by_its_name(first: Any) -> Any:
    """The first page is at ``/``, and Streamlit knows no ``/overview`` beside it: that leads there."""
    path = str(first.title).lower()
    lead = partial(st.switch_page, first, query_params=st.query_params.to_dict())
    return st.Page(lead, title=first.title, url_path=path, visibility="hidden")


def leave(source: Source) -> None:
    """Below every page: what it shows, and the way back from a run of the folder."""
    with st.container(horizontal=True, vertical_alignment="center"):
        leads = source.look().status.coordinator
        st.caption(f"Culm · {literal(source.name)}{f' · coordinator {literal(leads)}' if leads else ''}")
        if st.session_state.get("run"):
            st.button("Back to the present run", key="back", type="tertiary", on_click=forget_run)


def forget_run() -> None:
    st.session_state.pop("run", None)
    st.query_params.pop("run", None)


main()
