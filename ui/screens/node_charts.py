"""What each node took and did over time, a chart each; and where the time of its compute thread went."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isnan
from statistics import median

import streamlit as st

from culm.ui import markup
from culm.ui.charts import (
    SPLIT_BARS,
    USES_EXPLAINED,
    bubble_share,
    split_columns,
    split_rows,
    split_spec,
    trend_data,
    trend_spec,
)
from culm.ui.curves import since_of
from culm.ui.look import Look
from culm.ui.node_order import in_order
from culm.ui.screens.widgets import chart, scheme, zone, zone_note
from culm.ui.source import Source
from culm.ui.trends import LINES, Trends, lines, told
from culm.ui.words import size, zone_in_words

Series = dict[str, list[tuple[float, float]]]


@dataclass(frozen=True)
class NodeChart:
    """``form``: of its axis, as d3-format has it. ``newest``: how the newest value is written beside the title."""

    key: str
    title: str
    form: str
    series: Callable[[Trends, float, float], Series]
    newest: Callable[[float], str]


def _percent(share: float) -> str:
    return f"{share:.0%}"


def _a_second(count: float) -> str:
    return f"{size(count)}/s"


CHARTS = (
    NodeChart("cpu", "CPU: share of the processors that it may use", "%", Trends.cpu_share, _percent),
    NodeChart("memory", "memory: share of what it may use", "%", Trends.memory_share, _percent),
    NodeChart("accelerator", "accelerator: share of the time in use", "%", Trends.accelerator_share, _percent),
    NodeChart("vram", "accelerator: share of its memory", "%", Trends.accelerator_memory_share, _percent),
    NodeChart("sent", "network: bytes a second sent", "~s", Trends.sent_per_second, _a_second),
    NodeChart("bubble", "bubbles: share of the compute thread's time", "%", Trends.bubble_share, _percent),
)


def charts(source: Source) -> None:
    look = source.look()
    if not look.history.begun:
        return
    draw_trends(look, source.still, CHARTS)
    if len(look.status.nodes) > LINES:
        many = f"Of more than {LINES} nodes: the median, the band in which nine of ten lie, and the highest three."
        st.html(markup.note(many))
    nodes = split_rows(sorted(look.status.nodes, key=in_order))
    if nodes:
        few = f", the {SPLIT_BARS} with the most bubbles" if len(look.status.nodes) > SPLIT_BARS else ""
        st.html(markup.chart_title(f"where the time goes{few}", "since each process started"))
        alt = "; ".join(f"{node.id}: {bubble_share(node):.0%} bubbles" for node in nodes)
        chart(split_spec(nodes, scheme()), {"split": split_columns(nodes)}, alt, "split")
        st.html(markup.note(USES_EXPLAINED))
    st.html(markup.note(zone_note(look)))


def draw_trends(look: Look, still: bool, shown: Sequence[NodeChart]) -> None:
    """Those of the charts that have something to show, two beside each other. ``still``: nothing new comes."""
    here, end = zone(), look.history.last if still else look.at
    begin = max(since_of(look.history, st.session_state.get("last") or "all", end), look.history.begun)
    incidents = [i for i in look.history.incidents if i.time >= begin]
    drawn = [(each, each.series(look.history.trends, begin, end)) for each in shown]
    drawn = [(each, series) for each, series in drawn if series]
    for begun in range(0, len(drawn), 2):  # a row at a time: on a phone they stand below each other in this order
        for column, (each, series) in zip(st.columns(2), drawn[begun : begun + 2], strict=False):
            points = lines(series, begin, end)
            names = list(dict.fromkeys(p.name for p in points))
            with column:
                st.html(markup.chart_title(each.title, _newest(each, series)))
                spec = trend_spec("", each.form, scheme(), zone_in_words(here, end), names)
                alt = f"{each.title}, over time, of {', '.join(names)}; {len(incidents)} incidents marked"
                chart(spec, trend_data(points, incidents, here), alt, f"trend-{each.key}")


def _newest(each: NodeChart, series: Series) -> str:
    """The median of the nodes' newest values."""
    values = [known[-1][1] for points in series.values() if (known := told(points))]
    values = [value for value in values if not isnan(value)]
    if not values:
        return ""
    return f"{each.newest(median(values))}{' in the median' if len(values) > 1 else ''}"
