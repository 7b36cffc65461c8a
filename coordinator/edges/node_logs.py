"""The newest lines of every node's log, those of lost nodes too: what they said last is what one wants to see.

Bounded by lines, by nodes and by the length of a line. In memory alone: a coordinator that takes over hears the newest
lines of each node that attends it, and knows nothing of those that are gone.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import merge
from itertools import islice, takewhile
from typing import NamedTuple

from culm.pipeline.text import plain, shortened, without_secrets
from culm.protos import coordinator_pb2 as pb

LINES = 200  # kept of a node
NODES = 2_000  # of which lines are kept; who spoke longest ago goes first
LONGEST = 500  # characters of a line
LONGEST_LOGGER = 80
ANSWERED = 1_000  # lines in an answer at most: half a megabyte

INFO, CRITICAL = pb.LOG_LEVEL_INFO, pb.LOG_LEVEL_CRITICAL


class Kept(NamedTuple):
    """A line as it is kept: as bytes, which take a quarter of what messages do. Sequences differ, and order them."""

    sequence: int
    whose: tuple[str, int]  # node and incarnation
    heard: float
    level: int
    line: bytes


@dataclass(eq=False, slots=True)
class _Tail:
    """Of one node, whatever its incarnation. ``number``: of the last line that came of this incarnation."""

    incarnation: int = 0
    number: int = 0
    lines: "deque[Kept]" = field(default_factory=lambda: deque(maxlen=LINES))


class NodeLogs:
    """``clock``: unix seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._sequence = 0
        self._tails: dict[str, _Tail] = {}  # who spoke last comes last

    def take(self, node: str, incarnation: int, lines: Iterable[pb.LogLine]) -> None:
        """Lines that are within bounds (``report_bounds``). Those that came before, on another stream, are passed over.

        A line's text may hold anything: here it becomes one line without control characters and secrets.
        """
        if not lines:
            return
        tail = self._tails.pop(node, None) or _Tail()
        self._tails[node] = tail  # the last one from now on
        if len(self._tails) > NODES:
            del self._tails[next(iter(self._tails))]
        if tail.incarnation != incarnation:
            tail.incarnation, tail.number = incarnation, 0
        heard, whose = self._clock(), (node, incarnation)
        for line in lines:
            if line.number <= tail.number:
                continue
            tail.number = line.number
            # In microseconds, so that it goes on above that of a coordinator before, and no one who follows is lost.
            self._sequence = max(self._sequence + 1, int(heard * 1e6))
            # A level that is not said, or that a later version knows, is one of the four.
            level = max(INFO, min(CRITICAL, line.level))
            tail.lines.append(Kept(self._sequence, whose, heard, level, _harmless(line, level)))

    def answer(self, request: pb.ListLogLinesRequest) -> pb.ListLogLinesResponse:
        """The newest lines that the request asks for, of all nodes in the order in which they came."""
        tails = [self._tails[request.node]] if request.node in self._tails else []
        if not request.node:
            tails = list(self._tails.values())
        newest_first = merge(*(reversed(tail.lines) for tail in tails), reverse=True)
        newer = takewhile(lambda kept: kept.sequence > request.after, newest_first)
        wanted = (kept for kept in newer if kept.level >= request.at_least)
        found = list(islice(wanted, min(request.most or ANSWERED, ANSWERED)))
        lines = [_message(kept) for kept in reversed(found)]
        return pb.ListLogLinesResponse(lines=lines, newest=self._sequence, nodes=sorted(self._tails))


def _harmless(line: pb.LogLine, level: "pb.LogLevel.ValueType") -> bytes:
    kept = pb.LogLine(number=line.number, time=line.time, level=level)
    kept.logger = shortened(plain(line.logger), LONGEST_LOGGER)
    kept.text = shortened(without_secrets(plain(line.text)), LONGEST)
    return kept.SerializeToString()


def _message(kept: Kept) -> pb.KeptLine:
    node, incarnation = kept.whose
    found = pb.KeptLine(sequence=kept.sequence, node=node, incarnation=incarnation, heard=kept.heard)
    found.line.MergeFromString(kept.line)
    return found
