"""What several pages show, and how a page is drawn: in panels, each again after its own time."""

import functools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import tzinfo
from typing import Any, Literal

import pyarrow as pa
import streamlit as st

from culm.pipeline.money.example_prices import WORDS as EXAMPLE_PRICES
from culm.pipeline.money.example_prices import at_example_prices
from culm.ui import markup
from culm.ui.charts import Spec
from culm.ui.counting import chunks_of
from culm.ui.curves import Columns
from culm.ui.look import Look
from culm.ui.node_order import in_order
from culm.ui.source import Source
from culm.ui.standing import alerts, has_price, is_over, standing
from culm.ui.words import literal, money, zone_in_words, zone_of

log = logging.getLogger("culm.ui")

TEXT_SECONDS = 1.5  # between two drawings of figures
TABLE_SECONDS = 3.0
CHART_SECONDS = 5.0
OVER_SECONDS = 15.0  # of everything, once the run is over: another one may begin at the same address
ROWS = 11  # of a table that is shown whole
MANY = 64  # nodes; of more every panel is drawn half as often

Draw = Callable[[Source], None]


def interval(look: Look, every: float, still: bool) -> float | None:
    """After how many seconds a panel is drawn again; None: never."""
    if still:
        return None
    if is_over(look):
        return OVER_SECONDS
    return every * (2 if len(look.status.nodes) > MANY else 1)


def panel(draw: Draw, source: Source, every: float) -> None:
    """Draws a part of a page now and again later. When the run ends, or another begins, the page is drawn anew."""
    before = source.look()
    over, on_graph = is_over(before), chunks_of(before) > 0

    @functools.wraps(draw)
    def drawn(source: Source) -> None:
        guarded(draw)(source)
        now = source.look()
        if is_over(now) != over or (chunks_of(now) > 0) != on_graph:
            st.rerun()

    st.fragment(drawn, run_every=interval(before, every, source.still))(source)


def guarded(draw: Draw) -> Draw:
    """The same, but what it raises is told in one line on the page, and whole in the log."""

    @functools.wraps(draw)
    def drawn(source: Source) -> None:
        try:
            draw(source)
        except Exception as error:
            log.exception("could not draw a part of the page")
            what = " ".join(str(error).split())[:300] or type(error).__name__
            st.error(literal(f"This part of the page could not be drawn: {what}. The log of culm ui has more."))

    return drawn


def scheme() -> str:
    """The page's: "light" or "dark"."""
    return "dark" if st.context.theme.type == "dark" else "light"


def zone() -> tzinfo:
    """Where the page is looked at."""
    return zone_of(st.context.timezone, st.context.timezone_offset)


def banner(look: Look) -> None:
    """How the run stands, in one line, and what everybody has to know first."""
    now = standing(look)
    head = markup.head(now.word, now.tone, now.name, now.told, now.share)
    st.html(head + markup.alerts(alerts(look, zone())) + markup.firing(look.firing, moment_of(look)))


def moment_of(look: Look) -> float:
    """Unix seconds: now, or as of when a recording shows; a coordinator that is away has told nothing since."""
    return time.time() if look.problem else look.at


def show_banner(source: Source) -> None:
    banner(source.look())


def zone_note(look: Look) -> str:
    return f"Times are {zone_in_words(zone(), look.at or 0.0)}."


def chart(spec: Spec, data: Mapping[str, Columns], alt: str, key: str) -> None:
    """A chart. Its key stays, so that the browser changes the data in place."""
    tables = {name: _table(columns) for name, columns in data.items()}
    st.vega_lite_chart(None, {**spec, "datasets": tables}, width="stretch", key=key, alt=alt)


def _table(columns: Columns) -> Any:
    return pa.table(
        {name: pa.array(values) if values else pa.array([], pa.float64()) for name, values in columns.items()}
    )


def height_of(rows: Sequence[object], most: int = 430) -> int | Literal["content"]:
    """Of a table: as high as its rows, or so high that the rest of the page stays near."""
    return "content" if len(rows) <= ROWS else most


def spent(look: Look) -> markup.Figure:
    """The money that the run has cost."""
    cost = look.cost
    if not has_price(cost):
        return ("Spent", "–", "no price is known")
    made_up = f", {EXAMPLE_PRICES}" if at_example_prices(cost.nodes) else ""
    if is_over(look):
        return ("Spent", money(cost.dollars), f"in all{made_up}")
    hour = f"{money(cost.dollars_per_hour)} an hour {'then' if look.problem else 'now'}"
    return ("Spent", money(cost.dollars), f"{hour}{made_up}")


def preempt(source: Source) -> None:
    """A button that opens a dialog, which preempts a node: where the coordinator allows it, while the run goes on."""
    look = source.look()
    if is_over(look) or look.problem or not look.status.nodes or source.recorded:
        return
    if not look.status.kill_allowed:
        st.html(markup.note("Nodes can be preempted from here if the coordinator is started with --allow-kill."))
    elif st.button("Preempt a node …", icon=":material/bolt:", key="preempt"):
        _ask(source)


@st.dialog("Preempt a node", icon=":material/bolt:")
def _ask(source: Source) -> None:
    nodes = {node.id: node for node in sorted(source.look().status.nodes, key=in_order)}
    st.html(markup.note("Its process ends at once, as on a spot market: kill -9, without notice."))
    chosen = st.selectbox("Node", list(nodes), key="victim")
    node = nodes.get(chosen or "")
    if node is not None:
        runs = f"runs stage {', '.join(map(str, node.stages))}" if node.stages else "runs no stage"
        stands = f", stands by for {', '.join(map(str, node.standby_of))}" if node.standby_of else ""
        st.html(markup.note(f"{node.id} {runs}{stands}; process {node.pid} at {node.address}"))
    if st.button("Preempt it now", type="primary", icon=":material/bolt:", key="preempt_now", disabled=node is None):
        said = source.kill(chosen or "")
        st.session_state["said"] = said
        st.rerun()


def tell_what_was_said() -> None:
    """What became of the last preemption, once."""
    said = st.session_state.pop("said", None)
    if said:
        st.toast(literal(said), icon=":material/bolt:")
