"""The newest lines of every node's log, those of lost nodes too: what they said last is what one wants to see.

Bounded by lines, by nodes and by the length of a line. In memory alone: a coordinator that takes over hears the newest
lines of each node that attends it, and knows nothing of those that are gone.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import takewhile

from culm.pipeline.text import plain, shortened, without_secrets
from culm.protos import coordinator_pb2 as pb

LINES = 200  # kept of a node
NODES = 2_000  # of which lines are kept; who spoke longest ago goes first
LONGEST = 500  # characters of a line
LONGEST_LOGGER = 80
ANSWERED = 1_000  # lines in an answer at most: half a megabyte


@dataclass(eq=False, slots=True)
class _Tail:
    """Of one node, whatever its incarnation. ``number``: of the last line that came of this incarnation."""

    incarnation: int = 0
    number: int = 0
    lines: "deque[pb.KeptLine]" = field(default_factory=lambda: deque(maxlen=LINES))


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
        heard = self._clock()
        for line in lines:
            if line.number <= tail.number:
                continue
            tail.number = line.number
            # In microseconds, so that it goes on above that of a coordinator before, and no one who follows is lost.
            self._sequence = max(self._sequence + 1, int(heard * 1e6))
            kept = pb.KeptLine(sequence=self._sequence, node=node, incarnation=incarnation, heard=heard)
            kept.line.number, kept.line.time, kept.line.level = line.number, line.time, _level(line)
            kept.line.logger = shortened(plain(line.logger), LONGEST_LOGGER)
            kept.line.text = shortened(without_secrets(plain(line.text)), LONGEST)
            tail.lines.append(kept)

    def answer(self, request: pb.ListLogLinesRequest) -> pb.ListLogLinesResponse:
        """The newest lines that the request asks for, of all nodes in the order in which they came."""
        tails = [self._tails[request.node]] if request.node in self._tails else []
        if not request.node:
            tails = list(self._tails.values())
        newer = (takewhile(lambda kept: kept.sequence > request.after, reversed(tail.lines)) for tail in tails)
        found = [kept for lines in newer for kept in lines if kept.line.level >= request.at_least]
        found.sort(key=lambda kept: kept.sequence)
        most = min(request.most or ANSWERED, ANSWERED)
        return pb.ListLogLinesResponse(lines=found[-most:], newest=self._sequence, nodes=sorted(self._tails))


def _level(line: pb.LogLine) -> "pb.LogLevel.ValueType":
    """A level that is not said, or that a later version knows, is one of the four."""
    return max(pb.LOG_LEVEL_INFO, min(pb.LOG_LEVEL_CRITICAL, line.level))
