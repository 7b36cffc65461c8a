"""Where the pages look: a live coordinator, or a recorded event log."""

import threading
import time
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


class Live:
    """A coordinator. While it does not answer, the last look stays. Any thread may call."""

    def __init__(self, address: str) -> None:
        self.name = address
        self._stub = CoordinatorStub(open_channel(address, "coordinator"))
        self._lock = threading.Lock()
        self._look = Look(problem=f"No coordinator answers at {address} yet.")
        self._looked = 0.0
        self._reader = Reader("what the pages show")
        self._seen = 0  # the last event's number

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
            history = before.history
            if (status.job, status.steps) != (before.status.job, before.status.steps):
                history, self._seen = History(), 0  # another run
            for event in self._stub.ListEvents(pb.ListEventsRequest(from_sequence=self._seen + 1), timeout=PATIENCE):
                self._reader.read(cleaned(event), history.take)
                self._seen = event.sequence
            cost = cleaned(self._stub.GetCost(pb.GetCostRequest(), timeout=PATIENCE))
        except grpc.RpcError as error:
            shown = time.strftime("what it said at %H:%M:%S", time.localtime(before.at)) if before.at else "nothing yet"
            problem = f"The coordinator at {self.name} does not answer ({details(error)}): this page shows {shown}."
            return Look(before.status, before.cost, before.history, before.at, problem)
        return Look(status, cost, history, time.time())

    def kill(self, node: str) -> str:
        try:
            pid = self._stub.Kill(pb.KillRequest(node=node), timeout=PATIENCE).pid
        except grpc.RpcError as error:
            return f"{node} was not preempted: {details(error)}"
        return f"{node} (process {pid}) is preempted"
