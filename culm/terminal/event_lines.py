"""Events as lines: plain text for files and pipes, coloured and wrapped for a person at a terminal."""

import re
import time
from collections.abc import Callable

from rich.console import Console
from rich.text import Text

from culm.protos import coordinator_pb2 as pb
from culm.terminal.severity import Severity, severity_of

NAMED = ("node", "heir")  # fields whose values are names of nodes
LEAST = 40  # characters of text beside the time and the kind; a narrower terminal has the text below them
BELOW = 2  # characters by which it is indented there


class EventLines:
    """Writes one event after another. A line with the date stands between two days, and before those of another day
    than today where a person reads them: a file is to be the same whenever it is written.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = time.time) -> None:
        """``clock`` gives unix seconds."""
        self._console = console
        self._day = _day(clock()) if console.is_terminal else ""

    def write(self, event: pb.ListEventsResponse) -> None:
        day, is_new = _day(event.time), bool(self._day) and _day(event.time) != self._day
        self._day = day
        if self._console.is_terminal:
            lines = Text.assemble((f"{day}\n" if is_new else "", "bold"), self._coloured(event))
            self._console.print(lines, soft_wrap=True, highlight=False)
        else:  # as it is, without the console, which would take its time over a hundred thousand commits
            print(*filter(None, (day if is_new else "", _plain(event))), sep="\n", file=self._console.file)
        self._console.file.flush()

    def _coloured(self, event: pb.ListEventsResponse) -> Text:
        """The kind in the colour of its severity, nodes in bold; the worst and the least in one colour as a whole."""
        severity = severity_of(event.kind)
        whole = severity in (Severity.BAD, Severity.ROUTINE)
        words = Text(event.text, style=severity.value if whole else "")
        for name in filter(None, (event.fields.get(each, "") for each in NAMED)):
            words.highlight_regex(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", "bold")
        head = Text.assemble((_clock(event.time), "dim"), "  ", (f"{event.kind:<10}", severity.value), " ")
        room = self._console.width - head.cell_len
        if room < LEAST:
            below = words.wrap(self._console, max(1, self._console.width - BELOW))
            return Text("\n").join([head, *(Text(" " * BELOW) + line for line in below)])
        first, *others = words.wrap(self._console, room) or [Text()]
        return Text("\n").join([head + first, *(Text(" " * head.cell_len) + line for line in others)])


def _plain(event: pb.ListEventsResponse) -> str:
    return f"{_clock(event.time)}  {event.kind:<10} {event.text}"


def _clock(at: float) -> str:
    return f"{time.strftime('%H:%M:%S', time.localtime(at))}.{int(at % 1 * 1000):03d}"


def _day(at: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(at))
