"""The picture of ``culm top``: a run and its nodes on one screen, the nodes that need somebody first."""

# From the top: where the run stands, what is wrong with it, its nodes, and what has happened lately. The nodes and the
# incidents share the lines that are left. Where the nodes are too many, those come first that need somebody, and a line
# says how many more there are. Where the screen is narrow, the columns go that matter least.

import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from culm.pipeline.counting import counted, of_chunks
from culm.pipeline.epochs import in_words
from culm.pipeline.money.codec import Entry
from culm.pipeline.money.example_prices import WORDS as EXAMPLE_PRICES
from culm.pipeline.money.example_prices import at_example_prices
from culm.pipeline.text import natural_order
from culm.protos import coordinator_pb2 as pb
from culm.terminal.progress import OTHER, STATE_STYLES, duties_in_words, standbys_in_words
from culm.terminal.recently import Recently
from culm.terminal.severity import Severity, severity_of
from culm.ui.look import Look
from culm.ui.outlook_words import dollars_in_words
from culm.ui.standing import seconds_to_end
from culm.ui.words import clock, money, size, span

INCIDENT_SECONDS = 600.0  # for which an event is shown, and a lost node that nobody has replaced
LEAST_INCIDENTS = 5  # lines that nodes leave to them
WIDEST = 28  # characters of a cell: a node may run many stages
LEAST_BAR, WIDEST_BAR = 4, 30  # characters of the bar that shows the progress
GAP = 2  # characters between two columns
RANKS = ("lost", "detached", "joining", "draining", "active", "spare")  # of states, the worst first


@dataclass(frozen=True, slots=True)
class Column:
    """Of the table of nodes. The columns with the highest ``rank`` go first where the screen is too narrow."""

    title: str
    rank: int
    least: int = 0  # characters: so that a column does not grow and shrink with what it shows
    right: bool = False


NODE, STATE, STAGES, STANDBY = Column("node", 0), Column("state", 0, 8), Column("stages", 0), Column("standby of", 4)
CHUNKS = Column("chunks", 0)  # of a graph, in place of stages
RUNS, BUBBLE = Column("runs", 1, 6), Column("bubble", 2, right=True)
SPEED, SENT = Column("sent/s", 3, 8, right=True), Column("sent", 6, 8, right=True)
PRICE, SPENT = Column("$/h", 5, 5, right=True), Column("spent", 7, right=True)
ZONE, MACHINE, PID = Column("zone", 8), Column("machine", 9), Column("pid", 10, right=True)
COLUMNS = (NODE, STATE, STAGES, CHUNKS, STANDBY, RUNS, BUBBLE, SPEED, SENT, PRICE, SPENT, ZONE, MACHINE, PID)


def picture(look: Look, recently: Recently, width: int, height: int | None = None) -> RenderableType:
    """The picture, ``width`` characters wide. ``height``: lines that there are; None: as many as it takes."""
    now = look.at or time.time()
    head = [*_head(look, width), *_problems(look)]
    incidents = [e for e in look.history.notable if now - e.time < INCIDENT_SECONDS and _is_incident(e)]
    rows = _rows(look, recently, now)
    most_rows, most_incidents = len(rows), len(incidents)
    if height is not None:
        left = max(2, height - len(head) - 4)  # two empty lines, and the titles of the two tables
        most_rows = max(1, left - min(len(incidents), max(LEAST_INCIDENTS, height // 4)))
        if len(rows) > most_rows:
            most_rows -= 1  # for the line that says so
            rows.sort(key=lambda row: (row.rank, -row.bubble))
        most_incidents = max(0, left - min(len(rows), most_rows + 1))
    parts: list[RenderableType] = [*head, Text()]
    parts.append(_table(rows[:most_rows], width) if rows else Text("No node has joined yet.", style="dim"))
    if more := Counter(row.state for row in rows[most_rows:]):
        parts.append(Text(f"and {sum(more.values())} more: {_states(more)}", style="dim"))
    parts += [Text(), Text(_title(len(incidents)), style="bold")]
    shown = incidents[-most_incidents:] if most_incidents else []
    parts += [_incident(event) for event in shown]
    return Group(*parts)


# ---- the head --------------------------------------------------------------------------------------------------------
def _head(look: Look, width: int) -> Iterator[RenderableType]:
    """Three lines: which run it is, how far and how fast, and what it costs. Before a look there is nothing to tell."""
    status, cost = look.status, look.cost
    title = Table.grid(expand=True)
    title.add_column(no_wrap=True, overflow="ellipsis")
    title.add_column(no_wrap=True, justify="right")
    states = Counter(node.state for node in status.nodes)
    told = f"{counted(len(status.nodes), 'node')}: {_states(states)}" if states else "no node"
    name = Text.assemble((status.job or "culm top", "bold"), f"  {status.phase}  {told}")
    title.add_row(name, Text(clock(look.at) if look.at else "", style="dim"))
    yield title
    loss = "-" if not look.at or math.isnan(status.loss) else f"{status.loss:.4f}"
    left = seconds_to_end(look)
    of = of_chunks(status.graph.chunks)
    words = [
        f"{of.step} {status.step:,}/{status.steps:,}",
        f"loss {loss}",
        of.speed(status.samples_per_second),
        f"{span(left)} left" if left is not None and status.phase == "running" else "",
    ]
    line = Text("  ".join(filter(None, words)))
    bar_width = min(WIDEST_BAR, width - cell_len(line.plain) - GAP)
    progress = Table.grid(padding=(0, GAP, 0, 0))
    if bar_width > LEAST_BAR:
        bar = ProgressBar(total=max(1, status.steps), completed=status.step, width=bar_width, complete_style="green")
        progress.add_row(bar, line)
        yield progress
    else:
        yield _cut(line)
    goodput = f"goodput {cost.useful_seconds / cost.seconds:.1%}" if cost.seconds else ""
    hour = f"{money(cost.dollars_per_hour)} an hour {'at the end' if cost.done else 'now'}"
    plan = f"plan {status.generation}, term {status.term}"
    made_up = EXAMPLE_PRICES if at_example_prices(cost.nodes) else ""
    to_come = f"{dollars} to come" if (dollars := dollars_in_words(cost.forecast)) and not cost.done else ""
    told_of_money = (money(cost.dollars), hour, to_come, made_up, goodput, in_words(status, status.step), plan)
    yield _cut(Text("  ".join(filter(None, told_of_money))))


def _problems(look: Look) -> Iterator[Text]:
    """What everybody has to know first, a line each."""
    status = look.status
    if look.problem:
        yield _cut(Text(look.problem.replace("this page shows", "this is"), style="bold red"))
    if status.phase in ("waiting", "failed", "done"):
        style = {"waiting": "yellow", "failed": "bold red"}.get(status.phase, "green")
        yield _cut(Text(status.detail, style=style))
    if status.stalled_seconds:
        told = f"No commit for {span(status.stalled_seconds)}, waiting for {status.awaited}"
        yield _cut(Text(told, style="bold red"))
    exposed = {s: seconds for s, seconds in sorted(status.exposure.items()) if seconds > 0}
    if exposed and status.phase == "running" and len(status.nodes) > 1:
        part = of_chunks(status.graph.chunks).part
        which = f"{part}{'s' if len(exposed) > 1 else ''} {', '.join(map(str, exposed))}"
        yield _cut(Text(f"Without a hot standby for up to {span(max(exposed.values()))}: {which}", style="yellow"))
    if status.checkpoint_fault:
        yield _cut(Text(status.checkpoint_fault, style="yellow"))


# ---- nodes -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A node. ``cells``: what its columns show."""

    state: str
    bubble: float  # share; -1: not known
    cells: dict[Column, str]

    @property
    def rank(self) -> int:
        return RANKS.index(self.state) if self.state in RANKS else 0


def _rows(look: Look, recently: Recently, now: float) -> list[Row]:
    """Those that need somebody first, else by name. A lost node is among them until it is back, or long gone."""
    here = {node.id: node for node in look.status.nodes}
    gone = {n: at for n, at in look.history.gone.items() if n not in here and now - at < INCIDENT_SECONDS}
    rows = []
    for name in natural_order([*here, *gone]):
        if name in here:
            rows.append(_row(look.status, here[name], recently))
        else:
            cells = {NODE: name, STATE: "lost", RUNS: f"{span(now - gone[name])} ago"}
            rows.append(Row(state="lost", bubble=-1.0, cells=cells))
    rows.sort(key=lambda row: row.rank)
    return rows


def _row(status: pb.GetStatusResponse, node: pb.NodeStatus, recently: Recently) -> Row:
    share, speed, machine = recently.bubble_share(node), recently.sent_per_second(node), node.machine
    cells = {
        NODE: node.id,
        STATE: node.state,
        CHUNKS if status.graph.chunks else STAGES: duties_in_words(status, node),
        STANDBY: standbys_in_words(status, node),
        RUNS: node.instruction,
        BUBBLE: f"{share:.0%}" if share is not None else "",
        SPEED: size(speed) if speed is not None else "",
        SENT: size(sum(node.sent_bytes.values())),
        PRICE: f"{node.price_per_hour:.2f}" if node.price_per_hour else "",
        SPENT: money(node.spent) if node.spent else "",
        ZONE: node.zone,
        MACHINE: " ".join(filter(None, (machine.instance_type, machine.market))),
        PID: str(node.pid) if node.pid else "",
    }
    return Row(state=node.state, bubble=-1.0 if share is None else share, cells=cells)


def _table(rows: Sequence[Row], width: int) -> Table:
    """The columns that fit, of those that have something to show."""
    widths = {column: _width(column, rows) for column in COLUMNS}
    other = STAGES if any(CHUNKS in row.cells for row in rows) else CHUNKS
    shown = [column for column in COLUMNS if column is not other]
    columns = [c for c in shown if c.rank < SPEED.rank or any(row.cells.get(c) for row in rows)]
    while sum(widths[c] + GAP for c in columns) - GAP > width and any(c.rank for c in columns):
        columns.remove(max(columns, key=lambda c: c.rank))
    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="bold")
    for column in columns:
        justify = "right" if column.right else "left"
        table.add_column(column.title, justify=justify, width=widths[column], no_wrap=True, overflow="ellipsis")  # type: ignore[arg-type]
    for row in rows:
        style = STATE_STYLES.get(row.state, OTHER)
        # As Text, which holds no markup: other processes chose the names and the words.
        cells = [Text(row.cells.get(c, ""), style=style if c in (NODE, STATE) else "") for c in columns]
        table.add_row(*cells, style="red" if row.state == "lost" else "")
    return table


def _width(column: Column, rows: Sequence[Row]) -> int:
    needed = max((cell_len(row.cells.get(column, "")) for row in rows), default=0)
    return max(cell_len(column.title), column.least, min(needed, WIDEST))


def _states(states: Counter[str]) -> str:
    return ", ".join(f"{states[state]} {state}" for state in RANKS[::-1][1:] + RANKS[-1:] if states[state])


# ---- incidents -------------------------------------------------------------------------------------------------------
def _is_incident(event: Entry) -> bool:
    return severity_of(event.kind) is not Severity.ROUTINE


def _title(count: int) -> str:
    minutes = f"the last {INCIDENT_SECONDS / 60:.0f} minutes"
    return f"{counted(count, 'event')} in {minutes}" if count else f"Nothing has happened in {minutes}."


def _incident(event: Entry) -> Text:
    told = Text.assemble((clock(event.time), "dim"), " ", (f"{event.kind:<10}", severity_of(event.kind).value), " ")
    return _cut(told.append(event.text))


def _cut(line: Text) -> Text:
    """One line, whatever its length."""
    line.no_wrap, line.overflow = True, "ellipsis"
    return line
