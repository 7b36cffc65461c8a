"""A run of 20,000 steps with 200 lost nodes: what its coordinator keeps is bounded; its successor reads all."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from culm.coordinator.edges.event_log import EventLog
from culm.coordinator.edges.redis_store import RedisStore
from culm.local.redis_server import EmbeddedRedis
from culm.pipeline.money import kinds

STEPS, LOST_EVERY = 20_000, 100
PLAN = kinds.Planned(generation=1, steps=20000, stage_count=2, stages=(), samples_per_step=8)


class Clock:
    """Unix seconds that pass as events come."""

    def __init__(self) -> None:
        self.now = 1.7e9

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis(tmp_path / "redis") as server:
        yield server


async def train(log: EventLog, clock: Clock, store: RedisStore) -> None:
    """The events of such a run."""

    def join(node: str, incarnation: int) -> None:
        log.record(kinds.Joined(node=node, incarnation=incarnation), f"{node} joined", 0, 1)
        priced = kinds.Priced(
            node=node,
            incarnation=incarnation,
            per_hour=3.6,
            on_demand_per_hour=10.0,
            per_gb_zones=0.0,
            per_gb_regions=0.0,
            source="here",
        )
        log.record(priced, f"{node} costs 3.6 $/h", 0, 1)

    for node in ("n0", "n1"):
        join(node, 1)
    log.record(PLAN, "2 nodes for 2 stages", 0, 1)
    for step in range(STEPS):
        clock.now += 0.5
        if step % LOST_EVERY == LOST_EVERY - 1:
            lost = kinds.Lost(node="n1", stages="1", step=step, evidence="it broke", detect_ms=1.0)
            log.record(lost, "n1 is lost", step, step)
            log.record(PLAN, "n0 runs stage 1 for n1", step, step)
            join("n1", step)
            clock.now += 1.0
            log.record(kinds.Hot(node="n1", stage=1, exposure_ms=250.0), "stage 1 has one", step, step)
        commit = kinds.Committed(step=step, scale=0.5, loss=1.0 / (step + 1))
        log.record(commit, kinds.words_of(commit), step + 1, 1)
        if step % 500 == 0:
            await store._drained.wait()
    await store._drained.wait()


def test_a_successor_reads_the_history_of_a_long_run(server: EmbeddedRedis, capsys: pytest.CaptureFixture[str]) -> None:
    async def scenario() -> None:
        clock, store = Clock(), RedisStore(server.url, "r", "a", 3600.0)
        log = EventLog(store, await store.acquire(), clock)
        await log.read_before()
        await train(log, clock, store)
        figures, windows = log.ledger.figures(clock.now), log.windows
        # As after kill -9: no farewell, no last summary.
        successor = RedisStore(server.url, "r", "a", 3600.0)
        term = await successor.acquire()
        begun = time.perf_counter()
        after = EventLog(successor, term, clock)
        after.begin_after([kinds.Committed(step=STEPS - 1, scale=0.5, loss=1.0 / STEPS)])
        await after.read_before()
        seconds = time.perf_counter() - begun
        assert after.ledger.figures(clock.now) == figures
        assert after.windows == windows
        commits = [event for event in after.since(0) if event.kind == "commit"]
        assert [int(event.fields["step"]) for event in commits] == list(range(STEPS))
        assert commits == [event for event in log.since(0) if event.kind == "commit"]
        assert sum(event.kind == "lost" for event in after.since(0)) == STEPS // LOST_EVERY
        with Redis.from_url(server.url) as client:
            used = client.info("memory")["used_memory"]
        assert used < 64e6
        with capsys.disabled():
            print(f"\n{STEPS} commits, {STEPS // LOST_EVERY} lost: read in {seconds:.2f} s; Redis: {used / 1e6:.1f} MB")
        await successor.close()
        await store.close()

    asyncio.run(scenario())
