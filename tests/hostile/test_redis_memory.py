"""Redis loses its memory while a run trains: rule 15. Real processes, a real server, the same bits."""

import asyncio
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from culm.coordinator.edges.redis_store import RedisStore
from culm.local.cluster import LocalCluster
from culm.local.redis_server import EmbeddedRedis
from culm.local.training import train
from culm.oracle.plain_loop import run_plain
from culm.pipeline.job import load_job
from culm.pipeline.terms import TERM_LIMIT
from culm.protos import coordinator_pb2 as pb
from culm.protos.coordinator_pb2_grpc import CoordinatorStub

EXAMPLES = Path(__file__).parents[2] / "examples"
STEPS = 240


class Amnesia:
    """Keeps a copy of Redis' files early, has a second coordinator lead, and then kills both and takes memory away."""

    def __init__(self, cluster: LocalCluster, folder: Path, older: bool) -> None:
        self._cluster = cluster
        self._memory = cluster.folder / "redis"
        self._copy = folder / "copy"
        self._older = older
        self.terms: list[int] = []
        self._todo = iter([(40, self._keep_copy), (80, self._kill_coordinator), (140, self._lose_memory)])
        self._next = next(self._todo, None)

    def __call__(self, stub: CoordinatorStub, status: pb.GetStatusResponse, deaths: list[tuple[str, float]]) -> None:
        if status.term not in self.terms:
            self.terms.append(status.term)
        if self._next is not None and status.step >= self._next[0]:
            self._next[1]()
            self._next = next(self._todo, None)

    def _files(self) -> list[Path]:
        return [path for path in self._memory.iterdir() if path.name.startswith("appendonly")]

    def _keep_copy(self) -> None:
        self._copy.mkdir()
        for path in self._files():
            (shutil.copytree if path.is_dir() else shutil.copy)(path, self._copy / path.name)

    def _kill_coordinator(self) -> None:
        os.kill(self._cluster.pids()["coordinator"], signal.SIGKILL)

    def _lose_memory(self) -> None:
        self._kill_coordinator()
        self.lose()

    def lose(self) -> None:
        redis = self._cluster._redis
        assert redis is not None
        redis.stop()
        for path in self._files():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        for path in self._copy.iterdir() if self._older else ():
            (shutil.copytree if path.is_dir() else shutil.copy)(path, self._memory / path.name)


@pytest.mark.parametrize(
    "older",
    [pytest.param(False, id="empty", marks=pytest.mark.slow), pytest.param(True, id="older than the last coordinator")],
)
def test_a_coordinator_that_starts_over_a_redis_without_memory_loses_no_step(tmp_path: Path, older: bool) -> None:
    job = load_job(EXAMPLES / "digits_mlp.toml", [f"job.steps={STEPS}", "pipeline.stages=3"])
    events: list[pb.ListEventsResponse] = []
    with LocalCluster(job, EXAMPLES, 3, folder=tmp_path / "run", patience=20.0) as cluster:
        amnesia = Amnesia(cluster, tmp_path, older)
        outcome = train(cluster, lambda status, new, outcome: events.extend(new), amnesia)
        assert cluster.deaths == []
    assert outcome.sha256 == run_plain(job).sha256
    assert max(amnesia.terms) > 2, "a term above both of the coordinators before"
    kinds = {event.kind for event in events}
    assert not kinds & {"rollback", "lost", "dismissed"}
    sequences = [event.sequence for event in events]
    assert sequences == sorted(set(sequences)), "no event's number is used twice"


class OtherVersion:
    """A coordinator of another version follows, which cannot read what this one has persisted."""

    def __init__(self, cluster: LocalCluster, state: str) -> None:
        self._cluster = cluster
        self._state = state
        self.done = False

    def __call__(self, stub: CoordinatorStub, status: pb.GetStatusResponse, deaths: list[tuple[str, float]]) -> None:
        if self.done or status.step < 40:
            return
        self.done = True
        redis, coordinator = self._cluster._redis, self._cluster.pids()["coordinator"]
        assert redis is not None
        os.kill(coordinator, signal.SIGSTOP)  # it writes no more
        with Redis.from_url(redis.url) as client:
            (key,) = client.keys("*:state")
            client.set(key, self._state)
        os.kill(coordinator, signal.SIGKILL)


@pytest.mark.parametrize(
    "state",
    [
        pytest.param("{}", marks=pytest.mark.slow),
        pytest.param('{"plan": {"term": 1}, "job": ""}', marks=pytest.mark.slow),
        '{"plan": "AAAA", "job": ""}',
    ],
)
def test_a_coordinator_that_cannot_read_what_was_persisted_learns_it_from_the_nodes(tmp_path: Path, state: str) -> None:
    job = load_job(EXAMPLES / "digits_mlp.toml", [f"job.steps={STEPS}", "pipeline.stages=2"])
    events: list[pb.ListEventsResponse] = []
    with LocalCluster(job, EXAMPLES, 2, folder=tmp_path / "run", patience=20.0) as cluster:
        other = OtherVersion(cluster, state)
        outcome = train(cluster, lambda status, new, outcome: events.extend(new), other)
        assert cluster.deaths == []
    assert other.done
    assert outcome.sha256 == run_plain(job).sha256
    assert not {event.kind for event in events} & {"rollback", "lost", "dismissed"}


class Fire:
    """Once a checkpoint is whole, every process of the cluster is killed at once, and Redis loses its memory."""

    def __init__(self, cluster: LocalCluster, folder: Path) -> None:
        self._cluster = cluster
        self._amnesia = Amnesia(cluster, folder, older=False)
        self.saved = 0
        self.after: list[int] = []  # the steps at which the run was seen since

    def __call__(self, stub: CoordinatorStub, status: pb.GetStatusResponse, deaths: list[tuple[str, float]]) -> None:
        if self.saved:
            self.after.append(status.step)
        elif status.checkpoint >= 40:
            self.saved = status.checkpoint
            pids = self._cluster.pids()
            for name in ["coordinator", *self._cluster.names]:
                os.kill(pids.pop(name), signal.SIGKILL)
            self._amnesia.lose()


def test_a_run_of_which_only_checkpoints_are_left_goes_on_from_the_newest(tmp_path: Path) -> None:
    overrides = [f"job.steps={STEPS}", "pipeline.stages=2", f"checkpoint.url={tmp_path}/saved", "checkpoint.every=20"]
    job = load_job(EXAMPLES / "digits_mlp.toml", overrides)
    with LocalCluster(job, EXAMPLES, 2, folder=tmp_path / "run", patience=3.0) as cluster:
        fire = Fire(cluster, tmp_path)
        outcome = train(cluster, lambda status, new, outcome: None, fire)
    assert fire.saved
    assert min(fire.after) >= fire.saved
    assert outcome.sha256 == run_plain(job).sha256


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis(tmp_path / "redis") as server:
        yield server


@pytest.mark.parametrize(
    "state", [b"\xff\xfe", b"[" * 100_000, b'{"term": true}', b'{"term": ' + b"9" * 5000 + b"}", b"[]"]
)
def test_a_state_that_is_none_keeps_no_coordinator_from_leading(server: EmbeddedRedis, state: bytes) -> None:
    """One that was no text, or nested deeply, ended each coordinator; a term of true had it wait for Redis for ever."""

    async def scenario() -> int:
        with Redis.from_url(server.url) as client:
            client.set("culm:r:state", state)
            client.set("culm:r:term", b"\xff")
            store = RedisStore(server.url, "r", "a", 30.0)
            led = await asyncio.wait_for(store.acquire(), 30.0)
            await store.load()
            await store.close()
        return led

    assert asyncio.run(scenario()) == 1


def test_an_entry_that_is_no_text_hides_no_other(server: EmbeddedRedis) -> None:
    async def scenario() -> list[dict[str, str]]:
        with Redis.from_url(server.url) as client:
            client.xadd("culm:r:events", {b"kind": b"\xff"})
            client.xadd("culm:r:events", {b"kind": b"joined"})
            store = RedisStore(server.url, "r", "a", 30.0)
            found = await store.read("events")
            await store.close()
        return [entry for _, entry in found]

    assert [entry["kind"] for entry in asyncio.run(scenario())] == ["\ufffd", "joined"]


@pytest.mark.parametrize("term", ["9223372036854775807", str(TERM_LIMIT), "-1", "1e300", "nan", "a word", "2.5"])
def test_a_term_that_is_none_keeps_no_coordinator_from_leading(
    server: EmbeddedRedis, term: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> int:
        with Redis.from_url(server.url, decode_responses=True) as client:
            client.set("culm:r:term", term)
            client.set("culm:r:state", '{"term": 7}')
            store = RedisStore(server.url, "r", "a", 30.0)
            led = await store.acquire()
            assert client.get("culm:r:term") == str(led)
            await store.close()
        return led

    assert asyncio.run(scenario()) == 8, "above the term that the state tells of"
    assert "is no term" in caplog.text


def test_a_leader_whose_term_is_forgotten_takes_the_lease_back_from_an_older_memory(server: EmbeddedRedis) -> None:
    async def scenario() -> None:
        with Redis.from_url(server.url, decode_responses=True) as client:
            store = RedisStore(server.url, "r", "a", 30.0)
            assert await store.acquire(above=4) == 5
            client.set("culm:r:leader", "another:3")  # as in a dump of long ago
            client.set("culm:r:term", "3")
            store.save({"term": 5})
            await store._drained.wait()
            await store.renew()
            assert (client.get("culm:r:leader"), client.get("culm:r:term")) == ("a:5", "5")
            await store.close()

    asyncio.run(scenario())
