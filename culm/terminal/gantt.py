"""A step's timetable as text: a row a node, a column a share of the step's time."""

from collections.abc import Iterable, Sequence

from rich.table import Table
from rich.text import Text

from culm.pipeline.critical_path import WAYS
from culm.pipeline.ideal_step import IdealStep
from culm.pipeline.timetable import BETWEEN, MEANING, USES, Lane, Timetable

# What fills a column, and its colour on a terminal. What an instruction is stands at its begin, where there is room.
FILL = {
    "forward": ("f", "black on bright_blue"),
    "backward": ("b", "black on green"),
    "weights": ("w", "black on cyan"),
    "redundant": ("r", "black on magenta"),
    "load": ("l", "black on yellow"),
    "reduce": ("+", "black on bright_magenta"),
    "sum": ("+", "black on bright_magenta"),
    "apply": ("a", "black on bright_red"),
    "state": ("s", "black on white"),
    "bubble": (".", "dim"),
    "commit": (",", "dim"),
    "idle": (" ", "dim"),
    BETWEEN: (" ", "dim"),
}
LEAST, MOST = 8, 240  # columns of a row
WAY_MEANING = {
    "between": "from one piece of work to the next",
    "travel": "a result on its way to another node",
    "taken": "from there until it is used",
    "ready": "until a whole gradient is reported",
    "commit": "from the last report to the commit",
    "applied": "until the commit is applied",
}
Piece = tuple[str, str, float, float]  # use, name, begin, end
NOTHING = -1


def ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


def row(pieces: Iterable[Piece], begin: float, seconds: float, width: int) -> Text:
    """Each column shows what took most of it; a piece of work that has columns enough shows its name."""
    spent: list[dict[int, float]] = [{} for _ in range(width)]
    drawn = list(pieces)
    column = seconds / width if seconds else 1.0
    for number, (_, _, since, until) in enumerate(drawn):
        first, last = int((since - begin) / column), int((until - begin) / column)
        for place in range(max(0, first), min(width, last + 1)):
            left = begin + place * column
            if (within := min(until, left + column) - max(since, left)) > 0.0:
                spent[place][number] = within
    shown = [max(each, key=each.__getitem__, default=NOTHING) for each in spent]
    text = Text(no_wrap=True)
    place = 0
    while place < width:
        number, end = shown[place], place
        while end < width and shown[end] == number:
            end += 1
        use, name = drawn[number][:2] if number != NOTHING else (BETWEEN, "")
        fill, style = FILL[use]
        label = name if len(name) <= end - place and use in USES[:4] else ""
        text.append(label + fill * (end - place - len(label)), style)
        place = end
    return text


def _pieces(timetable: Timetable, lane: Lane) -> list[Piece]:
    """Names without the stage, where the node has one: the row's title has it."""
    short = len(lane.stages) == 1
    return [
        (s.use, s.instruction.of_stage if short and s.instruction is not None else s.name, begin, end)
        for s, begin, end in timetable.inside(lane)
    ]


def title(lane: Lane) -> str:
    stages = ",".join(map(str, lane.stages))
    return f"{lane.node} s{stages}" if stages else lane.node


def chart(timetable: Timetable, ideal: IdealStep | None, width: int) -> Text:
    """The step as measured, and below it its ideal in the same scale."""
    names = {lane.node: title(lane) for lane in timetable.lanes}
    margin = max(map(len, names.values()), default=0)
    columns = max(LEAST, min(MOST, width - margin - 4))
    text = Text(no_wrap=True, overflow="crop")
    seconds = max(timetable.seconds, ideal.seconds if ideal is not None else 0.0)
    for lane in timetable.lanes:
        drawn = row(_pieces(timetable, lane), timetable.begin, seconds, columns)
        text.append_text(Text(f"{names[lane.node]:<{margin}} |")).append_text(drawn).append("|\n")
    if ideal is not None:
        text.append("ideal\n", "bold")
        for lane in timetable.lanes:
            spans = ideal.spans.get(lane.node, ())
            short = len(lane.stages) == 1
            use = {"F": "forward", "E": "forward", "B": "backward", "W": "weights"}
            pieces = [
                (use[s.instruction.op], s.instruction.of_stage if short else str(s.instruction), s.begin, s.end)
                for s in spans
            ]
            drawn = row(pieces, 0.0, seconds, columns)
            text.append_text(Text(f"{names[lane.node]:<{margin}} |")).append_text(drawn).append("|\n")
    ends = f"0{ms(seconds):>{columns - 1}}"
    text.append(f"{'':<{margin}}  {ends}\n", "dim")
    return text


def legend(uses: Sequence[str]) -> Text:
    text = Text()
    for use in uses:
        fill, style = FILL[use]
        if fill.strip():
            text.append(f" {fill} ", style).append(f" {MEANING[use]}   ")
    return text


def used(timetable: Timetable) -> list[str]:
    """The uses of time that occur, in the order of legends."""
    spent = [timetable.shares(lane) for lane in timetable.lanes]
    return [use for use in USES if any(each[use] > 0.0 for each in spent)]


def shares(timetable: Timetable, ideal: IdealStep | None) -> Table:
    """Milliseconds of the step by node and use, and what the ideal leaves idle."""
    uses = used(timetable)
    table = Table("node", *uses, box=None, padding=(0, 1), title="milliseconds of the step", title_justify="left")
    if ideal is not None:
        table.add_column("ideal bubble")
    for column in table.columns[1:]:
        column.justify = "right"
    for lane in timetable.lanes:
        spent = timetable.shares(lane)
        cells = [f"{spent[use] * 1e3:.1f}" for use in uses]
        if ideal is not None:
            cells.append(f"{ideal.bubble(lane.node) * 1e3:.1f}")
        table.add_row(Text(title(lane)), *cells)
    return table


def path_table(medians: dict[str, tuple[float, float]], whole: float, steps: int) -> Table:
    """Where a step's time goes on its critical path: seconds and legs by kind, medians over so many steps.

    ``whole``: the median length of the path, which is not the sum of the others.
    """
    over = f", medians of {steps} steps" if steps > 1 else ""
    table = Table("on the critical path", "ms", "times", "", box=None, padding=(0, 1), title_justify="left")
    table.title = f"what the step waited for, from its begin to its end{over}"
    table.columns[1].justify = table.columns[2].justify = "right"
    for what, (seconds, count) in medians.items():
        meaning = WAY_MEANING[what] if what in WAYS else ""
        table.add_row(what, f"{seconds * 1e3:.2f}", f"{count:g}", meaning)
    table.add_row("the whole path", f"{whole * 1e3:.2f}", "", "")
    return table
