"""Tensor workers may vanish, hang or come at any moment: the weights are the plain loop's."""

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.graph_paced import job as paced_job
from culm.local.cluster import LocalCluster
from culm.local.training import train
from culm.oracle.plain_loop import run_plain
from culm.pipeline.job import Job, job_of
from culm.pipeline.rpc.tls import open_channel
from culm.protos import coordinator_pb2 as pb
from culm.protos.coordinator_pb2_grpc import CoordinatorStub
from culm.terminal.outcome import Outcome

ROOT = Path(__file__).parents[2]
PATIENCE = 300.0  # seconds that a run is paused, until what never comes fails the test
SOAK = bool(os.environ.get("CULM_SOAK"))
Strikes = Callable[[LocalCluster, pb.GetStatusResponse], None]


def job(
    steps: int, workers: int, model: str = "culm.graphs:gcn", vertices: int = 400, staleness: int = 0, servers: int = 2
) -> Job:
    sizes = {"sizes": [8, 16, 4]} | ({"dropout": 0.3} if model.endswith("gcn") else {"heads": 2})
    return job_of(
        {
            "job": {"name": "graph", "steps": steps},
            "graph": {
                "data": "culm.graphs.datasets:blocks",
                "args": {"vertices": vertices, "features": 8},
                "layers": 2,
                "chunks": 4,
                "partitioner": "hash",
                "servers": servers,
                "workers": workers,
                "staleness": staleness,
            },
            "model": {"layers": model, "args": sizes},
            "train": {
                "loss": "culm.graphs:cross_entropy",
                "metrics": {"accuracy": "culm.graphs:test_accuracy"},
                "optimizer": "torch.optim:AdamW",
                "optimizer_args": {"lr": 0.01},
            },
        },
        "the test's job",
    )


def trained(asked: Job, folder: Path, strikes: Strikes = lambda cluster, status: None) -> Outcome:
    assert asked.graph is not None
    with LocalCluster(asked, ROOT, asked.graph.servers, folder=folder, patience=20.0) as cluster:

        def note(status: pb.GetStatusResponse, events: list[pb.ListEventsResponse], outcome: object) -> None:
            strikes(cluster, status)

        return train(cluster, note)


class OnceWorkersAreThere:
    """Pauses the run at its first steps until each worker works for each server."""

    def __init__(self, folder: Path, links: int) -> None:
        self._folder, self._links = folder, links
        self._state = "before"
        self.resumed = False
        self._paused = 0.0

    def __call__(self, cluster: LocalCluster, status: pb.GetStatusResponse) -> None:
        with open_channel(cluster.address, "coordinator") as channel:
            stub = CoordinatorStub(channel)
            if self._state == "before" and status.step >= 1:
                stub.Pause(pb.PauseRequest())
                self._state, self._paused = "paused", time.monotonic()
            elif self._state == "paused" and self._linked() >= self._links:
                stub.Resume(pb.ResumeRequest())
                self._state, self.resumed = "resumed", True
            elif self._state == "paused":
                assert time.monotonic() - self._paused < PATIENCE, f"fewer than {self._links} workers are there"

    def _linked(self) -> int:
        return sum(log.read_text().count("offers itself") for log in self._folder.glob("n*.log"))


def tasks_done(folder: Path) -> int:
    """By workers that ended in order, as they say in their last line."""
    ends = [log.read_text().partition("ends after ")[2] for log in folder.glob("w*.log")]
    return sum(int(end.split()[0]) for end in ends if end)


@pytest.mark.parametrize(
    ("model", "staleness"),
    [("culm.graphs:gcn", 1), pytest.param("culm.graphs:gat", 0, marks=pytest.mark.slow)],
)
def test_workers_change_no_bit(tmp_path: Path, model: str, staleness: int) -> None:
    asked = job(steps=120, workers=2, model=model, staleness=staleness)
    outcome = trained(asked, tmp_path / "run", OnceWorkersAreThere(tmp_path / "run", 4))
    assert outcome.sha256 == run_plain(asked).sha256
    assert tasks_done(tmp_path / "run") > 0, "workers had something to do"


@pytest.mark.slow
@pytest.mark.parametrize(("servers", "workers"), [(1, 1), (1, 16), (2, 4), (4, 2), (4, 16)])
def test_however_many_servers_and_workers_there_are_no_bit_changes(tmp_path: Path, servers: int, workers: int) -> None:
    asked = job(steps=120, workers=workers, servers=servers)
    once_there = OnceWorkersAreThere(tmp_path / "run", servers * workers)
    outcome = trained(asked, tmp_path / "run", once_there)
    assert outcome.sha256 == run_plain(asked).sha256
    assert once_there.resumed, "the run was over before all workers were there"
    assert tasks_done(tmp_path / "run") > 0, "workers had something to do"


def test_workers_come_and_go_as_they_are_wanted(tmp_path: Path) -> None:
    asked, seen = job(steps=120, workers=1), set[int]()
    once_there = OnceWorkersAreThere(tmp_path / "run", 6)

    def strike(cluster: LocalCluster, status: pb.GetStatusResponse) -> None:
        workers = [name for name in cluster.pids() if name.startswith("w")]
        seen.add(len(workers))
        cluster.want_workers(1 if once_there.resumed else 3)
        once_there(cluster, status)

    outcome = trained(asked, tmp_path / "run", strike)
    assert outcome.sha256 == run_plain(asked).sha256
    assert {1, 3} <= seen, "two more came, and went again"


@pytest.mark.slow
def test_the_run_finds_out_how_many_workers_it_wants(tmp_path: Path) -> None:
    """Each task holds a worker for 20 ms without its processor, so several of them are worth having."""
    fixed = paced_job(chunks=8, workers=0, staleness=0, steps=120, vertices=400)
    assert fixed.graph is not None
    auto = fixed.model_copy(update={"graph": fixed.graph.model_copy(update={"workers": "auto"})})
    wanted = [0]

    def strike(cluster: LocalCluster, status: pb.GetStatusResponse) -> None:
        wanted.append(status.workers_wanted)

    outcome = trained(auto, tmp_path / "run", strike)
    assert outcome.sha256 == run_plain(fixed).sha256
    assert max(wanted) >= 2


def test_workers_that_are_killed_or_hang_change_no_bit(tmp_path: Path) -> None:
    """Each is killed, again and again, and one of them hangs in between."""
    kills = 100 if SOAK else 3
    asked = job(steps=3000 if SOAK else 120, workers=3, vertices=2000 if SOAK else 400)
    draw, struck, frozen = random.Random(0), [0], list[int]()

    def strike(cluster: LocalCluster, status: pb.GetStatusResponse) -> None:
        pids = {name: pid for name, pid in cluster.pids().items() if name.startswith("w")}
        if not pids or struck[0] >= kills:
            return
        name = draw.choice(sorted(pids))
        if struck[0] == kills // 2 and not frozen:
            frozen.append(pids[name])
            os.kill(pids[name], signal.SIGSTOP)
        elif pids[name] not in frozen:
            cluster.kill(name)
            struck[0] += 1

    outcome = trained(asked, tmp_path / "run", strike)
    assert outcome.sha256 == run_plain(asked).sha256
    assert struck[0] == kills, "the run was over before all were killed"
    assert frozen
