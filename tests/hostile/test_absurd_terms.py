"""A node's word cannot push a run's term out of reach: the stream ends, nothing else changes, and the next leads."""

import asyncio
from pathlib import Path

import grpc
import pytest
from redis import Redis

from culm.coordinator.edges.coordinator_settings import CoordinatorSettings
from culm.coordinator.edges.leader import Leader
from culm.coordinator.edges.redis_store import RedisStore
from culm.coordinator.edges.service import Service, _lead
from culm.local.redis_server import EmbeddedRedis
from culm.pipeline.job import load_job
from culm.pipeline.terms import LEAP
from culm.pipeline.version import PROTOCOL_VERSION
from culm.protos import coordinator_pb2 as pb
from culm.protos.coordinator_pb2_grpc import CoordinatorStub, add_CoordinatorServicer_to_server
from tests.fake_node import FakeNode

JOB = load_job(Path(__file__).parents[2] / "examples" / "digits_mlp.toml", ["pipeline.stages=2"])


@pytest.mark.parametrize("term", [1 << 63, (1 << 64) - 1, LEAP + 2])
def test_a_huge_term_ends_its_stream_and_nothing_else(tmp_path: Path, term: int) -> None:
    async def scenario(url: str) -> None:
        store = RedisStore(url, "r", "a", 60.0)
        leader = Leader(CoordinatorSettings(job=JOB), store)
        await leader.lead()
        server = grpc.aio.server()
        add_CoordinatorServicer_to_server(Service(leader), server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            node = FakeNode("n0", CoordinatorStub(channel).Attend())
            await node.say(join=pb.Join(node="n0", incarnation=1, protocol_version=PROTOCOL_VERSION, term=term))
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await node.hear("welcome")
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert "too far ahead" in (refused.value.details() or "")
        assert (leader.term, leader.outranked, leader.failure) == (1, None, None)
        await server.stop(None)
        await leader.close()
        successor = RedisStore(url, "r", "b", 60.0)
        assert await successor.acquire() == 2
        await successor.close()

    with EmbeddedRedis(tmp_path / "redis") as redis:
        asyncio.run(scenario(redis.url))


def test_a_believable_term_has_the_coordinator_lead_anew_above_it(tmp_path: Path) -> None:
    async def scenario(url: str) -> None:
        store = RedisStore(url, "r", "a", 60.0)
        leader = Leader(CoordinatorSettings(job=JOB), store)
        await leader.lead()
        server = grpc.aio.server()
        add_CoordinatorServicer_to_server(Service(leader), server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        ticking = asyncio.create_task(_lead(leader, store))
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = CoordinatorStub(channel)
            node = FakeNode("n0", stub.Attend())
            await node.say(join=pb.Join(node="n0", incarnation=1, protocol_version=PROTOCOL_VERSION, term=6))
            while (await stub.GetStatus(pb.GetStatusRequest())).term != 7:
                pass
        ticking.cancel()
        await server.stop(None)
        await leader.close()
        with Redis.from_url(url, decode_responses=True) as client:
            assert client.get("culm:r:term") == "7"

    with EmbeddedRedis(tmp_path / "redis") as redis:
        asyncio.run(scenario(redis.url))
