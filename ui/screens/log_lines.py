"""The newest log lines of nodes, also of those that are gone."""

from collections.abc import Sequence
from datetime import tzinfo

import streamlit as st

from culm.pipeline.counting import counted
from culm.pipeline.log_levels import LEVELS, word_of
from culm.protos import coordinator_pb2 as pb
from culm.ui import markup
from culm.ui.incidents import Incident
from culm.ui.screens.widgets import TABLE_SECONDS, panel, zone
from culm.ui.source import LogLines, Source
from culm.ui.words import clock

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
    lost = [] if node == ALL else [i for i in source.look().history.incidents if node in i.node.split(", ")]
    since = found.lines[0].line.time if found.lines else 0.0
    ends = [(incident.time, end(incident, node, zone())) for incident in lost if incident.time >= since]
    st.html(_drawn(found, found.lines, "Log lines, the newest last", zone(), ends))


def of_the_lost(source: Source, incident: Incident) -> None:
    """What a node said last before it was given up."""
    if not incident.node or source.still:
        return
    for node in incident.node.split(", "):
        found = source.log_lines(node, "info")
        before = until(incident.time, found.lines)
        st.html(markup.chart_title(f"the last log lines of {node}", ""))
        last = (incident.time + LATE_SECONDS, end(incident, node, zone()))  # also after a line that came late
        st.html(_drawn(found, before[-LAST:], f"The last log lines of {node}", zone(), [last]))


def until(lost: float, lines: Sequence[pb.KeptLine]) -> list[pb.KeptLine]:
    """What a process said until it was lost. One that follows it may begin at once."""
    known = [kept.incarnation for kept in lines if kept.heard <= lost]
    return [
        kept for kept in lines if kept.heard <= lost + LATE_SECONDS and (not known or kept.incarnation <= known[-1])
    ]


def _drawn(
    found: LogLines,
    lines: Sequence[pb.KeptLine],
    caption: str,
    here: tzinfo,
    ends: Sequence[tuple[float, markup.LogRow]] = (),
) -> str:
    """``ends``: when a process of the node was given up, and the line that says so."""
    if found.problem:
        return markup.note(found.problem)
    if not lines:
        nothing = "The coordinator has no such lines: it keeps the newest of each node since its own start."
        return (markup.log([row for _, row in ends], caption) if ends else "") + markup.note(nothing)
    told = [(kept.line.time, row(kept, here)) for kept in lines]
    rows = [each for _, each in sorted([*told, *ends], key=lambda pair: pair[0])]
    return markup.log(rows, caption) + markup.note(f"{counted(len(told), 'line')}, the newest last.")


def end(incident: Incident, node: str, here: tzinfo) -> markup.LogRow:
    """The last line of a process: when it was given up, and why. The node itself cannot have logged it."""
    tone = "leaving" if incident.kind == "handover" else "bad"
    return markup.LogRow(clock(incident.time, here), node, incident.kind, tone, f"{incident.title}: {incident.why}")


def row(kept: pb.KeptLine, here: tzinfo) -> markup.LogRow:
    level = word_of(kept.line.level)
    said = f"{kept.line.logger} {kept.line.text}".strip()
    return markup.LogRow(clock(kept.line.time, here), kept.node, level, TONES.get(level, "resting"), said)
