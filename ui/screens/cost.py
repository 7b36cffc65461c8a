"""Where the money goes, and what it would have been otherwise."""

import streamlit as st

from culm.protos import coordinator_pb2 as pb
from culm.ui.charts import bars
from culm.ui.screens.widgets import banner, spent, tiles
from culm.ui.source import Source
from culm.ui.words import clock, literal, money, size, span


@st.fragment(run_every=2.0)
def show(source: Source) -> None:
    look = source.look()
    cost = look.cost
    banner(look)
    tiles(
        spent(cost),
        ("1,000 samples", money(cost.dollars_per_thousand_samples) if cost.samples else "–", ""),
        ("Transfer", money(cost.transfer_dollars), f"{size(cost.crossing_bytes)} between zones"),
    )
    if cost.unpriced:
        names = literal(", ".join(cost.unpriced))
        st.warning(
            f"No price is known for {names}, so they count as free. Give the coordinator a table with `--prices`."
        )
    left, right = st.columns(2)
    with left:
        st.subheader("Spent on")
        uses = {use: dollars for use, dollars in cost.dollars_by_use.items() if dollars > 0}
        uses |= {"transfer": cost.transfer_dollars} if cost.transfer_dollars else {}
        uses |= {"fixed": cost.fixed_dollars} if cost.fixed_dollars else {}
        if uses:
            st.vega_lite_chart(None, bars(uses), width="stretch")
    with right:
        st.subheader("The same training")
        ways = {"this run": cost.dollars, "on demand": cost.on_demand_dollars}
        ways["with checkpoints and restarts"] = cost.checkpoint_dollars
        if cost.dollars and cost.samples:
            st.vega_lite_chart(None, bars({way: dollars for way, dollars in ways.items() if dollars}), width="stretch")
    st.subheader("Lost to interruptions")
    if cost.interruptions:
        st.dataframe([lost(x) for x in reversed(cost.interruptions)], hide_index=True, width="stretch")
    else:
        st.caption("No interruption has cost anything so far.")
    st.subheader("Bills")
    st.dataframe([bill(node) for node in cost.nodes], hide_index=True, width="stretch")
    st.caption("Every figure comes from the event log. docs/cost.md has the formulas.")


def lost(x: pb.InterruptionCost) -> dict[str, object]:
    return {
        "time": clock(x.time),
        "what": x.kind,
        "node": x.node,
        "step": x.step,
        "time lost": f"{x.seconds:.2f} s",
        "cost": money(x.dollars),
    }


def bill(node: pb.NodeCost) -> dict[str, object]:
    machine = node.machine
    until = node.ended
    return {
        "node": node.node,
        "machine": " ".join(filter(None, (machine.provider, machine.instance_type, machine.market))),
        "zone": machine.zone,
        "from": clock(node.joined),
        "to": clock(until) if until else "now",
        "for": span(until - node.joined) if until else "",
        "$/h": node.price_per_hour,
        "on demand": node.on_demand_per_hour,
        "bill": money(node.dollars),
        "price from": node.source,
    }
