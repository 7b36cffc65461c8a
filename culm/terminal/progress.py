"""What a run shows while it goes on: a live display on a terminal, plain lines elsewhere."""

import sys
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from culm.pipeline.counting import counted as number_of
from culm.pipeline.counting import of_chunks, ranges
from culm.pipeline.epochs import in_words
from culm.protos import coordinator_pb2 as pb
from culm.terminal.outcome import DONE, Outcome

# Kinds of events that whoever watches a run wants to see. Commits have a form of their own.
SHOWN = {
    "joined",
    "plan",
    "lost",
    "evaluated",
    "untracked",
    "pausing",
    "paused",
    "unpaused",
    "unpriced",
    "save_asked",
    "resumed",
    "recovered",
    "hot",
    "rollback",
    "waiting",
    "stalled",
    "moving",
    "checkpoint_fault",
    "done",
    "failed",
    "left",
}


STATE_STYLES = {"active": "green", "spare": "cyan", "detached": "red", "lost": "bold red"}  # of a node; else OTHER
OTHER = "yellow"


class Display(Protocol):
    """Shows a run."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def watch(self, status: pb.GetStatusResponse, events: list[pb.ListEventsResponse], outcome: Outcome) -> None: ...


class Lines:
    """A line for each event, and about twenty for the steps of a run. To stderr, so that stdout stays for results."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._said = -1
        self._detail = DONE  # the last detail shown; this first one comes as an event already

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return

    def watch(self, status: pb.GetStatusResponse, events: list[pb.ListEventsResponse], outcome: Outcome) -> None:
        every = max(1, status.steps // 20)
        of = of_chunks(status.graph.chunks)
        for event in events:
            if event.kind in SHOWN:
                print(f"{self._title} | {event.text}", file=sys.stderr, flush=True)
            elif event.kind == "commit" and int(event.fields["step"]) // every != self._said:
                self._said = int(event.fields["step"]) // every
                rate = of.speed(status.samples_per_second)
                step = int(event.fields["step"]) + 1
                numbers = {"loss": float(event.fields["loss"]), **outcome.metrics.get(step - 1, {})}
                told = [f"{of.step} {step}/{status.steps}", in_words(status, step), in_figures(numbers, "  "), rate]
                print(f"{self._title} | {'  '.join(filter(None, told))}", file=sys.stderr, flush=True)
        if status.phase == "done" and status.detail not in (self._detail, status.stopped_early):
            self._detail = status.detail
            print(f"{self._title} | {status.detail}", file=sys.stderr, flush=True)


class Screen:
    """The live display."""

    def __init__(self, title: str) -> None:
        self._console = Console(stderr=True)
        self._bar = Progress(
            TextColumn(title, style="bold", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[trained]}"),
            TextColumn("{task.fields[numbers]}"),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            console=self._console,
        )
        self._task = self._bar.add_task("steps", total=None, trained="", numbers="loss -", rate="-")
        self._log: deque[str] = deque(maxlen=6)
        self._live = Live(console=self._console, refresh_per_second=8)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def watch(self, status: pb.GetStatusResponse, events: list[pb.ListEventsResponse], outcome: Outcome) -> None:
        self._log.extend(event.text for event in events if event.kind in SHOWN)
        self._bar.update(
            self._task,
            total=status.steps,
            completed=status.step,
            trained=in_words(status, status.step),
            numbers=in_figures(newest(outcome), "  ") or "loss -",
            rate=of_chunks(status.graph.chunks).speed(status.samples_per_second),
        )
        parts: list[RenderableType] = [self._bar, nodes_table(status)]
        if outcome.losses_of_nodes:
            parts.append(lost_nodes_table(outcome))
        if status.phase != "running":
            parts.append(Text(status.detail, style="yellow"))
        parts.append(Text("\n".join(self._log), style="dim", overflow="ellipsis", no_wrap=True))
        self._live.update(Group(*parts))


def nodes_table(status: pb.GetStatusResponse) -> Table:
    """Who runs what now."""
    of = of_chunks(status.graph.chunks)
    duties = f"{of.share if status.graph.chunks else of.part}s"
    table = Table(of.node, "pid", "state", duties, "standby of", "running", box=None, padding=(0, 2))
    for node in sorted(status.nodes, key=lambda n: (len(n.id), n.id)):
        style = STATE_STYLES.get(node.state, OTHER)
        stages, standby = duties_in_words(status, node), standbys_in_words(status, node)
        # As Text, which holds no markup: other processes chose the names and the words.
        state, words = Text(node.state, style=style), (stages, standby, node.instruction)
        table.add_row(Text(node.id), str(node.pid), state, *map(Text, words))
    exposed = [f"{of.part} {s} for {x:.1f} s" for s, x in sorted(status.exposure.items()) if x > 0]
    if exposed:
        table.caption = f"[red]without a hot standby: {', '.join(exposed)}"
    return table


def duties_in_words(status: pb.GetStatusResponse, node: pb.NodeStatus) -> str:
    """The stages that a node runs, and of which pipelines, where it does not run all of them: ``1 (p0, p2)``.

    On a graph its chunks, of which it runs every layer: ``0-3, 6``.
    """
    if status.graph.chunks:
        stages = status.plan.stages
        return ranges({chunk for stage in stages for chunk, owner in enumerate(stage.owners) if owner == node.id})
    told = []
    for s in node.stages:
        owners = status.plan.stages[s].owners if s < len(status.plan.stages) else []
        mine = [f"p{p}" for p, owner in enumerate(owners) if owner == node.id]
        told.append(f"{s} ({', '.join(mine)})" if len(mine) < len(owners) else str(s))
    return ", ".join(told)


def standbys_in_words(status: pb.GetStatusResponse, node: pb.NodeStatus) -> str:
    """The stages that a node stands by for, and which it is being seeded with: ``2, 3 (seeding)``."""
    told = []
    for s in node.standby_of:
        standbys = status.plan.stages[s].standbys if s < len(status.plan.stages) else []
        hot = any(b.hot for b in standbys if b.node == node.id)
        told.append(str(s) if hot else f"{s} (seeding)")
    what = "layers " if status.graph.chunks and told else ""
    return f"{what}{', '.join(told)}"


def newest(outcome: Outcome) -> dict[str, float]:
    """The loss and the metrics of the newest step."""
    if not outcome.losses:
        return {}
    return {"loss": outcome.losses[-1], **outcome.metrics.get(outcome.first_step + len(outcome.losses) - 1, {})}


def in_figures(numbers: Mapping[str, float], between: str = ", ") -> str:
    return between.join(f"{name} {number:.4f}" for name, number in numbers.items())


def tensor_workers_in_words(status: pb.GetStatusResponse) -> str:
    """How many there are, and what they have done for the servers that are there; empty: they have done nothing."""
    told = [node.resources.tensor_workers for node in status.nodes if node.resources.HasField("tensor_workers")]
    # One worker may offer itself to every server.
    count, done = max((each.workers for each in told), default=0), sum(each.done for each in told)
    if not count and not done and not status.workers_wanted:
        return ""
    wanted = f" of {status.workers_wanted} that are wanted" if status.workers_wanted else ""
    late = sum(each.repeated for each in told)
    again = f", {late} of them given to a second worker" if late else ""
    return f"tensor workers: {count}{wanted}, {number_of(done, 'task')} done{again}"


def lost_nodes_table(outcome: Outcome) -> Table:
    """The lost nodes that the run survived."""
    table = Table("lost", "stage", "step", "detected after", "resumed after", "redone", box=None, padding=(0, 2))
    for x in outcome.losses_of_nodes:
        times = (f"{x['detect_ms']:.0f} ms", f"{x['resume_ms']:.0f} ms")
        table.add_row(Text(x["node"]), str(x["stage"]), str(x["step"]), *times, f"{x['redone']} instructions")
    return table


def counted(text: str) -> None:
    """Writes a line over the one before, if stderr is a terminal. An empty text ends it."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}" if text else "", end="" if text else "\n", file=sys.stderr, flush=True)


def display(title: str, plain: bool = False) -> Display:
    """A live display if stderr is a terminal, else plain lines."""
    return Lines(title) if plain or not sys.stderr.isatty() else Screen(title)
