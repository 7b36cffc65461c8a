"""Redundant forwards in the bubbles of real processes: the same bits, and after a loss only backwards are run again."""

import re
from pathlib import Path

import pytest

from benchmarks.paced import job_file
from culm.cluster import LocalCluster
from culm.kills import Kill
from culm.plain_loop import PlainResult, run_plain
from culm.training import train
from pipeline.job import Job, load_job

ROOT = Path(__file__).parents[2]
STAGES, MICROBATCHES = 3, 6


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    settings = {"steps": 12, "stages": STAGES, "microbatches": MICROBATCHES, "redundancy": "eager"}
    return load_job(job_file(tmp_path_factory.mktemp("job"), forward=0.005, backward=0.01, **settings))


@pytest.fixture(scope="module")
def plain(job: Job) -> PlainResult:
    return run_plain(job)


@pytest.mark.parametrize("at", ["1B5", "1F3"])
def test_a_loss_under_eager_redundancy_changes_no_bit(at: str, job: Job, plain: PlainResult, tmp_path: Path) -> None:
    kills = [Kill("n1", 8, at)]
    with LocalCluster(job, ROOT, STAGES, kills, folder=tmp_path / "run", heartbeat_timeout=20.0) as cluster:
        outcome = train(cluster, lambda status, events, outcome: None)
    assert outcome.sha256 == plain.sha256
    assert [loss.hex() for loss in outcome.losses] == [loss.hex() for loss in plain.losses]
    (loss,) = outcome.losses_of_nodes
    assert loss["node"] == "n1"
    (said,) = re.findall(r"ends after (\d+) instructions", (tmp_path / "run" / "n2.log").read_text())
    assert int(said) > job.job.steps * 2 * MICROBATCHES, "n2 redoes nothing: what exceeds its own was run ahead"


def test_a_limit_on_what_is_kept_stops_redundant_forwards_and_says_so(tmp_path: Path) -> None:
    settings = {"steps": 6, "stages": 2, "microbatches": MICROBATCHES, "redundancy": "eager"}
    path = job_file(tmp_path, forward=0.005, backward=0.01, **settings)
    job = load_job(path, ["resilience.redundant_bytes=1"])
    with LocalCluster(job, ROOT, 2, folder=tmp_path / "run", heartbeat_timeout=20.0) as cluster:
        outcome = train(cluster, lambda status, events, outcome: None)
    assert outcome.sha256 == run_plain(job).sha256
    logs = "".join((tmp_path / "run" / f"n{i}.log").read_text() for i in range(2))
    assert "the rest of each step goes without" in logs
