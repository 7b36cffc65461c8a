"""The node's order stream: reports and heartbeats up, orders down. A stream that breaks is opened again."""

# The stream's life, which begins again whenever it breaks:
#
#     Join up, Welcome down     a lower term than was seen is refused (rule 12)
#     announce up               available, facts of the running step, what is at the last version: a coordinator that
#                               takes over knows nothing of them (rule 6)
#     orders down, reports up   until the stream breaks or the node closes it; after an Ask the node announces again
#
# Between Welcome and the announcement no other report goes up: ``_up`` is set in ``announce``, under the node's lock.
# So no fact is told before "available" is. Whoever makes a fact puts it down and reports it with that lock held: it is
# either in the announcement or reported after it.
#
# What the node makes of each end:
#
#     nobody answers, the first time    after ``connect_timeout`` the process ends: the address is probably wrong
#     the node is refused, and was      the process ends: no later attempt will do better
#       never welcomed
#     it was welcomed before, and is    it keeps its state and tries again: somebody has started another coordinator,
#       refused, or the coordinator's     or one with other settings, in place of the run's own
#       job is another one (rule 23)
#     its own certificate is broken     the same
#     the stream breaks, or ends        the node keeps its state and its place in the plan, goes on computing until it
#                                       needs a commit, and opens the next stream (rule 17)
#     no Welcome for longer than        the process ends, and what it held is lost
#       ``coordinator_timeout``
#     the coordinator dismisses it      the process ends, and opens no other stream
#     a peer tells of a higher term     the stream is cancelled: the next Join carries that term, and a coordinator of
#                                       a lower one is refused (rule 12)
#
# A coordinator may send a plan as a change of the one before on the same stream (``plan_codec``). A new stream begins
# with a whole plan. So a change that does not fit ends the stream, and the next stream mends it.
#
# Threads: "orders" opens streams and hands every order to the listener, one at a time, in the order in which they came.
# "heartbeat" beats. gRPC takes reports from the queue ``_up`` on a thread of its own. Whoever reports puts into that
# queue and never waits, so a report is safe with the node's lock held.

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol

import grpc

from culm.pipeline.errors import JobError
from culm.pipeline.patience import Patience
from culm.pipeline.plan_codec import OtherPlan, whole
from culm.pipeline.rpc.channel import details
from culm.pipeline.rpc.located import located
from culm.pipeline.rpc.seldom import Seldom
from culm.pipeline.rpc.tls import open_channel, why_silent
from culm.protos import coordinator_pb2 as pb
from culm.protos.coordinator_pb2_grpc import CoordinatorStub
from culm.stage_server.streams.stream_bounds import welcome_problem
from culm.stage_server.streams.unfit import Unfit, refuse

log = logging.getLogger("culm.orders")
SELDOM = Seldom(log)

# Seconds between two attempts: the first after a stream that was attended, doubled up to the most. So a node is back
# long before it counts as lost, and a coordinator that it does not attend hears from it twice a second.
FIRST_PAUSE, MOST_PAUSE = 0.05, 0.5
LAST_WORDS = 2.0  # seconds that a process which ends anyhow gives a coordinator that does not answer


class Listener(Protocol):
    """Who obeys. Called on the order thread, one call at a time; but ``heartbeat`` on the heartbeat's own."""

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

    ``on_failure`` hears why there will never be an order stream: nobody answers, or the node is refused. A coordinator
    that has gone is waited for: a stop is not an end (rule 17). ``on_absence`` hears that this took longer than
    ``coordinator_timeout``.
    """

    def __init__(
        self,
        coordinator: str,
        listener: Listener,
        connect_timeout: float,
        on_failure: Callable[[str], None],
        patience: Patience,
        coordinator_timeout: float = float("inf"),
        on_absence: Callable[[str], None] = lambda why: None,
    ) -> None:
        self._patience = patience  # for a silent coordinator; from the first Welcome on it is the run's own
        self._coordinator = coordinator
        self._listener = listener
        self._connect_timeout = connect_timeout
        self._on_failure = on_failure
        self._coordinator_timeout = coordinator_timeout
        self._on_absence = on_absence
        # When a coordinator was last attended; before the first Welcome, when one was first reached; None before that.
        self._left_at: float | None = None
        # Invariant: set from the announcement to the stream's end, and None outside. A report is dropped meanwhile:
        # what still counts is repeated when the node attaches again (rule 6). Read by any thread. Two set it, the order
        # thread and the one that has built the model, so ``_announcing`` keeps an announcement from an ended stream.
        self._up: queue.SimpleQueue[pb.AttendRequest | None] | None = None
        self._announcing = threading.Lock()
        self._closed = threading.Event()
        self._beat_seconds = 0.5  # until a Welcome says otherwise
        self._term = 0  # of the coordinator whose Welcome was obeyed last; 0: none was
        self._told_term = 0  # the highest one that a peer has told of
        self._waited = 0.0  # seconds for the first coordinator, while none was reached
        self._pause = FIRST_PAUSE  # before the next attempt
        self._warned = ""  # what was said last of why this node does not attend
        self._call: grpc.Call | None = None  # the newest stream, to be cancelled by another thread
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

    def last_words(self, request: pb.AttendRequest) -> None:
        """Says why the process ends, also when the thread that attends is what has raised. Takes LAST_WORDS at most."""
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self.report(request)
            return
        # The thread that attends is the one that raised: nobody reads its stream any more. A stream of its own says so,
        # with a Join of the same incarnation, which takes the old stream's place at the coordinator.
        said = iter([pb.AttendRequest(join=self._listener.join()), request])
        unheard = contextlib.suppress(grpc.RpcError, JobError)
        with unheard, open_channel(located(self._coordinator), "coordinator", self._patience) as channel:
            for _ in CoordinatorStub(channel).Attend(said, timeout=LAST_WORDS):
                pass

    @property
    def attends(self) -> bool:
        """Whether a coordinator listens at present."""
        return self._up is not None

    def absent_seconds(self) -> float:
        """For how long the coordinator that was attended has been away."""
        return time.monotonic() - self._left_at if self._left_at is not None and not self.attends else 0.0

    def leave_lower(self, term: int) -> None:
        """Another coordinator leads with this term: one of a lower term is obeyed no longer (rule 12)."""
        # First: a stream that is being opened looks at it once it is attended.
        self._told_term = max(self._told_term, term)
        call = self._call
        if term > self._term and self._up is not None and call is not None:
            log.warning("a coordinator of term %d leads: this node leaves the one of term %d", term, self._term)
            call.cancel()

    def close(self, why: str = "") -> None:
        """Ends the stream; with a reason the coordinator is told that the node leaves."""
        self._closed.set()
        up = self._up
        if up is not None:
            if why:
                up.put(pb.AttendRequest(leave=pb.Leave(why=why)))
            up.put(None)
        if threading.current_thread() is not self._thread:  # a listener may close it while it obeys
            self._thread.join(timeout=2.0)

    def _attend(self) -> None:
        while not self._closed.is_set():
            hopeless = self._attempt()
            if hopeless:
                self._on_failure(hopeless)
                return
            if self.absent_seconds() > self._coordinator_timeout:
                self._on_absence(
                    f"no coordinator at {self._coordinator} for {self._coordinator_timeout:g} s: the node ends, and "
                    "what it held is lost; a longer --coordinator-timeout waits longer"
                )
                return
            self._closed.wait(self._pause)
            self._pause = min(MOST_PAUSE, self._pause * 2)

    def _attempt(self) -> str:
        """Attends until the stream ends. Gives why no later attempt will do better, or nothing."""
        wait = min(1.0, self._connect_timeout)
        if not (address := located(self._coordinator)):
            self._closed.wait(wait)
            return self._unreached(wait)
        try:
            opened = open_channel(address, "coordinator", self._patience)
        except JobError as error:
            if self._left_at is None:
                return str(error)
            # This node's certificate, perhaps while it is being replaced by a newer one.
            self._warn_once(f"cannot connect to the coordinator at {self._coordinator}, trying again: {error}")
            return ""
        with opened as channel:
            try:
                grpc.channel_ready_future(channel).result(timeout=wait)
                self._left_at = self._left_at or time.monotonic()
                self._stream(CoordinatorStub(channel))
            except grpc.FutureTimeoutError:
                return self._unreached(wait)
            except grpc.RpcError as error:
                # One that was welcomed before may hold what the run needs: it waits for the run's own coordinator.
                if error.code() is grpc.StatusCode.PERMISSION_DENIED and not self._term:
                    return f"the coordinator at {self._coordinator} refuses this node: {details(error)}"
                self._warn_once(f"the connection to the coordinator at {self._coordinator} broke: {details(error)}")
            finally:
                self._left()
        return ""

    def _unreached(self, waited: float) -> str:
        """Nobody has answered for so long. Gives why that is hopeless, or nothing."""
        if self._left_at is not None:
            return ""
        self._waited += waited
        if self._waited >= self._connect_timeout:
            return self._silent()
        left = self._connect_timeout - self._waited
        if self._waited == waited:
            log.warning("no coordinator at %s so far: trying for %g s more", self._coordinator, left)
        return ""

    def _left(self) -> None:
        """No order stream is open any more. If one was, its coordinator has gone."""
        if self._up is not None:
            self._up, self._left_at = None, time.monotonic()
            self._pause, self._warned = FIRST_PAUSE, ""
            if not self._closed.is_set():
                log.warning("the coordinator at %s has gone: this node keeps its state and waits", self._coordinator)

    def _warn_once(self, text: str) -> None:
        """Says what keeps this node from attending: not at each attempt, of which there are two a second."""
        if text != self._warned:
            self._warned = text
            log.warning(text)

    def _silent(self) -> str:
        waited = f"no coordinator at {self._coordinator} within {self._connect_timeout:g} s"
        address = located(self._coordinator)
        why = why_silent(address, "coordinator") if address else "the file says no address"
        return f"{waited}: {why or 'it answers by now: start this node again'}"

    def _stream(self, stub: CoordinatorStub) -> None:
        up: queue.SimpleQueue[pb.AttendRequest | None] = queue.SimpleQueue()
        ended = False
        join = self._listener.join()
        up.put(pb.AttendRequest(join=join))

        def requests() -> Iterator[pb.AttendRequest]:
            while (request := up.get()) is not None:
                yield request

        def announce(facts: list[pb.AttendRequest]) -> None:
            with self._announcing:
                if not ended:
                    for fact in facts:
                        up.put(fact)
                    self._up = up

        self._call = call = stub.Attend(requests())
        before = pb.Plan()  # the last plan of this stream, whole
        try:
            for order in call:
                for plan in _plans_in(order):
                    plan.CopyFrom(whole(plan, before))
                    before = plan
                if order.WhichOneof("body") == "welcome":
                    refuse(welcome_problem(order.welcome))
                    if order.welcome.term < join.term:
                        told = f"this node does not obey a coordinator of term {order.welcome.term}"
                        self._warn_once(f"{told}, since it has seen term {join.term}")
                        return
                    self._listener.order(order)  # which may refuse it
                    self._term = order.welcome.term
                    self._beat_seconds = order.welcome.heartbeat_seconds or self._beat_seconds
                    self._patience = Patience(order.welcome.patience_seconds or self._patience.seconds)
                    self._listener.attached(announce)
                    if self._told_term > self._term:  # since the Join, which tells the highest that was known
                        log.warning("this node leaves the coordinator of term %d: a later one leads", self._term)
                        return
                elif order.WhichOneof("body") == "ask":
                    self._listener.attached(announce)
                else:
                    self._listener.order(order)
                if order.WhichOneof("body") == "dismiss":
                    self._closed.set()
        except (OtherPlan, Unfit) as error:
            if self._up is None:  # its Welcome was refused, as the next one will be
                self._warn_once(f"this node does not attend the coordinator at {self._coordinator}: {error}")
            else:
                SELDOM.say(self._coordinator, f"the connection to the coordinator is opened anew: {error}")
        finally:
            with self._announcing:
                ended = True
            call.cancel()
            up.put(None)

    def _beat(self) -> None:
        while not self._closed.wait(self._beat_seconds):
            self.report(pb.AttendRequest(heartbeat=self._listener.heartbeat()))
