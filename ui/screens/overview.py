"""How far, how fast, at what price; and the curves."""

import math

import streamlit as st

from culm.pipeline.counting import Counting, amount, counted
from culm.ui import markup
from culm.ui.charts import curve_alt, curve_data, curve_spec
from culm.ui.counting import chunks_of, counting
from culm.ui.curves import AXES, RANGES, Curve, View, axes, axis_title, curves, marks, since_of
from culm.ui.incidents import Incident
from culm.ui.look import Look
from culm.ui.screens.widgets import (
    CHART_SECONDS,
    TEXT_SECONDS,
    banner,
    chart,
    panel,
    scheme,
    spent,
    zone,
    zone_note,
)
from culm.ui.source import Source
from culm.ui.standing import has_price, is_over, result
from culm.ui.words import money, worth, zone_in_words

SMALL = 6  # charts beside the loss


def show(source: Source) -> None:
    panel(figures, source, TEXT_SECONDS)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        look = source.look()
        words = {"step": counting(look).step}
        st.segmented_control(
            "Curves over",
            axes(chunks_of(look)),
            format_func=lambda axis: words.get(axis, axis),
            default=AXES[0],
            required=True,
            key="over",
            bind="query-params",
        )
        st.segmented_control("Range", list(RANGES), default="all", required=True, key="last", bind="query-params")
    panel(charts, source, CHART_SECONDS)


def figures(source: Source) -> None:
    look = source.look()
    banner(look)
    if look.status.phase or look.history.last:
        st.html(markup.figures(told(look)))
    if is_over(look):
        st.html(markup.facts(result(look, zone()), "What there is") + markup.note(zone_note(look)))


def told(look: Look) -> list[markup.Figure]:
    """The run in figures."""
    status, cost, history, of = look.status, look.cost, look.history, counting(look)
    over = is_over(look)
    mean, now = (cost.samples / cost.seconds if cost.seconds else 0.0), status.samples_per_second
    mean, now = mean / of.samples, now / of.samples
    speed, note = (mean, "mean of the run") if over else (now, f"{amount(mean)} on average")
    rate = history.learning_rate
    loss = f"{history.losses[-1]:.4f}" if history.losses else "–"
    goodput = f"{cost.useful_seconds / cost.seconds:.1%}" if cost.seconds else "–"
    lost = sum(i.lost for i in history.incidents)
    valued = cost.samples > 0 and has_price(cost)
    found = [
        ("Loss", loss, f"learning rate {rate:.3g}" if rate is not None else ""),
        (f"{of.trained.capitalize()} a second", amount(speed), note),
        spent(look),
        ("Goodput", goodput, f"{counted(lost, 'node')} lost"),
        ("Value", amount(cost.value / of.samples) if valued else "–", f"{of.trained}/s for $1 an hour"),
        _price(look, of),
        ("Saved (on demand)", *_saved(cost.on_demand_dollars, cost.dollars)),
        ("Saved (checkpoints)", *_saved(cost.checkpoint_dollars, cost.dollars)),
    ]
    if history.evaluations:
        step, values = max(history.evaluations.items())
        found[1:1] = [
            (f"Evaluated: {name}", f"{value:.4g}", f"after {of.step} {step:,}") for name, value in values.items()
        ]
    if not over and look.status.checkpoint:
        found.append(("Checkpoint", f"{of.step} {status.checkpoint:,}", "the newest whole one"))
    return found


def _price(look: Look, of: Counting) -> markup.Figure:
    cost = look.cost
    if cost.tokens:
        so_far = "in all" if is_over(look) else "so far"
        price = worth(cost.dollars_per_million_tokens, has_price(cost))
        return ("A million tokens", price, f"{cost.tokens:,} {so_far}")
    price = worth(of.price(cost.dollars_per_thousand_samples), cost.samples > 0 and has_price(cost))
    return (of.priced.capitalize(), price, f"{cost.samples // of.samples:,} trained")


def _saved(other: float, own: float) -> tuple[str, str]:
    return (money(other - own), f"{(other - own) / other:.0%} of {money(other)}") if other else ("–", "")


def charts(source: Source) -> None:
    look = source.look()
    axis = st.session_state.get("over") or AXES[0]
    since = since_of(look.history, st.session_state.get("last") or "all", look.at)
    draw_curves(look, View(look.history, axis, since), "overview")


def draw_curves(look: Look, view: View, key: str, beside: bool = False) -> None:
    """The loss, large, and the others below it; or the loss and the speed ``beside`` each other. Incidents on each."""
    found, incidents = curves(view), marks(view)
    if not found:
        words = f"No {counting(look).step} is committed yet: the curves begin with the first one."
        words = "The run's log is being read." if look.reading or look.status.step else words
        st.html(markup.note("Nothing was committed in this time." if look.history.steps else words))
        return
    elapsed = view.zero is not None
    where = "seconds after its origin" if elapsed else zone_in_words(zone(), look.at)
    title = axis_title(look.history, view.axis, where)
    first, *others = found[:2] if beside else found[: 1 + SMALL]
    if not beside:
        _curve(first, view, title, incidents, f"{key}-{first.name}", 280)
        st.html(markup.note(incident_note(view)))
    small = [first, *others] if beside else others
    columns = st.columns(min(3, len(small))) if small else []
    for i, curve in enumerate(small):
        with columns[i % len(columns)]:
            _curve(curve, view, title, incidents, f"{key}-{curve.name}", 170 if beside else 130)


def incident_note(view: View) -> str:
    kinds: dict[str, int] = {}
    for _, incident in marks(view):
        kinds[incident.kind] = kinds.get(incident.kind, 0) + 1
    told = ", ".join(f"{number} {kind}" for kind, number in kinds.items())
    dashed = f"Dashed lines are incidents ({told}). " if told else ""
    return f"{dashed}The band is the spread within a point; dots are evaluations."


def _curve(
    curve: Curve, view: View, title: str, incidents: list[tuple[float, Incident]], key: str, height: int
) -> None:
    spec = curve_spec(curve, view.axis, title, scheme(), height, view.zero is not None)
    newest = curve.last
    figure = f"{newest:,.4g}" if newest is not None and math.isfinite(newest) else ""
    st.html(markup.chart_title(curve.name, figure))
    chart(spec, curve_data(curve, incidents, zone()), curve_alt(curve, title, len(incidents)), key)
