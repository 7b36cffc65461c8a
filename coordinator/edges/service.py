"""The coordinator process: the gRPC service over the leader, its clock and its lease."""

# The life of the process:
#
#     listen     the port is taken first: a coordinator that cannot be reached is no use as a leader
#     lead       waits for the lease. Another coordinator may hold it for hours: this one is then in reserve
#     serve      only a leader answers. Nodes that dial one in reserve get no answer, and dial again
#     tick       20 times a second: time for the decisions, and now and then the lease and the garbage
#     end        told to stop: exit code 0, the nodes are told nothing and wait (rule 17)
#                another one leads, or a decision raised: exit code 1; the nodes' streams end, and they dial again
#
# Neither end tells a node to go. At both the last state goes to the store, which has a moment to take it.

import asyncio
import errno
import gc
import logging
import signal
import socket
import time
from collections.abc import AsyncIterator, Sequence

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from prometheus_client.core import Metric

from culm.coordinator import reports
from culm.coordinator.edges.attend_call import AttendCalls
from culm.coordinator.edges.coordinator_settings import CoordinatorSettings
from culm.coordinator.edges.leader import Leader
from culm.coordinator.edges.node_logs import NodeLogs
from culm.coordinator.edges.operator_calls import OperatorCalls
from culm.coordinator.edges.outlook import Outlook
from culm.coordinator.edges.redis_store import RedisStore
from culm.coordinator.edges.run_metrics import RunCollector
from culm.coordinator.edges.store import LostLease, MemoryStore, Store
from culm.coordinator.edges.tracking import Tracking, refuse_missing
from culm.coordinator.request_bounds import drain_problem, kill_problem, lines_problem
from culm.coordinator.state import Phase
from culm.pipeline.log_lines import last_line, speak_as
from culm.pipeline.places import parse_place
from culm.pipeline.rpc.admission import MOST_STREAMS, AioAdmissionInterceptor
from culm.pipeline.rpc.channel import server_options
from culm.pipeline.rpc.exposition import Exposition
from culm.pipeline.rpc.roles import AioRoleInterceptor
from culm.pipeline.rpc.rpc_metrics import AioInterceptor, RpcMetrics
from culm.pipeline.rpc.tls import add_port
from culm.protos import coordinator_pb2 as pb
from culm.protos.coordinator_pb2_grpc import CoordinatorServicer, add_CoordinatorServicer_to_server

log = logging.getLogger("culm.coordinator")

TICK_SECONDS = 0.05  # how late time is looked at; a part of every time to detect a lost node
# Between two whole collections: what refers to itself may wait so long, and each costs 0.15 s with a thousand nodes.
GARBAGE_SECONDS = 60.0
# Objects made and not freed since the last collection: a flood of short streams makes a hundred each.
MOST_YOUNG = 5_000
GRACE_SECONDS = 1.0  # that open calls get to end by themselves when the process stops
WHO_LENGTH = 200  # characters of a text that a caller may add to the event log
SCRAPE_SECONDS = 5.0  # that whoever asks for the metrics waits for the event loop


class Service(CoordinatorServicer):
    """Decodes, makes one call, encodes."""

    def __init__(self, leader: Leader) -> None:
        self._leader = leader
        self._settings = leader.settings
        self._logs = NodeLogs(time.time)
        self._attendance = AttendCalls(leader, self._logs)
        self._operators = OperatorCalls(leader)
        self._outlook = Outlook(leader)

    async def Attend(  # type: ignore[override]  # noqa: N802
        self, request_iterator: AsyncIterator[pb.AttendRequest], context: grpc.aio.ServicerContext[object, object]
    ) -> None:
        await self._attendance.serve(context)

    async def GetStatus(  # noqa: N802
        self, request: pb.GetStatusRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> pb.GetStatusResponse:
        return self._leader.status()

    async def ListEvents(  # noqa: N802
        self, request: pb.ListEventsRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> AsyncIterator[pb.ListEventsResponse]:
        # ``grown`` is taken before the events are read: one that comes in between sets it, and none is missed. A new
        # term has a new log, in which numbers go on above those of the old one, so a follower just looks again.
        following = request.from_sequence
        while True:
            log_of_now = self._leader.log
            grown = log_of_now.grown
            await log_of_now.whole.wait()
            for event in log_of_now.since(following):
                yield event
                following = event.sequence + 1
            if not request.follow:
                return
            await grown.wait()

    async def GetCost(  # noqa: N802
        self, request: pb.GetCostRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> pb.GetCostResponse:
        return await self._outlook.cost()

    async def Kill(  # noqa: N802
        self, request: pb.KillRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> pb.KillResponse:
        if wrong := kill_problem(request):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, wrong)
        if not self._settings.allow_kill:
            mend = "start it with --allow-kill"
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, f"this coordinator may not kill nodes: {mend}")
        try:
            at_once = not request.at or not parse_place(request.at)
        except ValueError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        node = self._leader.state.nodes.get(request.node)
        if node is None or not self._leader.publisher.send(request.node, pb.AttendResponse(die=pb.Die(at=request.at))):
            known = ", ".join(self._leader.state.nodes) or "none"
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no node {request.node!r} is attached; there are: {known}")
        assert node is not None
        if at_once:  # a node that was ordered to die and lives on is declared lost after the patience
            self._leader.take(reports.Condemned(node.node, node.incarnation))
        return pb.KillResponse(pid=node.pid)

    async def Drain(  # noqa: N802
        self, request: pb.DrainRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> pb.DrainResponse:
        if wrong := drain_problem(request):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, wrong)
        if request.node not in self._leader.state.nodes:
            known = ", ".join(self._leader.state.nodes) or "none"
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no node {request.node!r} takes part; there are: {known}")
        self._leader.take(reports.Draining(request.node, request.why or "an operator asked for it"))
        return pb.DrainResponse()

    async def Pause(  # noqa: N802
        self, request: pb.PauseRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> pb.PauseResponse:
        return await self._operators.pause(request, context)

    async def Resume(  # noqa: N802
        self, request: pb.ResumeRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> pb.ResumeResponse:
        return await self._operators.resume(request, context)

    async def SaveCheckpoint(  # noqa: N802
        self, request: pb.SaveCheckpointRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> pb.SaveCheckpointResponse:
        return await self._operators.save(request, context)

    async def ListLogLines(  # noqa: N802
        self, request: pb.ListLogLinesRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> pb.ListLogLinesResponse:
        if wrong := lines_problem(request):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, wrong)
        return self._logs.answer(request)

    async def NoteFetched(  # noqa: N802
        self, request: pb.NoteFetchedRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> pb.NoteFetchedResponse:
        if self._leader.state.phase is not Phase.DONE:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "the run is not done: it has no final weights yet")
        self._leader.take(reports.Fetched(request.who[:WHO_LENGTH] or "by somebody who did not say"))
        return pb.NoteFetchedResponse()


def _taken(listen: str) -> bool:
    """Whether somebody listens there. Asked first because gRPC, when it fails, writes lines of its own."""
    host, _, port = listen.rpartition(":")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.create_server((host.strip("[]"), int(port)), family=family):
            return False
    except (OSError, ValueError, OverflowError) as error:
        return isinstance(error, OSError) and error.errno == errno.EADDRINUSE


async def serve(settings: CoordinatorSettings, stop: asyncio.Event) -> int:
    """Serves until ``stop`` is set or another coordinator leads; the exit code. Neither ends a node."""
    store: Store = MemoryStore()
    if settings.redis_url:
        store = RedisStore(settings.redis_url, settings.run, settings.name, settings.patience.lease)
    refuse_missing(settings.job)
    leader = Leader(settings, store)
    speak_as(leader.standing)
    try:
        exposition = Exposition(settings.metrics) if settings.metrics else None
    except (OSError, ValueError) as error:
        last_line("coordinator", str(error))
        return 2
    interceptors: list[grpc.aio.ServerInterceptor] = [AioRoleInterceptor(settings.run), AioAdmissionInterceptor()]
    if exposition is not None:
        interceptors.append(AioInterceptor(RpcMetrics(exposition.registry)))
    server = grpc.aio.server(interceptors=interceptors, options=[*server_options(settings.patience), *MOST_STREAMS])
    host, _, _ = settings.listen.rpartition(":")
    taken = _taken(settings.listen)
    try:
        port = 0 if taken else add_port(server, settings.listen, settings.insecure)
    except RuntimeError:
        port = 0
    if not port:
        mend = f"{'port in use' if taken else 'it is no address of this host'}; choose another with --listen"
        last_line("coordinator", f"cannot listen on {settings.listen}: {mend}")
        return 2
    stopped = asyncio.create_task(stop.wait())
    leading = asyncio.create_task(leader.lead())
    await asyncio.wait({leading, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if not leading.done():  # told to stop while another coordinator leads
        leading.cancel()
        await leader.close()
        return 0
    await leading  # raises what kept it from leading, such as a job that may not go on
    add_CoordinatorServicer_to_server(Service(leader), server)
    servicer = health.aio.HealthServicer()
    await servicer.set("", health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    if settings.reflection:
        names = [d.full_name for d in pb.DESCRIPTOR.services_by_name.values()]
        reflection.enable_server_reflection([*names, reflection.SERVICE_NAME], server)
    await server.start()
    if exposition is not None:
        _expose(leader, exposition)
    print(f"culm coordinator listening on {host}:{port}", flush=True)
    tracking = Tracking(settings.job, leader.run_id, lambda: leader.log, leader.untracked)
    tracked = leader.background.begin(tracking.follow())
    lead = asyncio.create_task(_lead(leader, store))
    await asyncio.wait({lead, stopped}, return_when=asyncio.FIRST_COMPLETED)
    code = 0
    if lead.done():
        last_line("coordinator", f"{lead.exception()}; this one steps down")
        leader.publisher.end()
        code = 1
    else:
        lead.cancel()
        # A stop is not an end (rule 17): the nodes are told nothing, keep what they hold and wait for the next one.
        log.info("told to stop: its nodes keep their state and wait for another coordinator of run %s", settings.run)
        leader.publisher.end()
    await server.stop(GRACE_SECONDS)
    tracked.cancel()
    await tracking.close()
    await leader.close()
    if exposition is not None:
        exposition.close()
    return code


def _expose(leader: Leader, exposition: Exposition) -> None:
    """Has the run's metrics read on the event loop, where the leader lives, and not on the thread that asks."""
    loop = asyncio.get_running_loop()

    async def look() -> tuple[pb.GetStatusResponse, Sequence[Metric]]:
        # A counter that begins at 0 before the log is read would seem to rise by all that came before.
        return leader.status(), leader.log.tally.collect() if leader.log.whole.is_set() else []

    def ask() -> tuple[pb.GetStatusResponse, Sequence[Metric]]:
        return asyncio.run_coroutine_threadsafe(look(), loop).result(SCRAPE_SECONDS)

    exposition.registry.register(RunCollector(ask))
    exposition.announce()


async def _lead(leader: Leader, store: Store) -> None:
    """Time passes and the lease is kept, until another leads. A decision that raised ends it too."""
    loop = asyncio.get_running_loop()
    last, collected = 0.0, loop.time()
    # A whole collection takes 0.15 s with a thousand nodes. Python's own comes when most objects are made: while a plan
    # answers a lost node. So this loop collects, between two ticks.
    gc.disable()
    try:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            if leader.failure is not None:
                raise leader.failure
            if leader.outranked is not None:
                await leader.lead()
            leader.take(reports.Tick())
            # Every write renews the lease, so this matters while nothing is written. A fenced leader hears of it here,
            # up to a quarter of the lease late. Its nodes obey the higher term as soon as they see it (rule 12).
            if loop.time() - last > leader.settings.patience.lease / 4:
                last = loop.time()
                await store.renew()
            if gc.get_count()[0] > MOST_YOUNG:
                gc.collect(0)  # of these alone: about a millisecond
            if loop.time() - collected > GARBAGE_SECONDS:
                collected = loop.time()
                gc.collect()
    finally:
        gc.enable()


async def _serve_until_told(settings: CoordinatorSettings) -> int:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return await serve(settings, stop)


def main(settings: CoordinatorSettings) -> int:
    """Serves until it is told to stop. Exit codes as for every ``culm`` command."""
    try:
        return asyncio.run(_serve_until_told(settings))
    except LostLease as error:
        last_line("coordinator", str(error))
        return 1
