"""A run whose numbers are tracked: one value for each name and step, though the coordinator dies on the way."""

import asyncio
import os
import signal
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from culm.coordinator.edges import tracking
from culm.coordinator.edges.event_log import EventLog
from culm.coordinator.edges.tracking import Tracking, refuse_missing
from culm.local.cluster import LocalCluster
from culm.local.training import train
from culm.pipeline.errors import JobError
from culm.pipeline.job import Job, load_job, with_values
from culm.protos import coordinator_pb2 as pb
from culm.protos.coordinator_pb2_grpc import CoordinatorStub
from culm.terminal.client import connect
from culm.trackers.tensorboard import events_in

EXAMPLES = Path(__file__).parents[2] / "examples"
STEPS = 120


def rates_of(job: Job) -> list[float]:
    """As torch's scheduler gives them in one process."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=job.train.optimizer_args["lr"])
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    rates = []
    for _ in range(STEPS):
        rates.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        scheduler.step()
    return rates


class Killer:
    """Kills the coordinator at two moments of the run."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self.left = [30, 70]

    def __call__(self, stub: CoordinatorStub, status: pb.GetStatusResponse, deaths: list[tuple[str, float]]) -> None:
        if self.left and status.step >= self.left[0]:
            self.left.pop(0)
            os.kill(self._cluster.pids()["coordinator"], signal.SIGKILL)


def test_each_number_is_there_once_whoever_has_written_it(tmp_path: Path) -> None:
    job = load_job(EXAMPLES / "digits_mlp.toml", [f"job.steps={STEPS}"])
    asked = {"dataset": job.data.dataset, "args": {"samples": 64, "seed": 1}, "every": 25, "samples": 64}
    values = {"track.tensorboard": str(tmp_path / "board"), **{f"evaluate.{k}": v for k, v in asked.items()}}
    values |= {"train.schedule": "torch.optim.lr_scheduler:CosineAnnealingLR", "train.schedule_args": {"T_max": STEPS}}
    with LocalCluster(with_values(job, values), EXAMPLES, 3, folder=tmp_path / "run", patience=20.0) as cluster:
        killer = Killer(cluster)
        outcome = train(cluster, lambda status, events, outcome: None, killer)
    assert not killer.left
    (folder,) = (tmp_path / "board").iterdir()
    found: dict[str, dict[int, float]] = {}
    often: Counter[tuple[str, int]] = Counter()
    for event in events_in(folder):
        for value in event.summary.value:
            found.setdefault(value.tag, {})[event.step] = value.simple_value
            often[value.tag, event.step] += 1
    assert max(often.values()) == 1
    assert found["train/loss"] == {i + 1: float(np.float32(loss)) for i, loss in enumerate(outcome.losses)}
    assert found["evaluate/loss"] == {s: float(np.float32(x["loss"])) for s, x in outcome.evaluations.items()}
    assert list(found["evaluate/loss"]) == [25, 50, 75, 100, STEPS]
    assert found["train/learning_rate"] == {i + 1: float(np.float32(rate)) for i, rate in enumerate(rates_of(job))}


def test_a_tracker_that_fails_holds_up_nothing(tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    values = {"job.steps": 6, "track.tensorboard": str(tmp_path / "taken" / "board")}
    job = with_values(load_job(EXAMPLES / "digits_mlp.toml"), values)
    with LocalCluster(job, EXAMPLES, 3, folder=tmp_path / "run", patience=20.0) as cluster:
        outcome = train(cluster, lambda status, events, outcome: None)
        channel, stub = connect(cluster.address)
        with channel:
            told = next(e for e in stub.ListEvents(pb.ListEventsRequest(follow=True)) if e.kind == "untracked")
    assert told.fields["tracker"] == "tensorboard"
    assert "NotADirectoryError" in told.fields["why"]
    assert len(outcome.losses) == 6
    assert "tensorboard has not all numbers of run" in next((tmp_path / "run").glob("*coordinator*.log")).read_text()


def test_a_log_that_cannot_be_read_to_a_tracker_is_told_like_its_own_failure(tmp_path: Path) -> None:
    job = with_values(load_job(EXAMPLES / "digits_mlp.toml"), {"track.tensorboard": str(tmp_path / "board")})

    def broken() -> EventLog:
        raise IndexError("array index out of range")

    async def scenario() -> None:
        said: asyncio.Future[tuple[str, str]] = asyncio.get_running_loop().create_future()
        tracking = Tracking(job, "r", broken, lambda *words: said.set_result(words))
        following = asyncio.create_task(tracking.follow())
        async with asyncio.timeout(60.0):
            tracker, why = await said
        following.cancel()
        await tracking.close()
        assert (tracker, why) == ("tensorboard", "its events cannot be read (IndexError: array index out of range)")

    asyncio.run(scenario())


def test_one_that_is_not_installed_is_named_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    job = with_values(load_job(EXAMPLES / "digits_mlp.toml"), {"track.tensorboard": "board"})
    refuse_missing(job)
    monkeypatch.setattr(tracking, "find_spec", lambda name: None)
    with pytest.raises(
        JobError, match=r"track\.tensorboard: tensorboard is not installed .*pip install 'culm\[tensorboard\]'"
    ):
        refuse_missing(job)
