"""A run on a graph: who holds which chunks, how old values are, and what tensor workers do."""

import streamlit as st

from culm.pipeline.counting import amount, counted
from culm.pipeline.messages import tensor_workers_from_proto
from culm.pipeline.resources import TensorWorkers
from culm.protos import coordinator_pb2 as pb
from culm.ui import markup
from culm.ui.chunk_map import chunk_map, chunks_by_server, in_ranges
from culm.ui.counting import chunks_of, counting
from culm.ui.curves import RANGES
from culm.ui.look import Look
from culm.ui.node_order import in_order
from culm.ui.screens.node_charts import NodeChart, draw_trends
from culm.ui.screens.widgets import (
    CHART_SECONDS,
    TABLE_SECONDS,
    TEXT_SECONDS,
    banner,
    height_of,
    panel,
    preempt,
    zone_note,
)
from culm.ui.source import Source
from culm.ui.stage_map import lost_lately
from culm.ui.standing import is_over
from culm.ui.tensor_work import age_in_words, servers, workers_in_words
from culm.ui.trends import Trends
from culm.ui.words import money, span

EXPLAINED = (
    "Tasks: a layer's work with its parameters, which workers do for the servers. Repeated: given to a second worker, "
    "since the first was late. A worker that is gone counts no more, and its task waits again. Servers tell their "
    "queues every 5 s. docs/graphs.md has more."
)


def _count(value: float) -> str:
    return f"{value:.3g}"


CHARTS = (
    NodeChart("waiting", "tasks that wait for a worker", "d", Trends.tasks_waiting, _count),
    NodeChart("workers", "tensor workers at a server", "d", Trends.workers, _count),
    NodeChart("tasks", "tasks a second, done by workers", "~s", Trends.tasks_per_second, _count),
    NodeChart("working", "workers that have a task, in the mean", "~s", Trends.workers_at_work, _count),
)


def show(source: Source) -> None:
    panel(picture, source, TEXT_SECONDS)
    preempt(source)
    st.segmented_control("Range", list(RANGES), default="all", required=True, key="last", bind="query-params")
    panel(charts, source, CHART_SECONDS)
    panel(listing, source, TABLE_SECONDS)


def picture(source: Source) -> None:
    look = source.look()
    banner(look)
    st.html(markup.figures(told(look)))
    holders(look)


def holders(look: Look) -> None:
    """Who holds which chunks, and why it is so."""
    status = look.status
    lost = [] if is_over(look) else lost_lately(status, look.history.gone, look.at)
    if not status.nodes and not lost:
        gone = "The graph servers have gone: the run is over."
        st.html(markup.note(gone if is_over(look) else "No graph server is here. Start one with culm graph-server."))
        return
    st.html(chunk_map(status, lost))
    if status.plan.reason:
        st.html(markup.note(f"Plan {status.generation}: {status.plan.reason}"))


def told(look: Look) -> list[markup.Figure]:
    """The graph's part of the run in figures."""
    status, cost, of, over = look.status, look.cost, counting(look), is_over(look)
    mean = cost.samples / of.samples / cost.seconds if cost.seconds else 0.0
    now = status.samples_per_second / of.samples
    held, work = chunks_by_server(status), look.history.trends.work.total()
    waiting = sum(node.resources.tensor_workers.waiting for node in servers(status))
    shared = f"of {counted(len(held), 'graph server')}" if held else "no server holds any"
    speed = (amount(mean), "mean of the run") if over else (amount(now), f"{amount(mean)} on average")
    repeated = f"{work.repeated:,} repeated" if work.repeated else "none repeated"
    return [
        ("Epochs a second", *speed),
        ("Chunks", f"{chunks_of(look):,}", shared),
        ("Values of other chunks", *(("–", "") if over else age_in_words(status))),
        ("Tensor workers", *(("–", "the run is over") if over else workers_in_words(status))),
        ("Tasks waiting", "–" if over else f"{waiting:,}", "for a worker"),
        ("Tasks done", f"{work.done:,}", repeated if work.done else "by workers"),
        ("Workers' time", span(work.seconds), "with a task, all together"),
        ("GB-seconds", billed(work)[0], money(cost.worker_dollars) if cost.worker_dollars else billed(work)[1]),
    ]


def billed(work: TensorWorkers) -> tuple[str, str]:
    """What a function service bills of the workers' time. Workers that are no functions may tell no memory."""
    if work.seconds and not work.gigabyte_seconds:
        return "–", "workers tell no memory"
    return amount(work.gigabyte_seconds), "the time that workers are there, times their memory"


def charts(source: Source) -> None:
    look = source.look()
    if look.history.begun:
        draw_trends(look, source.still, CHARTS)


def listing(source: Source) -> None:
    look = source.look()
    rows = [row(node, look) for node in sorted(look.status.nodes, key=in_order)]
    if rows:
        st.html(markup.chart_title("graph servers", "since each process started"))
        st.dataframe(
            rows, hide_index=True, width="stretch", height=height_of(rows), key="servers", alt="The graph servers"
        )
    st.html(markup.note(f"{EXPLAINED} {zone_note(look)}"))


def row(node: pb.NodeStatus, look: Look) -> dict[str, object]:
    """A line of the table."""
    work, held = node.resources.tensor_workers, chunks_by_server(look.status).get(node.id, [])
    return {
        "server": node.id,
        "state": node.state,
        "chunks": in_ranges(held) or "none",
        "workers": str(work.workers),
        "tasks waiting": f"{work.waiting:,}",
        "done": f"{work.done:,}",
        "repeated": f"{work.repeated:,}",
        "workers' time": span(work.seconds),
        "GB-seconds": billed(tensor_workers_from_proto(work))[0],
        "runs now": node.instruction,
    }
