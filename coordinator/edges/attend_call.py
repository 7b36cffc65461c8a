"""A node's attendance: one Attend stream from its Join to its end, whichever side ends it."""

# A stream has two halves. The call itself writes: orders from the queue, in their order. A background task reads: each
# message becomes a report. Either half may end first:
#
#     who ends it             what happens here                                    what the decisions hear
#     the node, or its link   the read gives EOF or raises; None into the queue    StreamBroken
#     a message is wrong      the same; then the call ends with INVALID_ARGUMENT   StreamBroken
#     gRPC, in a write        the call raises or is cancelled                      StreamBroken
#     the node reads nothing  MOST_ORDERS wait: ``cut`` cancels the call           StreamBroken
#     Dismiss, a stop         None into the queue, behind the last order           nothing: the leader knows
#     a newer stream          the same                                             nothing: the node attends by that one
#
# Both halves call ``Leader.detach``, which heeds the stream that the node has now, and only once. ``over`` tells the
# reading half that the call has ended: what it still reads counts for nothing.
#
# What is refused before the stream is attached changes nothing (rule 18): a bad Join, a certificate of another node,
# another protocol, another run, a term that nobody can believe. A node that is dismissed here ends with the
# reason; one whose call is aborted dials again. So is a node that was welcomed before: a coordinator that was started
# with the wrong settings ends no run.

import asyncio
import logging

import grpc

from culm.coordinator import cutting, reports
from culm.coordinator.edges.joining import Joining
from culm.coordinator.edges.leader import Leader
from culm.coordinator.edges.node_logs import NodeLogs
from culm.coordinator.edges.order_stream import OrderStream
from culm.coordinator.edges.translation import report_of
from culm.coordinator.report_bounds import join_problem, problem
from culm.pipeline.job import job_to_toml
from culm.pipeline.messages import machine_from_proto
from culm.pipeline.rpc.roles import peer_of, stranger
from culm.pipeline.rpc.seldom import Seldom
from culm.pipeline.terms import is_believable
from culm.pipeline.version import PROTOCOL_VERSION
from culm.protos import coordinator_pb2 as pb

log = logging.getLogger("culm.coordinator")
SELDOM = Seldom(log)

# From a stream's beginning to its first message. An idle stream takes room of its caller's share until then.
JOIN_SECONDS = 10.0
MOST_SAID = 500  # characters of a refusal: what came may be long


class AttendCalls:
    """Serves the Attend streams of all nodes, each in a call of its own."""

    def __init__(self, leader: Leader, logs: NodeLogs) -> None:
        self._leader = leader
        self._logs = logs
        self._settings = leader.settings
        self._joining = Joining()
        self._job_toml = job_to_toml(leader.settings.job)

    def _welcome(self) -> pb.AttendResponse:
        patience = self._settings.patience
        welcome = pb.Welcome(job_toml=self._job_toml, term=self._leader.term, heartbeat_seconds=patience.heartbeat)
        welcome.patience_seconds = patience.seconds
        welcome.measure = cutting.wanted(self._leader.state)
        return pb.AttendResponse(welcome=welcome)

    async def serve(self, context: grpc.aio.ServicerContext[object, object]) -> None:
        """Serves one stream to its end."""
        try:
            async with asyncio.timeout(JOIN_SECONDS):
                first = await context.read()
        except TimeoutError:
            await self._refuse(context, f"no Join came within {JOIN_SECONDS:g} s")
        if first is grpc.aio.EOF or not isinstance(first, pb.AttendRequest) or not first.HasField("join"):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "an Attend stream begins with Join")
        assert isinstance(first, pb.AttendRequest)
        join = first.join
        if wrong := join_problem(join) or stranger(context.auth_context(), join.node):
            await self._refuse(context, f"its Join does not fit: {wrong}")
        if wrong := self._misdirected(join):
            # A node that has seen a term may hold what a run needs: it keeps that, and dials again (rule 23).
            if join.term:
                SELDOM.say(peer_of(context), f"it is not attended: {wrong}")
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, wrong)
            await context.write(pb.AttendResponse(dismiss=pb.Dismiss(why=wrong)))
            return
        if self._leader.outranked is not None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "this coordinator is taking a higher term: attend again")
        if not is_believable(join.term, self._leader.term):
            await self._refuse(context, self._unbelievable(join))
        stream = OrderStream(
            node=join.node, incarnation=join.incarnation, queue=asyncio.Queue(), takes_changes=join.takes_changes
        )
        stream.put(self._welcome())  # before any order: a node reads the job and the term first
        if not self._leader.publisher.attach(stream):
            why = f"another process already runs as {join.node}: give this one its own --name"
            await context.write(pb.AttendResponse(dismiss=pb.Dismiss(why=why)))
            return
        if wait := self._joining.problem(self._leader.state, join.node, peer_of(context)):
            self._leader.detach(stream, "it has to wait")
            SELDOM.say(peer_of(context), f"{join.node} cannot join yet: {wait}")
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, wait)
        machine = machine_from_proto(join.machine)
        joined = reports.Joined(
            node=join.node,
            incarnation=join.incarnation,
            address=join.address,
            pid=join.pid,
            zone=join.zone,
            machine=machine,
            term=join.term,
        )
        task = asyncio.current_task()
        assert task is not None
        stream.cut = task.cancel
        # Nobody cancels the reading half: gRPC would keep what that half was about to read for ever. It ends with the
        # call.
        self._leader.background.begin(self._read(stream, joined, context))
        try:
            async for order in stream.orders():
                await context.write(order)
        finally:
            stream.cut, stream.over = None, True
            self._leader.detach(stream, "it broke")
        # Here and not in the reading half: orders that were queued before the bad message are written first.
        if stream.wrong:
            await self._refuse(context, f"{join.node}: {stream.wrong}")

    def _misdirected(self, join: pb.Join) -> str:
        """Why this coordinator is not the node's, or nothing: one of the two was started with other settings."""
        if join.protocol_version != PROTOCOL_VERSION:
            return (
                f"{join.node} speaks protocol {join.protocol_version}, this coordinator {PROTOCOL_VERSION}: "
                "install the same version of culm on both"
            )
        if join.run and join.run != self._settings.run:
            return (
                f"{join.node} was started for run {join.run}, and this coordinator serves run {self._settings.run}: "
                "give the node the right --coordinator or --run"
            )
        return ""

    async def _refuse(self, context: "grpc.aio.ServicerContext[object, object]", wrong: str) -> None:
        """Ends the call, which changes nothing else (rule 18)."""
        SELDOM.say(peer_of(context), f"ended its Attend stream: {wrong}")
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, wrong[:MOST_SAID])

    def _unbelievable(self, join: pb.Join) -> str:
        said = f"{join.node!r} says that it has seen term {join.term}, and this run is at term {self._leader.term}"
        mend = f"if it is right, set culm:{self._settings.run}:term in Redis to that and start the coordinator again"
        return f"{said}: that is too far ahead to be believed; {mend}"

    async def _read(
        self, stream: OrderStream, joined: reports.Joined, context: grpc.aio.ServicerContext[object, object]
    ) -> None:
        """Turns the node's messages into reports, until its stream ends."""
        why = "it broke"
        try:
            # The node joins before any of its messages counts.
            self._leader.take(joined)
            while (request := await context.read()) is not grpc.aio.EOF and not stream.over:
                if not isinstance(request, pb.AttendRequest):
                    stream.wrong = "its message is not an AttendRequest"
                    return
                stream.wrong = problem(self._leader.state, request)
                if stream.wrong:
                    why = "its message does not fit this run"
                    return
                report = report_of(stream.node, stream.incarnation, request)
                if isinstance(report, reports.Heartbeat):
                    self._leader.heard(report)
                    self._logs.take(stream.node, stream.incarnation, request.heartbeat.log_lines)
                elif report is not None:
                    self._leader.take(report)
            why = "it ended"
        except (grpc.RpcError, grpc.aio.UsageError):
            log.debug("the order stream of %s broke", stream.node)
        finally:
            self._leader.detach(stream, why)
            stream.queue.put_nowait(None)
