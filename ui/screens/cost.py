"""Where the money goes, and what it would have been otherwise."""

from datetime import tzinfo

import streamlit as st

from culm.pipeline.counting import STEPS
from culm.pipeline.money.example_prices import EXPLAINED, at_example_prices
from culm.protos import coordinator_pb2 as pb
from culm.ui import markup, palette
from culm.ui.charts import bar_columns, bar_spec
from culm.ui.counting import counting
from culm.ui.look import Look
from culm.ui.node_order import by_name
from culm.ui.outlook_words import (
    changes_of,
    dollars_changed,
    dollars_in_words,
    end_in_words,
    seconds_changed,
    seconds_in_words,
    whose,
)
from culm.ui.screens.widgets import (
    CHART_SECONDS,
    TABLE_SECONDS,
    TEXT_SECONDS,
    banner,
    chart,
    height_of,
    panel,
    scheme,
    spent,
    zone,
    zone_note,
)
from culm.ui.source import Source
from culm.ui.standing import has_price, is_over
from culm.ui.words import clock, moment, money, size, span, worth

NAMED = 6  # nodes without a price that a warning names
LISTED = 50  # interruptions, the newest


def show(source: Source) -> None:
    panel(figures, source, TEXT_SECONDS)
    panel(to_come, source, TEXT_SECONDS)
    panel(bars, source, CHART_SECONDS)
    panel(bills, source, TABLE_SECONDS)


def figures(source: Source) -> None:
    look = source.look()
    banner(look)
    st.html(markup.figures(told(look)))
    if at_example_prices(look.cost.nodes):
        st.html(markup.note(EXPLAINED))
    unpriced = list(look.cost.unpriced)
    if unpriced:
        more = f" and {len(unpriced) - NAMED} more" if len(unpriced) > NAMED else ""
        names = ", ".join(unpriced[:NAMED]) + more
        words = f"No price is known for {names}: counted as free. Give the coordinator a table with --prices."
        st.html(markup.alerts([("leaving", words)]))


def told(look: Look) -> list[markup.Figure]:
    cost = look.cost
    known, lost, of = has_price(cost), sum(x.dollars for x in cost.interruptions), counting(look)
    tokens = ("A million tokens", worth(cost.dollars_per_million_tokens, known and cost.tokens > 0), "")
    return [
        spent(look),
        (of.priced.capitalize(), worth(of.price(cost.dollars_per_thousand_samples), known and cost.samples > 0), ""),
        *([tokens] if of is STEPS else []),
        ("Transfer", worth(cost.transfer_dollars, known), f"{size(cost.crossing_bytes)} between zones"),
        ("Lost to interruptions", worth(lost, known), f"{lost / cost.dollars:.1%} of it" if cost.dollars > 0 else ""),
    ]


def to_come(source: Source) -> None:
    """When the run ends, what that costs, and what the next machine would change of it."""
    look = source.look()
    cost, foreseen = look.cost, look.cost.forecast
    if is_over(look) or look.ended or look.problem or not foreseen.why:
        return  # without a coordinator nothing is committed: the end moves on, and nobody knows by how much
    st.html(markup.chart_title("to the end", ""))
    if foreseen.HasField("seconds"):
        st.html(markup.figures(told_of_the_rest(look, zone())))
    step = f"{counting(look).step} time"
    rows = [change(each, more, step) for each, more in changes_of(cost)]
    if rows:
        st.html(markup.table(rows, "One machine more, or one less", (step, "to the end", "cost")))
    ranges = " Eight of ten such runs come out in the ranges." if foreseen.HasField("seconds") else ""
    st.html(markup.note(f"{foreseen.why[0].upper()}{foreseen.why[1:]}.{ranges}"))


def told_of_the_rest(look: Look, zone: tzinfo) -> list[markup.Figure]:
    foreseen = look.cost.forecast
    figures = [("Time left", *_parts(seconds_in_words(foreseen)))]
    if end := end_in_words(foreseen, look.at, zone):
        figures.append(("Ends at", *_parts(end)))
    figures.append(("Still to pay", *_parts(dollars_in_words(foreseen) or "– (no price is known)")))
    return figures


def _parts(words: str) -> tuple[str, str]:
    """What is expected, and its range."""
    expected, _, within = words.partition(" (")
    return expected, within.removesuffix(")")


def change(each: pb.NodeChange, more: bool, step: str) -> dict[str, str]:
    """``step``: what the column of a step's time is called."""
    return {
        "machines": whose(each, more),
        step: f"{each.step_ratio - 1.0:+.0%}",
        "to the end": seconds_changed(each),
        "cost": dollars_changed(each),
        "what the coordinator would do": each.why,
    }


def bars(source: Source) -> None:
    cost = source.look().cost
    uses = {use: dollars for use, dollars in cost.dollars_by_use.items() if dollars > 0}
    uses |= {"transfer": cost.transfer_dollars} if cost.transfer_dollars else {}
    uses |= {"tensor workers": cost.worker_dollars} if cost.worker_dollars else {}
    uses |= {"fixed": cost.fixed_dollars} if cost.fixed_dollars else {}
    ways = {"this run": cost.dollars, "on demand": cost.on_demand_dollars}
    ways["with checkpoints and restarts"] = cost.checkpoint_dollars
    ways = {way: dollars for way, dollars in ways.items() if dollars} if cost.dollars and cost.samples else {}
    for column, title, amounts, colour in zip(
        st.columns(2), ("spent on", "the same training"), (uses, ways), (palette.TRAINED, palette.GOOD), strict=True
    ):
        if amounts:
            with column:
                st.html(markup.chart_title(title, ""))
                alt = f"{title}: " + ", ".join(f"{what} {money(dollars)}" for what, dollars in amounts.items())
                chart(bar_spec(scheme(), colour), {"amounts": bar_columns(amounts)}, alt, title)


def bills(source: Source) -> None:
    look = source.look()
    cost, here = look.cost, zone()
    st.html(markup.chart_title("lost to interruptions", ""))
    if cost.interruptions:
        newest = list(cost.interruptions)[: -LISTED - 1 : -1]
        step = counting(look).step
        rows = [lost(x, here, step) for x in newest]
        st.html(markup.table(rows, "Interruptions, the newest first", (step, "time lost", "cost")))
    else:
        st.html(markup.note("No interruption has cost anything so far."))
    st.html(markup.chart_title("bills", ""))
    rows = [
        bill(node, here, is_over(look))
        for node in sorted(cost.nodes, key=lambda each: (by_name(each.node), each.joined))
    ]
    if rows:
        st.dataframe(rows, hide_index=True, width="stretch", height=height_of(rows), key="bills", alt="Bills")
    else:
        st.html(markup.note("No node has joined yet."))
    st.html(markup.note(f"Every figure comes from the event log. docs/cost.md has the formulas. {zone_note(look)}"))


def lost(x: pb.InterruptionCost, zone: tzinfo, step: str = "step") -> dict[str, str]:
    return {
        "when": moment(x.time, zone),
        "what": x.kind,
        "node": x.node or "–",
        step: f"{x.step:,}",
        "time lost": f"{x.seconds:.2f} s",
        "cost": money(x.dollars),
    }


def bill(node: pb.NodeCost, zone: tzinfo, over: bool = False) -> dict[str, str]:
    machine = node.machine
    until = node.ended
    return {
        "node": node.node,
        "machine": " ".join(filter(None, (machine.provider, machine.instance_type, machine.market))),
        "zone": machine.zone,
        "from": moment(node.joined, zone),
        "to": clock(until, zone) if until else "the run's end" if over else "now",
        "for": span(until - node.joined) if until else "",
        "$/h": f"{node.price_per_hour:.2f}" if node.price_per_hour else "–",
        "on demand": f"{node.on_demand_per_hour:.2f}" if node.on_demand_per_hour else "–",
        "bill": worth(node.dollars, bool(node.price_per_hour or node.dollars)),
        "price from": node.source,
    }
