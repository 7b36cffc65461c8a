"""What used to grow for as long as a run lasted, or Redis was away, has a bound."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from redis import Redis

from culm.coordinator.decide import begin
from culm.coordinator.edges import redis_store
from culm.coordinator.edges.billing import Billing
from culm.coordinator.edges.redis_store import RedisStore
from culm.coordinator.state import Node, Phase, Settings
from culm.local.redis_server import EmbeddedRedis
from culm.pipeline.money.ledger import Ledger
from culm.pipeline.times import TimeSplit


def test_a_run_that_is_done_logs_no_usage() -> None:
    billing = Billing("")
    state = begin(Settings(stages=1, microbatches=1, steps=1))
    node = Node(node="n0", incarnation=1, address="n0:1", times=TimeSplit(forward=1.0))
    running = replace(state, phase=Phase.RUNNING, nodes={"n0": node})
    assert any(record.kind == "usage" for record in billing.records(running, Ledger(), 0.0))
    for second in range(1000):
        node = Node(node="n0", incarnation=1, address="n0:1", times=TimeSplit(forward=1.0, idle=float(second)))
        done = replace(state, phase=Phase.DONE, nodes={"n0": node})
        assert list(billing.records(done, Ledger(), float(second))) == []


def test_an_outage_of_redis_queues_a_bounded_number_of_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(redis_store, "QUEUED", 100)
    caplog.set_level("INFO")

    async def scenario() -> None:
        server = EmbeddedRedis(tmp_path / "redis")
        server.start()
        store = RedisStore(server.url, "r", "a", 60.0)
        await store.acquire()
        server.stop()
        for step in range(5_000):
            store.save({"step": step})
            store.append("metrics", {"step": step})
        assert len(store._queue) <= 101
        server.start()
        await store._drained.wait()
        with Redis.from_url(server.url, decode_responses=True) as client:
            assert client.get("culm:r:state") == '{"step": 4999}'
            assert client.xrevrange("culm:r:metrics", count=1)[0][1] == {"step": "4999"}
        await store.close()
        server.stop()

    asyncio.run(scenario())
    assert "entries of the event log: Redis was away" in caplog.text
