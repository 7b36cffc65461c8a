"""Where the pages look: a live coordinator, or a recorded event log."""

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

import grpc

from culm.pipeline.money.codec import Reader
from culm.pipeline.rpc.channel import details
from culm.pipeline.rpc.tls import open_channel
from culm.pipeline.text import cleaned
from culm.protos import coordinator_pb2 as pb
from culm.protos.coordinator_pb2_grpc import CoordinatorStub
from culm.ui.history import History

PATIENCE = 2.0  # seconds that a coordinator has to answer
FRESH = 0.4  # seconds for which one look serves every page


@dataclass(frozen=True)
class Look:
    """The state of the run. ``problem`` says why it may be old; empty: it is not."""

    status: pb.GetStatusResponse = field(default_factory=pb.GetStatusResponse)
    cost: pb.GetCostResponse = field(default_factory=pb.GetCostResponse)
    history: History = field(default_factory=History)
    at: float = 0.0  # unix seconds
    problem: str = ""


class Source(Protocol):
    name: str

    def look(self) -> Look: ...

    def kill(self, node: str) -> str:
        """Kills the node at once, and says what became of that."""
        ...


# At one address there may be one run after another. Each begins a log of its own, and numbers its events from 1 again.
# So an event's number says nothing alone: its number and its time name it, in all logs.
Place = tuple[int, float]
BEFORE: Place = (0, 0.0)  # no event


class Live:
    """A coordinator. While it does not answer, the last look stays. Any thread may call."""

    def __init__(self, address: str) -> None:
        self.name = address
        self._stub = CoordinatorStub(open_channel(address, "coordinator"))
        self._lock = threading.Lock()
        self._look = Look(problem=f"No coordinator answers at {address} yet.")
        self._looked = 0.0
        self._reader = Reader("what the pages show")
        self._history = History()
        self._last = BEFORE  # the last event that is in the history

    def look(self) -> Look:
        with self._lock:
            if time.monotonic() - self._looked > FRESH:
                self._look = self._ask()
                self._looked = time.monotonic()
            return self._look

    def _ask(self) -> Look:
        before = self._look
        try:
            status = cleaned(self._stub.GetStatus(pb.GetStatusRequest(), timeout=PATIENCE))
            self._read_on()
            cost = cleaned(self._stub.GetCost(pb.GetCostRequest(), timeout=PATIENCE))
        except grpc.RpcError as error:
            shown = time.strftime("what it said at %H:%M:%S", time.localtime(before.at)) if before.at else "nothing yet"
            problem = f"The coordinator at {self.name} does not answer ({details(error)}): this page shows {shown}."
            return Look(before.status, before.cost, self._history, before.at, problem)
        return Look(status, cost, self._history, time.time())

    def _read_on(self) -> None:
        """Takes what the log has beyond the last event, or the whole log if that event is not in it.

        The event is missing in the log of another run, and where the coordinator lost its store. It may also be older
        than all that a log keeps. The pages then show what this coordinator has on record, and nothing else.
        """
        events = self._events(self._last[0])
        if self._last != BEFORE and _place(next(events, None)) != self._last:
            self._history, self._last = History(), BEFORE
            events = self._events(0)
        for event in events:
            self._reader.read(cleaned(event), self._history.take)
            self._last = _place(event)

    def _events(self, first: int) -> Iterator[pb.ListEventsResponse]:
        return iter(self._stub.ListEvents(pb.ListEventsRequest(from_sequence=first), timeout=PATIENCE))

    def kill(self, node: str) -> str:
        try:
            pid = self._stub.Kill(pb.KillRequest(node=node), timeout=PATIENCE).pid
        except grpc.RpcError as error:
            return f"{node} was not preempted: {details(error)}"
        return f"{node} (process {pid}) is preempted"


def _place(event: pb.ListEventsResponse | None) -> Place:
    return (event.sequence, event.time) if event is not None else BEFORE
