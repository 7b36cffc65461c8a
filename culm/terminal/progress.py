"""What a run shows while it goes on: a live display on a terminal, plain lines elsewhere."""

import sys
from collections import deque
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from culm.pipeline.counting import of_chunks
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
        for event in events:
            if event.kind in SHOWN:
                print(f"{self._title} | {event.text}", file=sys.stderr, flush=True)
            elif event.kind == "commit" and int(event.fields["step"]) // every != self._said:
                self._said = int(event.fields["step"]) // every
                of = of_chunks(status.graph.chunks)
                rate = of.speed(status.samples_per_second)
                loss = float(event.fields["loss"])
                step = int(event.fields["step"]) + 1
                told = [f"{of.step} {step}/{status.steps}", in_words(status, step), f"loss {loss:.4f}", rate]
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
            TextColumn("loss {task.fields[loss]}"),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            console=self._console,
        )
        self._task = self._bar.add_task("steps", total=None, trained="", loss="-", rate="-")
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
        loss = f"{outcome.losses[-1]:.4f}" if outcome.losses else "-"
        self._bar.update(
            self._task,
            total=status.steps,
            completed=status.step,
            trained=in_words(status, status.step),
            loss=loss,
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
    table = Table("node", "pid", "state", "stages", "standby of", "running", box=None, padding=(0, 2))
    for node in sorted(status.nodes, key=lambda n: (len(n.id), n.id)):
        style = STATE_STYLES.get(node.state, OTHER)
        stages, standby = duties_in_words(status, node), standbys_in_words(status, node)
        # As Text, which holds no markup: other processes chose the names and the words.
        state, words = Text(node.state, style=style), (stages, standby, node.instruction)
        table.add_row(Text(node.id), str(node.pid), state, *map(Text, words))
    exposed = [f"stage {s} for {x:.1f} s" for s, x in sorted(status.exposure.items()) if x > 0]
    if exposed:
        table.caption = f"[red]without a hot standby: {', '.join(exposed)}"
    return table


def duties_in_words(status: pb.GetStatusResponse, node: pb.NodeStatus) -> str:
    """The stages that a node runs, and of which pipelines, where it does not run all of them: ``1 (p0, p2)``."""
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
    return ", ".join(told)


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
