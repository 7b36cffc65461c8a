"""The node's one line to the coordinator: reports and heartbeats up, orders down, kept up across broken streams."""

import logging
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Protocol

import grpc

from pipeline.channel import details
from pipeline.errors import JobError
from pipeline.plan_change import OtherPlan, whole
from pipeline.tls import failed_handshake, open_channel
from protos import coordinator_pb2 as pb
from protos.coordinator_pb2_grpc import CoordinatorStub

log = logging.getLogger("culm.orders")


class Listener(Protocol):
    """Who obeys. Called on the order thread, one call at a time."""

    def join(self) -> pb.Join: ...

    def attached(self, announce: Callable[[list[pb.AttendRequest]], None]) -> None:
        """After every Welcome: announces availability and the facts so far, letting no new fact pass in between."""
        ...

    def heartbeat(self) -> pb.Heartbeat: ...

    def order(self, order: pb.AttendResponse) -> None: ...


def _plans_in(order: pb.AttendResponse) -> list[pb.Plan]:
    if order.HasField("plan"):
        return [order.plan]
    return [order.commit.next_plan] if order.HasField("commit") and order.commit.HasField("next_plan") else []


class Orders:
    """Attends the coordinator until ``close``.

    ``on_failure`` hears in words why it will never work: nobody answers, or the node is refused.
    """

    def __init__(
        self, coordinator: str, listener: Listener, connect_timeout: float, on_failure: Callable[[str], None]
    ) -> None:
        self._coordinator = coordinator
        self._listener = listener
        self._connect_timeout = connect_timeout
        self._on_failure = on_failure
        self._up: queue.SimpleQueue[pb.AttendRequest | None] | None = None  # only while welcome
        self._closed = threading.Event()
        self._beat_seconds = 0.5
        self._term = 0  # of the coordinator that is attended
        self._call: grpc.Call | None = None
        self._thread = threading.Thread(target=self._attend, name="orders", daemon=True)
        self._beats = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._beats.start()

    def report(self, request: pb.AttendRequest) -> None:
        """Says something to the coordinator; while detached it is dropped, since facts are repeated on attaching."""
        up = self._up
        if up is not None:
            up.put(request)

    @property
    def attends(self) -> bool:
        """Whether a coordinator listens at present."""
        return self._up is not None

    def leave_lower(self, term: int) -> None:
        """Another coordinator leads with this term: one of a lower term is obeyed no longer (rule 12)."""
        call = self._call
        if term > self._term and self._up is not None and call is not None:
            log.warning("a coordinator of term %d leads; the one of term %d is left", term, self._term)
            call.cancel()

    def close(self, why: str = "") -> None:
        """Ends the stream; with a reason the coordinator is told that the node leaves."""
        self._closed.set()
        up = self._up
        if up is not None:
            if why:
                up.put(pb.AttendRequest(leave=pb.Leave(why=why)))
            up.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=2.0)

    def _attend(self) -> None:
        pause = 0.05
        ever = False
        waited = 0.0
        while not self._closed.is_set():
            try:
                opened = open_channel(self._coordinator, "coordinator")
            except JobError as error:
                if not ever:
                    self._on_failure(str(error))
                    return
                log.warning("%s", error)
                self._closed.wait(pause)
                continue
            with opened as channel:
                try:
                    wait = min(1.0, self._connect_timeout)
                    grpc.channel_ready_future(channel).result(timeout=wait)
                    ever, pause, waited = True, 0.05, 0.0
                    self._stream(CoordinatorStub(channel))
                except grpc.FutureTimeoutError:
                    waited += wait
                    if not ever and waited >= self._connect_timeout:
                        self._on_failure(self._silent(channel))
                        return
                except grpc.RpcError as error:
                    if error.code() is grpc.StatusCode.PERMISSION_DENIED:
                        self._on_failure(f"the coordinator at {self._coordinator} refuses this node: {details(error)}")
                        return
                    log.warning("the order stream broke: %s", details(error))
                finally:
                    self._up = None
            self._closed.wait(pause)
            pause = min(0.5, pause * 2)

    def _silent(self, channel: grpc.Channel) -> str:
        waited = f"no coordinator at {self._coordinator} within {self._connect_timeout:g} s"
        why = failed_handshake(channel)
        if why:
            return f"{waited}: {why}; see docs/security.md"
        return f"{waited}; start one, or name it with --coordinator"

    def _stream(self, stub: CoordinatorStub) -> None:
        up: queue.SimpleQueue[pb.AttendRequest | None] = queue.SimpleQueue()
        join = self._listener.join()
        up.put(pb.AttendRequest(join=join))

        def requests() -> Iterator[pb.AttendRequest]:
            while (request := up.get()) is not None:
                yield request

        def announce(facts: list[pb.AttendRequest]) -> None:
            for fact in facts:
                up.put(fact)
            self._up = up

        self._call = call = stub.Attend(requests())
        before = pb.Plan()
        try:
            for order in call:
                for plan in _plans_in(order):
                    plan.CopyFrom(whole(plan, before))
                    before = plan
                if order.WhichOneof("body") == "welcome":
                    if order.welcome.term < join.term:
                        log.warning("a coordinator of term %d is refused: %d was seen", order.welcome.term, join.term)
                        return
                    self._term = order.welcome.term
                    self._beat_seconds = order.welcome.heartbeat_seconds or self._beat_seconds
                    self._listener.order(order)
                    self._listener.attached(announce)
                elif order.WhichOneof("body") == "ask":
                    self._listener.attached(announce)
                else:
                    self._listener.order(order)
        except OtherPlan as error:  # the next stream begins with a whole one
            log.warning("the order stream is opened anew: %s", error)
        finally:
            call.cancel()
            up.put(None)

    def _beat(self) -> None:
        while not self._closed.wait(self._beat_seconds):
            self.report(pb.AttendRequest(heartbeat=self._listener.heartbeat()))
