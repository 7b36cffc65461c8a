"""Whoever opens streams, or connections, takes no room from those that training needs (rule 18)."""

import asyncio
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from culm.coordinator.decide import advance, begin
from culm.coordinator.edges.coordinator_settings import CoordinatorSettings
from culm.coordinator.edges.joining import MOST_JOINING, Joining
from culm.coordinator.edges.leader import Leader
from culm.coordinator.edges.order_stream import MOST_ORDERS, OrderStream
from culm.coordinator.edges.service import Service
from culm.coordinator.edges.store import MemoryStore
from culm.coordinator.reports import Joined, Left
from culm.pipeline.job import load_job
from culm.pipeline.rpc.admission import OTHERS, THREADS, Admission, AdmissionInterceptor, AioAdmissionInterceptor
from culm.pipeline.rpc.channel import server_options
from culm.pipeline.rpc.exposition import AT_ONCE, Exposition
from culm.pipeline.version import PROTOCOL_VERSION
from culm.protos import coordinator_pb2 as pb
from culm.protos import stage_pb2
from culm.protos.coordinator_pb2_grpc import CoordinatorStub, add_CoordinatorServicer_to_server
from culm.stage_server.streams.plane import deliver, encode
from culm.stage_server.streams.receiver import Receiver
from tests.integration.test_receiver import Taker

JOB = load_job(Path(__file__).parents[2] / "examples" / "digits_mlp.toml", ["pipeline.stages=2"])
JOB_SETTINGS = CoordinatorSettings(job=JOB).decisions()
DEADLINE_SECONDS = 60.0  # ends a test that hangs; no test waits for it


@pytest.fixture
def stage() -> Iterator[str]:
    """The address of a stage's services, with as many threads as a stage has."""
    pool = ThreadPoolExecutor(max_workers=THREADS)
    server = grpc.server(pool, interceptors=[AdmissionInterceptor()], options=server_options())
    Receiver(Taker()).serve(server)
    servicer = health.HealthServicer()
    servicer.set("", health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None)


def watch_on(channel: grpc.Channel) -> Any:
    encode, decode = health_pb2.HealthCheckRequest.SerializeToString, health_pb2.HealthCheckResponse.FromString
    return channel.unary_stream("/grpc.health.v1.Health/Watch", encode, decode)(health_pb2.HealthCheckRequest())


def test_a_viewer_who_watches_a_hundred_times_takes_no_stream_of_a_stage(stage: str) -> None:
    with grpc.insecure_channel(stage) as channel:
        watches = [watch_on(channel) for _ in range(100)]
        codes = []
        for watch in watches:
            try:
                next(watch)
                codes.append(grpc.StatusCode.OK)
            except grpc.RpcError:
                codes.append(watch.code())
        assert codes.count(grpc.StatusCode.OK) == OTHERS.each
        assert codes.count(grpc.StatusCode.RESOURCE_EXHAUSTED) == 100 - OTHERS.each
        with grpc.insecure_channel(stage) as another:
            hello = stage_pb2.Hello(node="n0", incarnation=1)
            ended = list(deliver(another, iter([encode(stage_pb2.DeliverRequest(hello=hello))])))
            assert ended == []
        for watch in watches:
            watch.cancel()


def test_whoever_ends_a_call_has_its_room_back() -> None:
    admission = Admission()
    method = "/grpc.health.v1.Health/Watch"
    for _ in range(OTHERS.each):
        assert admission.refusal(method, "a") == ""
    assert "end one first" in admission.refusal(method, "a")
    assert admission.refusal(method, "b") == ""
    admission.left(method, "a")
    assert admission.refusal(method, "a") == ""
    assert admission.refusal("/culm.v1.Stage/Deliver", "a") == "", "what training needs has room of its own"


def test_a_node_that_names_itself_has_fewer_than_a_host() -> None:
    admission = Admission()
    opened = [admission.refusal("/culm.v1.Stage/Deliver", "stage n0", names_node=True) for _ in range(40)]
    assert opened.count("") == 32


def test_followers_of_the_event_log_are_counted_and_slow_ones_keep_nothing_waiting() -> None:
    async def scenario() -> None:
        leader = Leader(CoordinatorSettings(job=JOB), MemoryStore())
        await leader.lead()
        server = grpc.aio.server(interceptors=[AioAdmissionInterceptor()], options=server_options())
        add_CoordinatorServicer_to_server(Service(leader), server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = CoordinatorStub(channel)
            node = stub.Attend()
            join = pb.Join(node="n0", incarnation=1, address="n0:1", protocol_version=PROTOCOL_VERSION)
            await node.write(pb.AttendRequest(join=join))
            await node.read()
            calls = [stub.ListEvents(pb.ListEventsRequest(follow=True)) for _ in range(70)]
            codes: list[grpc.StatusCode] = []
            for call in calls:
                try:
                    await call.read()
                    codes.append(grpc.StatusCode.OK)
                except grpc.aio.AioRpcError as error:
                    codes.append(error.code())
            assert codes.count(grpc.StatusCode.RESOURCE_EXHAUSTED) == 70 - 64
            for call in calls:
                call.cancel()
        await server.stop(None)

    asyncio.run(asyncio.wait_for(scenario(), DEADLINE_SECONDS))


def test_a_node_that_takes_no_orders_is_cut_off_before_they_pile_up() -> None:
    cut: list[str] = []
    stream = OrderStream(node="n0", incarnation=1, queue=asyncio.Queue(), cut=lambda: cut.append("n0"))
    for _ in range(MOST_ORDERS + 50):
        stream.put(pb.AttendResponse())
    assert cut == ["n0"]


@pytest.fixture
def exposition() -> Iterator[Exposition]:
    exposition = Exposition("0")
    yield exposition
    exposition.close()


def test_idle_connections_hold_up_no_scrape(exposition: Exposition, monkeypatch: pytest.MonkeyPatch) -> None:
    host, _, port = exposition.address.rpartition(":")
    idle = [socket.create_connection((host, int(port))) for _ in range(3 * AT_ONCE)]
    turned_away = [each for each in idle[AT_ONCE:] if each.recv(1) == b""]  # at once, without an answer
    assert len(turned_away) == 2 * AT_ONCE
    for each in idle:
        each.close()
    while True:  # the eight threads notice that their callers have gone, each by itself
        try:
            with urlopen(f"http://{exposition.address}/metrics", timeout=DEADLINE_SECONDS) as answer:
                assert b"process_cpu_seconds_total" in answer.read()
                return
        except ConnectionError:
            continue


def test_a_caller_who_says_a_word_now_and_then_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("culm.pipeline.rpc.exposition.SECONDS", 0.2)
    exposition = Exposition("0")
    host, _, port = exposition.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=DEADLINE_SECONDS) as slow:
        began = time.monotonic()
        try:
            while slow.send(b"GET"):
                pass
        except OSError:
            assert time.monotonic() > began
    exposition.close()


def test_nodes_that_join_under_ever_new_names_have_to_wait() -> None:
    joining, state = Joining(), begin(JOB_SETTINGS)
    for i in range(MOST_JOINING):
        assert joining.problem(state, f"x{i}", "a host") == ""
        state, _ = advance(state, Joined(node=f"x{i}", incarnation=1, address="x:1"), 0.0)
    assert "are joining" in joining.problem(state, "one-more", "a host")
    assert joining.problem(state, "x3", "a host") == "", "one that is known comes back"
    assert joining.problem(state, "one-more", "another host") == ""
    state, _ = advance(state, Left("x5", 1, "it goes"), 0.0)
    assert joining.problem(state, "one-more", "a host") == ""
