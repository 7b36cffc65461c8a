"""Where the pages look: a live coordinator, or a recorded event log."""

import threading
import time
from dataclasses import dataclass, replace
from typing import Any, Protocol

import grpc

from culm.pipeline.log_levels import LEVELS
from culm.pipeline.messages import resources_from_proto
from culm.pipeline.money.codec import Reader
from culm.pipeline.money.ledger import USES
from culm.pipeline.rpc.channel import details
from culm.pipeline.rpc.tls import open_channel
from culm.pipeline.text import cleaned, natural_order
from culm.protos import coordinator_pb2 as pb
from culm.protos.coordinator_pb2_grpc import CoordinatorStub
from culm.ui.alert_rules import Pending, evaluate
from culm.ui.history import History
from culm.ui.kept_logs import KeptLogs
from culm.ui.look import Look
from culm.ui.trends import Sample

PATIENCE = 2.0  # seconds that a coordinator has to answer
KEEPING = 120.0  # and for a whole log that is kept
FRESH = 0.4  # seconds for which one look serves every page
READING = 0.8  # seconds that one look reads in the log; a long log takes several looks
PARTLY = 1.6  # and for which a look serves that read a part of the log
SILENT = 3.0  # or that got no answer
LINES = 200  # of logs, in one answer


@dataclass(frozen=True)
class LogLines:
    """The newest log lines of nodes, the oldest first; ``nodes``: all of which there are some."""

    lines: tuple[pb.KeptLine, ...] = ()
    nodes: tuple[str, ...] = ()
    problem: str = ""  # why there are none


class Source(Protocol):
    name: str
    still: bool  # nothing will ever change
    recorded: bool  # nobody is there any more

    def look(self) -> Look: ...

    def log_lines(self, node: str, level: str) -> LogLines:
        """Of this node, or of all; of this level and those above."""
        ...

    def kill(self, node: str) -> str:
        """Kills the node at once, and says what became of that."""
        ...


# At one address there may be one run after another. Each begins a log of its own, and numbers its events from 1 again.
# So an event's number says nothing alone: its number and its time name it, in all logs.
Place = tuple[int, float]
BEFORE: Place = (0, 0.0)  # no event


class Live:
    """A coordinator. While it does not answer, the last look stays. Any thread may call."""

    still = False
    recorded = False

    def __init__(self, address: str, kept: KeptLogs | None = None) -> None:
        self.name = address
        self._kept = kept
        self._stub = CoordinatorStub(open_channel(address, "coordinator"))
        self._lock = threading.Lock()
        self._look = Look(problem=f"No coordinator answers at {address} yet.")
        self._looked = 0.0
        self._pending: Pending = {}
        self._reader = Reader("what the pages show")
        self._history = History()
        self._last = BEFORE  # the last event that is in the history
        self._read = 0  # events in the history

    def look(self) -> Look:
        with self._lock:
            before = self._look
            serves = SILENT if before.at and before.problem else PARTLY if before.reading else FRESH
            if time.monotonic() - self._looked > serves:
                self._look = self._watch(self._ask())
                self._looked = time.monotonic()
            return self._look

    def _watch(self, look: Look) -> Look:
        """With the alerts that fire."""
        firing, self._pending = evaluate(look, time.time(), self._pending)
        return replace(look, firing=firing)

    def _ask(self) -> Look:
        before = self._look
        try:
            status = cleaned(self._stub.GetStatus(pb.GetStatusRequest(), timeout=PATIENCE))
            whole = self._read_on()
            cost = cleaned(self._stub.GetCost(pb.GetCostRequest(), timeout=PATIENCE))
        except grpc.RpcError as error:
            shown = "what it said last" if before.at else "nothing yet"
            problem = f"The coordinator at {self.name} does not answer ({details(error)}): this page shows {shown}."
            return replace(before, history=self._history, problem=problem, reading=0)
        if self._history.done is not None:
            _less_the_wait_after(status, self._history.done.time, time.time())
        if not cost.done:
            if whole:  # what the rest of the log says is older, and would come too late
                self._sample(status, cost.as_of)
        elif self._kept is not None and whole and self._history.begun:
            self._kept.keep(status.job, self._history.begun, int(cost.as_of), lambda: self._events(0, KEEPING))
        return Look(status=status, cost=cost, history=self._history, at=time.time(), reading=0 if whole else self._read)

    def _sample(self, status: pb.GetStatusResponse, at: float) -> None:
        """Keeps what the nodes' counters say now. ``at`` is by the coordinator's clock, as the times of events are."""
        for node in status.nodes:
            busy = sum(getattr(node.times, use) for use in USES)
            if busy > 0:
                seen = resources_from_proto(node.resources)
                sent, bubble = sum(node.sent_bytes.values()), node.times.bubble
                sample = Sample(incarnation=node.incarnation, at=at, bubble=bubble, busy=busy, sent=sent, took=seen)
                self._history.trends.take(node.id, sample)

    def _read_on(self) -> bool:
        """Takes what the log has beyond the last event, or the whole log if that event is not in it.

        Returns whether that was all: a log of a long run takes longer than somebody waits for a page.

        The event is missing in the log of another run, and where the coordinator lost its store. It may also be older
        than all that a log keeps. The pages then show what this coordinator has on record, and nothing else.
        """
        events = self._events(self._last[0])
        if self._last != BEFORE and _place(next(events, None)) != self._last:
            self._history, self._last, self._read = History(), BEFORE, 0
            events = self._events(0)
        until = time.monotonic() + READING
        for event in events:
            self._reader.read(cleaned(event), self._history.take)
            self._last = _place(event)
            self._read += 1
            if time.monotonic() > until:
                events.cancel()
                return False
        return True

    def _events(self, first: int, patience: float = PATIENCE) -> Any:
        """The call, which gives events and can be cancelled."""
        return self._stub.ListEvents(pb.ListEventsRequest(from_sequence=first), timeout=patience)

    def log_lines(self, node: str, level: str) -> LogLines:
        request = pb.ListLogLinesRequest(node=node, at_least=LEVELS[level], most=LINES)
        try:
            answer = cleaned(self._stub.ListLogLines(request, timeout=PATIENCE))
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                return LogLines(problem="This coordinator runs a version of Culm that keeps no log lines of nodes.")
            return LogLines(problem=f"The coordinator tells no log lines: {details(error)}")
        return LogLines(tuple(answer.lines), tuple(natural_order(answer.nodes)))

    def kill(self, node: str) -> str:
        try:
            pid = self._stub.Kill(pb.KillRequest(node=node), timeout=PATIENCE).pid
        except grpc.RpcError as error:
            return f"{node} was not preempted: {details(error)}"
        return f"{node} (process {pid}) is preempted"


def _less_the_wait_after(status: pb.GetStatusResponse, end: float, now: float) -> None:
    """Nodes that keep the weights of a run that is over wait: that is no part of where its time went."""
    for node in status.nodes:
        node.times.idle = max(0.0, node.times.idle - max(0.0, now - end))


def _place(event: pb.ListEventsResponse | None) -> Place:
    return (event.sequence, event.time) if event is not None else BEFORE
