"""Both stores keep what they are given; the one in Redis also keeps its order through an outage, and its leader."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from culm.coordinator.edges.redis_store import RedisStore
from culm.coordinator.edges.store import LostLease, MemoryStore, Store
from culm.local.redis_server import SOCKET, EmbeddedRedis

DEADLINE_SECONDS = 10.0
LEASE_SECONDS = 30.0


class Server:
    """A Redis server that can go away and come back at the same address, and a look inside it."""

    def __init__(self, folder: Path) -> None:
        self.process = EmbeddedRedis(folder, disabled=())  # tests tell it to refuse writes
        self.process.start()
        self.client: Redis = Redis.from_url(self.process.url, decode_responses=True)

    def texts(self, stream: str) -> list[str]:
        return [entry["text"] for entry in self.entries(stream)]

    def entries(self, stream: str) -> list[dict[str, str]]:
        found: Any = self.client.xrange(f"culm:r:{stream}")
        return [entry for _, entry in found]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    yield server
    server.client.close()
    server.process.stop()


def in_time(scenario: Callable[[], Coroutine[None, None, None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(DEADLINE_SECONDS):
            await scenario()

    asyncio.run(limited())


@asynccontextmanager
async def leading(server: Server, holder: str = "a") -> AsyncIterator[RedisStore]:
    store = RedisStore(server.process.url, "r", holder, LEASE_SECONDS)
    try:
        await store.acquire()
        yield store
    finally:
        await store.close()


async def written(store: RedisStore) -> None:
    """Until everything that was given so far is in Redis."""
    await store._drained.wait()


@pytest.fixture(params=["memory", "redis"])
def make_store(request: pytest.FixtureRequest) -> Callable[[], Store]:
    if request.param == "memory":
        return MemoryStore
    server: Server = request.getfixturevalue("server")
    return lambda: RedisStore(server.process.url, "r", "a", LEASE_SECONDS)


def test_a_new_run_has_no_state(make_store: Callable[[], Store]) -> None:
    async def scenario() -> None:
        store = make_store()
        assert await store.acquire() == 1
        assert await store.load() is None
        await store.close()

    in_time(scenario)


def test_the_last_state_saved_is_the_one_loaded(make_store: Callable[[], Store]) -> None:
    async def scenario() -> None:
        store = make_store()
        await store.acquire()
        store.save({"step": 1, "scale": (0.1).hex()})
        store.save({"step": 2, "scale": (0.3).hex(), "plan": None})
        await store.renew()
        while await store.load() != {"step": 2, "scale": (0.3).hex(), "plan": None}:
            await store.renew()
        await store.close()

    in_time(scenario)


def test_it_closes_at_whatever_instant_and_what_was_given_is_in_redis(server: Server) -> None:
    async def scenario() -> None:
        for turns in range(40):  # of the event loop: before the write is sent, while it is sent, after its answer
            async with leading(server) as store:
                store.append("events", {"text": f"{turns}"})
                for _ in range(turns):
                    await asyncio.sleep(0)
            assert server.texts("events")[-1] == f"{turns}"

    in_time(scenario)


def test_every_leader_has_a_higher_term(server: Server) -> None:
    async def scenario() -> None:
        for term in (1, 2, 3):
            async with leading(server, f"holder{term}") as store:
                assert store._term == term

    in_time(scenario)


def test_a_successor_loads_what_the_leader_before_saved(server: Server) -> None:
    async def scenario() -> None:
        async with leading(server, "a") as first:
            first.save({"step": 7})
            await written(first)
        async with leading(server, "b") as second:
            assert await second.load() == {"step": 7}

    in_time(scenario)


@pytest.mark.parametrize("text", ["{half a docu", "[1, 2]", "7"])
def test_a_state_that_is_no_document_is_loaded_as_an_empty_one(server: Server, text: str) -> None:
    async def scenario() -> None:
        server.client.set("culm:r:state", text)
        async with leading(server) as store:
            assert await store.load() == {}, "the leader finds nothing in it, and goes by its nodes and checkpoints"

    in_time(scenario)


def test_a_second_coordinator_waits_until_the_leader_gives_its_lease_back(server: Server) -> None:
    async def scenario() -> None:
        second = RedisStore(server.process.url, "r", "b", LEASE_SECONDS)
        async with leading(server, "a"):
            waiting = asyncio.create_task(second.acquire())
            while server.client.info("commandstats").get("cmdstat_eval", {"calls": 0})["calls"] < 2:
                await asyncio.wait({waiting}, timeout=0.01)
            assert not waiting.done()
        assert await waiting == 2
        await second.close()

    in_time(scenario)


def test_entries_come_in_order_with_their_fields(server: Server) -> None:
    async def scenario() -> None:
        async with leading(server) as store:
            store.append("events", {"kind": "joined", "text": "n0 joined", "node": "n0"})
            store.append("metrics", {"text": "step 0", "loss": 0.5})
            store.append("events", {"kind": "plan", "text": "two nodes"})
            await written(store)
            assert server.texts("events") == ["n0 joined", "two nodes"]
            assert server.entries("metrics") == [{"text": "step 0", "loss": "0.5"}]

    in_time(scenario)


def test_a_heartbeat_has_a_time_to_live(server: Server) -> None:
    async def scenario() -> None:
        async with leading(server) as store:
            store.heartbeat("n0", 20.0)
            await written(store)
            assert 0 < server.client.pttl("culm:r:heartbeat:n0") <= 20_000

    in_time(scenario)


def test_an_outage_delays_writes_and_keeps_their_order(server: Server) -> None:
    async def scenario() -> None:
        async with leading(server) as store:
            store.append("events", {"text": "before"})
            await written(store)
            server.process.stop()
            for step in range(3):
                store.save({"step": step})  # comes back although nobody answers
                store.append("events", {"text": f"step {step}"})
                await store.renew()  # an outage is no lost lease
            assert 4 <= len(store._queue) <= 5, "of the states only the newest waits, and one may be on its way"
            server.process.start()
            await written(store)
            # This server keeps nothing on disk: what was written before the outage is gone with it.
            assert server.texts("events") == ["step 0", "step 1", "step 2"]

    in_time(scenario)


def test_a_write_whose_answer_was_lost_is_done_once(server: Server) -> None:
    async def scenario() -> None:
        async with leading(server) as store:
            store.append("events", {"text": "first"})
            ((serial, sent),) = store._queue.items()
            await written(store)
            store._queue[serial] = sent  # what the writer finds when the connection broke before the answer
            store.append("events", {"text": "second"})
            await written(store)
            assert server.texts("events") == ["first", "second"]

    in_time(scenario)


def test_a_leader_that_was_replaced_writes_nothing_more_and_is_told(server: Server) -> None:
    async def scenario() -> None:
        async with leading(server, "a") as old:
            old.save({"step": 1})
            await written(old)
            server.client.delete("culm:r:leader")  # its lease ran out
            async with leading(server, "b") as new:
                new.save({"step": 2})
                await written(new)
                old.save({"step": 1})
                await written(old)
                with pytest.raises(LostLease, match="higher term"):
                    await old.renew()
                assert await new.load() == {"step": 2}

    in_time(scenario)


def test_a_lease_that_ran_out_while_nobody_took_it_goes_on(server: Server) -> None:
    async def scenario() -> None:
        async with leading(server, "a") as store:
            server.client.delete("culm:r:leader")
            store.save({"step": 1})
            await written(store)
            await store.renew()
            assert server.client.get("culm:r:leader") == "a:1"

    in_time(scenario)


def test_a_redis_that_lost_its_memory_learns_the_term_again(server: Server) -> None:
    async def scenario() -> None:
        async with leading(server, "a"):
            pass
        async with leading(server, "b") as second:
            server.process.stop()
            server.process.start()  # empty: this server keeps nothing on disk
            second.save({"step": 1})
            await written(second)
        async with leading(server, "c") as third:
            assert third._term == 3

    in_time(scenario)


def test_a_redis_that_refuses_writes_for_now_delays_them(server: Server) -> None:
    async def scenario() -> None:
        async with leading(server) as store:
            server.client.config_set("min-replicas-to-write", 1)
            store.save({"step": 1})
            store.append("events", {"text": "after"})
            await store.renew()
            while not store._away:
                store.save({"step": 2})
                await asyncio.sleep(0)
            server.client.config_set("min-replicas-to-write", 0)
            await written(store)
            assert server.texts("events") == ["after"]

    in_time(scenario)


def refuse(server: Server) -> None:
    server.client.config_set("min-replicas-to-write", 1)


def be_full(server: Server) -> None:
    server.client.config_set("maxmemory", 1)


def follow_a_server_that_is_gone(server: Server) -> None:
    server.client.config_set("replica-serve-stale-data", "no")  # it refuses reads, too
    server.client.replicaof("127.0.0.1", "1")


def take_writes(server: Server) -> None:
    server.client.config_set("min-replicas-to-write", 0)
    server.client.config_set("maxmemory", 0)
    server.client.replicaof("NO", "ONE")


@pytest.mark.parametrize("obstacle", [refuse, be_full, follow_a_server_that_is_gone])
def test_a_coordinator_that_begins_waits_for_a_redis_that_refuses(
    obstacle: Callable[[Server], None], server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        obstacle(server)
        store = RedisStore(server.process.url, "r", "a", LEASE_SECONDS)
        leading = asyncio.create_task(store.acquire())
        while "waiting for Redis, which refuses for now: " not in caplog.text and not leading.done():
            await asyncio.wait({leading}, timeout=0.01)
        assert not leading.done()
        take_writes(server)
        assert await leading == 1
        await store.close()

    with caplog.at_level(logging.WARNING, "culm.store"):
        in_time(scenario)
    (line,) = caplog.messages
    assert line.endswith("; see whether it has memory and disk left, and is no replica")


@pytest.mark.parametrize("key", ["term", "leader", "state"])
def test_a_key_of_another_kind_ends_a_coordinator_at_once(key: str, server: Server) -> None:
    async def scenario() -> None:
        server.client.rpush(f"culm:r:{key}", "no text")
        store = RedisStore(server.process.url, "r", "a", LEASE_SECONDS)
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            await store.acquire()
        await store.close()

    in_time(scenario)


@pytest.mark.parametrize("key", ["summary", "events"])
def test_a_leader_waits_for_no_history_under_a_key_of_another_kind(key: str, server: Server) -> None:
    async def scenario() -> None:
        server.client.sadd(f"culm:r:{key}", "no text")
        store = RedisStore(server.process.url, "r", "a", LEASE_SECONDS)
        await store.acquire()
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            await (store.get(key) if key == "summary" else store.read(key))
        await store.close()

    in_time(scenario)


def test_a_leader_whose_server_has_become_a_replica_writes_to_its_successor(server: Server, tmp_path: Path) -> None:
    """The address leads to another server, and the connection to the old one stays open."""
    successor, address = Server(tmp_path / "successor"), tmp_path / "address"
    for each in (server, successor):
        each.client.config_set("requirepass", "")
    address.symlink_to(tmp_path / SOCKET)

    async def scenario() -> None:
        store = RedisStore(f"unix://{address}", "r", "a", LEASE_SECONDS)
        assert await store.acquire() == 1
        address.unlink()
        address.symlink_to(tmp_path / "successor" / SOCKET)
        server.client.replicaof("127.0.0.1", "1")
        store.append("events", {"text": "after"})
        await written(store)
        assert (server.texts("events"), successor.texts("events")) == ([], ["after"])
        await store.close()

    try:
        in_time(scenario)
    finally:
        successor.client.close()
        successor.process.stop()


def test_runs_do_not_meet(server: Server) -> None:
    async def scenario() -> None:
        other = RedisStore(server.process.url, "other", "a", LEASE_SECONDS)
        async with leading(server) as store:
            assert await other.acquire() == 1
            store.save({"step": 1})
            await written(store)
            assert await other.load() is None
        await other.close()

    in_time(scenario)


def test_writes_that_wait_go_together_and_those_before_a_refused_one_are_done_once(server: Server) -> None:
    async def scenario() -> None:
        async with leading(server) as store:
            server.client.set("culm:r:metrics", "no stream: refuses entries")
            for stream, text in (("events", "first"), ("metrics", "refused"), ("events", "second")):
                store.append(stream, {"text": text})
            while not store._away:
                await asyncio.sleep(0)
            assert server.texts("events") == ["first"]
            server.client.delete("culm:r:metrics")
            await written(store)
            assert server.texts("events") == ["first", "second"]
            assert server.texts("metrics") == ["refused"]

    in_time(scenario)
