"""The log lines that a node has told its coordinator, as text. They stay there when the node has gone."""

import time
from collections.abc import Iterable, Iterator

import grpc

from culm.pipeline.errors import JobError
from culm.pipeline.log_levels import LEVELS, word_of
from culm.pipeline.rpc.channel import details
from culm.pipeline.text import cleaned, closest, natural_order
from culm.protos import coordinator_pb2 as pb
from culm.protos.coordinator_pb2_grpc import CoordinatorStub

PATIENCE = 10.0  # seconds


class NodeLines:
    """Asks for the lines of one node, and tells what is missing between them."""

    def __init__(self, stub: CoordinatorStub, coordinator: str, node: str, level: str = "info") -> None:
        self._stub = stub
        self._coordinator = coordinator
        self._node = node
        self._level = LEVELS[level]
        self._after = 0
        self._last: pb.KeptLine | None = None  # that was given

    def known(self) -> None:
        """Raises JobError where the coordinator keeps no line of the node."""
        names = natural_order(self._ask(1).nodes)
        if self._node not in names:
            raise JobError(f"the coordinator has no log lines of {self._node!r}", "--node", closest(self._node, names))

    def new(self, tail: int | None = None) -> Iterator[str]:
        """The lines that have come since the last time; of the first time the last ``tail``, if that is said."""
        lines = cleaned(self._ask(tail or 0)).lines
        for kept in lines:
            yield from between(self._last, kept, self._level == pb.LOG_LEVEL_INFO)
            yield in_words(kept)
            self._last, self._after = kept, kept.sequence

    def _ask(self, most: int) -> pb.ListLogLinesResponse:
        request = pb.ListLogLinesRequest(node=self._node, at_least=self._level, after=self._after, most=most)
        try:
            return self._stub.ListLogLines(request, timeout=PATIENCE)
        except grpc.RpcError as error:
            mend = "see the coordinator's log; one of an older version keeps no lines"
            raise JobError(f"its log lines cannot be had: {details(error)}", self._coordinator, mend) from error


def in_words(kept: pb.KeptLine) -> str:
    line = kept.line
    clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(line.time))
    return f"{clock}.{int(line.time % 1 * 1000):03d} {word_of(line.level):<8} {line.logger} {line.text}".rstrip()


def between(before: pb.KeptLine | None, kept: pb.KeptLine, all_levels: bool) -> Iterable[str]:
    """What has to be said before the line: that another process speaks, or that lines are missing."""
    if before is None:
        return
    if before.incarnation != kept.incarnation:
        yield f"-- another process of {kept.node} --"
    elif all_levels and kept.line.number > before.line.number + 1:
        yield f"-- {kept.line.number - before.line.number - 1} lines were dropped: they came too fast --"
