"""RPCs over real servers, threaded and aio, and what is counted of them."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from prometheus_client import CollectorRegistry

from culm.pipeline.rpc.channel import server_options
from culm.pipeline.rpc.rpc_metrics import AioInterceptor, Interceptor, RpcMetrics, code_of
from culm.protos import coordinator_pb2 as pb
from culm.protos import stage_pb2
from culm.protos.coordinator_pb2_grpc import CoordinatorServicer, CoordinatorStub, add_CoordinatorServicer_to_server
from culm.protos.stage_pb2_grpc import StageServicer, StageStub, add_StageServicer_to_server

STAGE, COORDINATOR = "culm.v1.Stage", "culm.v1.Coordinator"


class Counts:
    """What a registry holds of one service. Its clock goes one second further each time that it is read."""

    def __init__(self, service: str) -> None:
        self.registry = CollectorRegistry()
        seconds = itertools.count(0.0)
        self.metrics = RpcMetrics(self.registry, lambda: next(seconds))
        self._service = service

    def get(self, name: str, kind: str, method: str, code: str | None = None) -> float | None:
        labels = {"grpc_type": kind, "grpc_service": self._service, "grpc_method": method}
        if code is not None:
            labels["grpc_code"] = code
        return self.registry.get_sample_value(f"grpc_server_{name}", labels)


class Stage(StageServicer):
    """Answers every second message, and fetches what exists."""

    def Deliver(  # noqa: N802
        self, request_iterator: Iterator[stage_pb2.DeliverRequest], context: grpc.ServicerContext
    ) -> Iterator[stage_pb2.DeliverResponse]:
        for i, _ in enumerate(request_iterator):
            if i % 2:
                yield stage_pb2.DeliverResponse(incarnation=i)

    def Fetch(  # noqa: N802
        self, request: stage_pb2.FetchRequest, context: grpc.ServicerContext
    ) -> Iterator[stage_pb2.FetchResponse]:
        for layer in request.layers:
            if layer == 8:
                raise KeyError(layer)
            if layer == 9:
                context.abort(grpc.StatusCode.FAILED_PRECONDITION, "no such layer")
            yield stage_pb2.FetchResponse(layer=layer)


@pytest.fixture
def stage() -> Iterator[tuple[Counts, StageStub]]:
    counts = Counts(STAGE)
    pool = ThreadPoolExecutor(max_workers=4)
    server = grpc.server(pool, interceptors=[Interceptor(counts.metrics)], options=server_options())
    add_StageServicer_to_server(Stage(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield counts, StageStub(channel)
    server.stop(None).wait()
    pool.shutdown()


def test_a_stream_is_counted_message_by_message_and_timed_once(stage: tuple[Counts, StageStub]) -> None:
    counts, stub = stage
    assert len(list(stub.Deliver(iter([stage_pb2.DeliverRequest()] * 6)))) == 3
    assert counts.get("started_total", "bidi_stream", "Deliver") == 1
    assert counts.get("handled_total", "bidi_stream", "Deliver", "OK") == 1
    assert counts.get("msg_received_total", "bidi_stream", "Deliver") == 6
    assert counts.get("msg_sent_total", "bidi_stream", "Deliver") == 3
    assert counts.get("handling_seconds_count", "bidi_stream", "Deliver") == 1
    assert counts.get("handling_seconds_sum", "bidi_stream", "Deliver") == 1.0, "two readings of the clock"


@pytest.mark.parametrize(
    ("layers", "code"), [([1, 2], "OK"), ([1, 2, 9], "FailedPrecondition"), ([1, 2, 8], "Unknown")]
)
def test_an_rpc_ends_with_its_code(layers: list[int], code: str, stage: tuple[Counts, StageStub]) -> None:
    counts, stub = stage
    given = []
    try:
        for response in stub.Fetch(stage_pb2.FetchRequest(layers=layers)):
            given.append(response.layer)
    except grpc.RpcError:
        assert code != "OK"
    assert given == [1, 2]
    assert counts.get("handled_total", "server_stream", "Fetch", code) == 1
    assert counts.get("msg_received_total", "server_stream", "Fetch") == 1
    assert counts.get("msg_sent_total", "server_stream", "Fetch") == 2


class Coordinator(CoordinatorServicer):
    """All the styles in which an aio servicer may be written."""

    async def Attend(  # type: ignore[override]  # noqa: N802
        self, request_iterator: AsyncIterator[pb.AttendRequest], context: grpc.aio.ServicerContext[object, object]
    ) -> None:
        while await context.read() is not grpc.aio.EOF:
            await context.write(pb.AttendResponse())
        await context.write(pb.AttendResponse())

    async def GetStatus(  # noqa: N802
        self, request: pb.GetStatusRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> pb.GetStatusResponse:
        return pb.GetStatusResponse()

    async def ListEvents(  # noqa: N802
        self, request: pb.ListEventsRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> AsyncIterator[pb.ListEventsResponse]:
        for _ in range(4):
            yield pb.ListEventsResponse()

    async def Kill(  # noqa: N802
        self, request: pb.KillRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> pb.KillResponse:
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, "not here")


def _use(stub: CoordinatorStub) -> tuple[int, int]:
    stub.GetStatus(pb.GetStatusRequest())
    with pytest.raises(grpc.RpcError, match="PERMISSION_DENIED"):
        stub.Kill(pb.KillRequest())
    orders = len(list(stub.Attend(iter([pb.AttendRequest()] * 5))))
    return orders, len(list(stub.ListEvents(pb.ListEventsRequest())))


def test_an_aio_server_is_counted_alike() -> None:
    counts = Counts(COORDINATOR)

    async def scenario() -> tuple[int, int]:
        server = grpc.aio.server(interceptors=[AioInterceptor(counts.metrics)], options=server_options())
        add_CoordinatorServicer_to_server(Coordinator(), server)  # type: ignore[abstract]
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            answers = await asyncio.to_thread(_use, CoordinatorStub(channel))
        await server.stop(None)
        return answers

    assert asyncio.run(scenario()) == (6, 4)
    ended = {
        ("unary", "GetStatus", "OK"): (1, 1),
        ("bidi_stream", "Attend", "OK"): (5, 6),
        ("server_stream", "ListEvents", "OK"): (1, 4),
        ("unary", "Kill", "PermissionDenied"): (1, 0),
    }
    for (kind, method, code), (received, sent) in ended.items():
        assert counts.get("started_total", kind, method) == 1
        assert counts.get("handled_total", kind, method, code) == 1, f"{method} is to end with {code}"
        assert counts.get("msg_received_total", kind, method) == received
        assert counts.get("msg_sent_total", kind, method) == sent
        assert counts.get("handling_seconds_sum", kind, method) == 1.0


@pytest.mark.parametrize(
    ("code", "error", "gone", "name"),
    [
        (None, None, False, "OK"),
        (0, None, False, "OK"),
        (grpc.StatusCode.NOT_FOUND, Exception(), False, "NotFound"),
        (7, Exception(), False, "PermissionDenied"),
        (None, ValueError(), False, "Unknown"),
        (0, ValueError(), False, "Unknown"),
        (None, None, True, "Canceled"),
        (None, GeneratorExit(), False, "Canceled"),
        (0, asyncio.CancelledError(), False, "Canceled"),
    ],
)
def test_codes_are_named_as_go_names_them(
    code: grpc.StatusCode | int | None, error: BaseException | None, gone: bool, name: str
) -> None:
    assert code_of(code, error, gone) == name
