"""Every node: what it does, what it costs, where its time goes, and how that was before."""

from collections.abc import Collection

import streamlit as st

from culm.protos import coordinator_pb2 as pb
from culm.ui import markup
from culm.ui.charts import (
    SPLIT_BARS,
    bubble_share,
    busy_seconds,
    split_columns,
    split_rows,
    split_spec,
    trend_data,
    trend_spec,
)
from culm.ui.curves import RANGES, since_of
from culm.ui.screens.widgets import (
    CHART_SECONDS,
    TABLE_SECONDS,
    TEXT_SECONDS,
    chart,
    height_of,
    panel,
    preempt,
    scheme,
    show_banner,
    zone,
    zone_note,
)
from culm.ui.source import Look, Source
from culm.ui.standing import is_over
from culm.ui.trends import LINES, lines
from culm.ui.words import counted, money, size, zone_in_words


def show(source: Source) -> None:
    panel(show_banner, source, TEXT_SECONDS)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        st.text_input("Nodes whose line contains", key="node", bind="query-params", width=260, placeholder="all")
        st.segmented_control("Range", list(RANGES), default="all", required=True, key="last", bind="query-params")
    panel(listing, source, TABLE_SECONDS)
    preempt(source)
    panel(charts, source, CHART_SECONDS)


def listing(source: Source) -> None:
    look = source.look()
    if not look.status.nodes:
        gone = "The nodes have gone: the run is over. The page Cost has the bill of each."
        st.html(markup.note(gone if is_over(look) else "No node is here. Start one with culm stage."))
        return
    rows = [row(node, look) for node in sorted(look.status.nodes, key=in_order)]
    found = containing(rows, st.session_state.get("node") or "")
    st.html(markup.note(in_figures(look.status.nodes, len(found))))
    st.dataframe(
        found,
        hide_index=True,
        width="stretch",
        height=height_of(found),
        key="nodes",
        column_config={"bubble": st.column_config.ProgressColumn(format="percent", min_value=0.0, max_value=1.0)},
        alt="The nodes",
    )


def in_order(node: pb.NodeStatus) -> tuple[str, int, str]:
    """By name, a number in it as a number."""
    digits = node.id[len(node.id.rstrip("0123456789")) :]
    return (node.id.removesuffix(digits) if digits else node.id, int(digits or 0), node.id)


def containing(rows: list[dict[str, object]], words: str) -> list[dict[str, object]]:
    sought = words.strip().lower()
    return [row for row in rows if not sought or sought in " ".join(map(str, row.values())).lower()]


def in_figures(nodes: Collection[pb.NodeStatus], shown: int) -> str:
    states: dict[str, int] = {}
    for node in nodes:
        states[node.state] = states.get(node.state, 0) + 1
    told = ", ".join(f"{count} {state}" for state, count in sorted(states.items(), key=lambda item: -item[1]))
    return f"{counted(len(nodes), 'node')}: {told}." + (f" {shown} shown." if shown < len(nodes) else "")


def row(node: pb.NodeStatus, look: Look) -> dict[str, object]:
    """A line of the table. What a node was paid ends with the run."""
    machine = node.machine
    bill = next((b for b in look.cost.nodes if (b.node, b.incarnation) == (node.id, node.incarnation)), None)
    return {
        "node": node.id,
        "state": node.state,
        "stages": ", ".join(map(str, node.stages)),
        "stands by for": ", ".join(map(str, node.standby_of)),
        "runs now": node.instruction,
        "bubble": bubble_share(node) if busy_seconds(node) else 0.0,
        "sent": size(sum(node.sent_bytes.values())),
        "machine": " ".join(filter(None, (machine.provider, machine.instance_type, machine.market))),
        "zone": node.zone,
        "$/h": f"{node.price_per_hour:.2f}" if node.price_per_hour else "–",
        "spent": money(bill.dollars if bill else node.spent),
        "address": node.address,
        "process": str(node.pid or "–"),
    }


def charts(source: Source) -> None:
    look = source.look()
    if not look.history.begun:
        return
    here, end = zone(), look.history.last if source.still else look.at
    begin = max(since_of(look.history, st.session_state.get("last") or "all", end), look.history.begun)
    incidents = [i for i in look.history.incidents if i.time >= begin]
    for column, (name, words, form, series) in zip(
        st.columns(2),
        (
            (
                "bubble",
                "bubbles: share of the compute thread's time",
                "%",
                look.history.trends.bubble_share(begin, end),
            ),
            ("sent", "sent: bytes a second", "~s", look.history.trends.sent_per_second(begin, end)),
        ),
        strict=True,
    ):
        points = lines(series, begin, end)
        if not points:
            continue
        names = list(dict.fromkeys(p.name for p in points))
        with column:
            st.html(markup.chart_title(words, ""))
            spec = trend_spec("", form, scheme(), zone_in_words(here, end), names)
            alt = f"{words}, over time, of {', '.join(names)}; {len(incidents)} incidents marked"
            chart(spec, trend_data(points, incidents, here), alt, f"trend-{name}")
    if len(look.status.nodes) > LINES:
        many = f"Of more than {LINES} nodes: the median, the band in which nine of ten lie, and the highest three."
        st.html(markup.note(many))
    nodes = split_rows(sorted(look.status.nodes, key=in_order))
    if nodes:
        few = f", the {SPLIT_BARS} with the most bubbles" if len(look.status.nodes) > SPLIT_BARS else ""
        st.html(markup.chart_title(f"where the time goes{few}", "since each process started"))
        alt = "; ".join(f"{node.id}: {bubble_share(node):.0%} bubbles" for node in nodes)
        chart(split_spec(nodes, scheme()), {"split": split_columns(nodes)}, alt, "split")
    st.html(markup.note(zone_note(look)))
