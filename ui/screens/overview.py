"""How far, how fast, at what price."""

import streamlit as st

from culm.pipeline.epochs import in_words
from culm.protos import coordinator_pb2 as pb
from culm.ui.charts import loss_curve
from culm.ui.screens.widgets import banner, spent, tiles
from culm.ui.source import Source
from culm.ui.words import counted, literal, money, seconds_left, span


@st.fragment(run_every=1.0)
def show(source: Source) -> None:
    look = source.look()
    status, cost = look.status, look.cost
    banner(look)
    left = seconds_left(status.step, status.steps, status.samples_per_second, status.samples_per_step)
    remaining = "" if left is None or status.phase != "running" else f", about {span(left)} left"
    share = status.step / status.steps if status.steps else 0.0
    st.progress(
        min(share, 1.0),
        f"**{literal(status.job) or 'no run'}**: step {status.step} of {status.steps}{_trained(status)}{remaining}",
    )
    goodput = cost.useful_seconds / cost.seconds if cost.seconds else 0.0
    tokens = money(cost.dollars_per_million_tokens) if cost.tokens else "–"
    rate = look.history.learning_rate
    loss = f"{look.history.losses[-1]:.4f}" if look.history.losses else "–"
    tiles(
        spent(cost),
        ("Samples a second", f"{status.samples_per_second:,.0f}", f"{cost.samples:,} so far"),
        ("Value", f"{cost.value:,.2f}", "samples/s for $1 an hour"),
        ("Goodput", f"{goodput:.1%}", counted(len(cost.interruptions), "interruption")),
    )
    tiles(
        ("Loss", loss, f"learning rate {rate:.3g}" if rate is not None else ""),
        ("A million tokens", tokens, ""),
        ("Saved against on-demand", _saved(cost.on_demand_dollars, cost.dollars), ""),
        ("Saved against checkpoints", _saved(cost.checkpoint_dollars, cost.dollars), ""),
    )
    if look.history.evaluations:
        step, found = max(look.history.evaluations.items())
        each = [
            (f"Evaluated: {literal(name)}", f"{number:.4g}", f"after step {step}") for name, number in found.items()
        ]
        for first in range(0, len(each), 4):
            tiles(*each[first : first + 4])
    st.subheader("Loss")
    if look.history.steps:
        st.vega_lite_chart(None, loss_curve(look.history), width="stretch")
    else:
        st.caption("No step is committed yet: the curve begins with the first one.")


def _trained(status: pb.GetStatusResponse) -> str:
    words = in_words(status, status.step)
    return f", {words}" if words else ""


def _saved(other: float, own: float) -> str:
    return money(other - own) if other else "–"
