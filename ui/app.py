"""The dashboard: ``streamlit run ui/app.py``, which is what ``culm ui`` does."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import streamlit as st

from culm.pipeline import default_ports
from culm.ui.recorded import DEMO, Recorded
from culm.ui.screens import cost, events, nodes, overview, preemptions, timetable, topology
from culm.ui.source import Live, Source
from culm.ui.words import literal

PAGES: dict[str, tuple[Callable[[Source], None], str]] = {
    "Overview": (overview.show, ":material/speed:"),
    "Topology": (topology.show, ":material/hub:"),
    "Preemptions": (preemptions.show, ":material/bolt:"),
    "Nodes": (nodes.show, ":material/dns:"),
    "Timetable": (timetable.show, ":material/view_timeline:"),
    "Cost": (cost.show, ":material/payments:"),
    "Events": (events.show, ":material/list:"),
}


@st.cache_resource
def source_of(coordinator: str, recorded: str, speed: float) -> Source:
    """One source for everybody who looks. ``recorded`` is a log's path, "demo", or empty: then the coordinator."""
    if recorded:
        return Recorded(DEMO if recorded == "demo" else Path(recorded), speed)
    return Live(coordinator)


def main() -> None:
    st.set_page_config(page_title="Culm", page_icon=str(Path(__file__).with_name("icon.svg")), layout="wide")
    env = os.environ.get
    speed = float(env("CULM_UI_SPEED") or 1.0)
    source = source_of(env("CULM_COORDINATOR") or default_ports.COORDINATOR, env("CULM_UI_LOG") or "", speed)
    pages = [
        st.Page(partial(show, source), title=title, icon=icon, url_path=title.lower(), default=title == "Overview")
        for title, (show, icon) in PAGES.items()
    ]
    page = st.navigation(pages, position="top")
    page.run()
    st.caption(f"Culm · {literal(source.name)}")


main()
