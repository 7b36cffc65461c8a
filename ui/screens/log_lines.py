"""The newest log lines of nodes, also of those that are gone."""

from datetime import tzinfo

import streamlit as st

from culm.pipeline.log_levels import LEVELS, word_of
from culm.protos import coordinator_pb2 as pb
from culm.ui import markup
from culm.ui.incidents import Incident
from culm.ui.screens.widgets import TABLE_SECONDS, panel, zone
from culm.ui.source import LogLines, Source
from culm.ui.words import clock, counted

ALL = "all nodes"
TONES = {"warning": "leaving", "error": "bad", "critical": "bad"}
LAST = 20  # lines of a lost node beside its incident
LATE_SECONDS = 1.0  # after a node was given up a line may still come that it had sent


def choose(source: Source) -> None:
    """The controls and the lines. The controls stand outside of what is drawn again."""
    if source.still:
        return
    st.html(markup.chart_title("log lines", "of nodes that are there, and of those that have gone"))
    found = source.log_lines("", "critical")
    if not found.problem:
        asked = st.query_params.get("log", ALL)
        offered = list(dict.fromkeys([ALL, *found.nodes, asked]))
        with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
            st.selectbox("Node", offered, key="log", bind="query-params", width=260)
            levels = list(LEVELS)
            st.segmented_control("From level", levels, default="info", required=True, key="level", bind="query-params")
    panel(listing, source, TABLE_SECONDS)


def listing(source: Source) -> None:
    node = st.session_state.get("log") or ALL
    found = source.log_lines("" if node == ALL else node, st.session_state.get("level") or "info")
    st.html(_drawn(found, found.lines, "Log lines, the newest last", zone()))


def of_the_lost(source: Source, incident: Incident) -> None:
    """What a node said last before it was given up."""
    if not incident.node or source.still:
        return
    for node in incident.node.split(", "):
        found = source.log_lines(node, "info")
        before = [kept for kept in found.lines if kept.heard <= incident.time + LATE_SECONDS]
        st.html(markup.chart_title(f"the last log lines of {node}", ""))
        st.html(_drawn(found, before[-LAST:], f"The last log lines of {node}", zone()))


def _drawn(found: LogLines, lines: "list[pb.KeptLine] | tuple[pb.KeptLine, ...]", caption: str, here: tzinfo) -> str:
    if found.problem:
        return markup.note(found.problem)
    if not lines:
        return markup.note(
            "The coordinator has no such lines. It keeps the newest of each node, since it began itself."
        )
    rows = [row(kept, here) for kept in lines]
    return markup.log(rows, caption) + markup.note(f"{counted(len(rows), 'line')}, the newest last.")


def row(kept: pb.KeptLine, here: tzinfo) -> markup.LogRow:
    level = word_of(kept.line.level)
    said = f"{kept.line.logger} {kept.line.text}".strip()
    return markup.LogRow(clock(kept.line.time, here), kept.node, level, TONES.get(level, "resting"), said)
