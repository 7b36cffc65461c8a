"""Redundant forwards in the bubbles of real processes: the same bits, and an heir runs only backwards again."""

import re
from pathlib import Path

import pytest

from benchmarks.paced import job_file
from culm.local.cluster import LocalCluster
from culm.local.kills import Kill
from culm.local.training import train
from culm.oracle.plain_loop import PlainResult, run_plain
from culm.pipeline.job import Job, load_job
from culm.protos import coordinator_pb2 as pb
from culm.terminal.outcome import Outcome

ROOT = Path(__file__).parents[2]
STAGES, MICROBATCHES = 3, 6


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    settings = {"steps": 12, "stages": STAGES, "microbatches": MICROBATCHES, "redundancy": "eager"}
    return load_job(job_file(tmp_path_factory.mktemp("job"), forward=0.005, backward=0.01, **settings))


@pytest.fixture(scope="module")
def plain(job: Job) -> PlainResult:
    return run_plain(job)


@pytest.mark.parametrize("at", ["1B5", pytest.param("1F3", marks=pytest.mark.slow)])
def test_a_loss_under_eager_redundancy_changes_no_bit(at: str, job: Job, plain: PlainResult, tmp_path: Path) -> None:
    kills = [Kill("n1", 8, at)]
    with LocalCluster(job, ROOT, STAGES, kills, folder=tmp_path / "run", patience=20.0) as cluster:
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
    with LocalCluster(job, ROOT, 2, folder=tmp_path / "run", patience=20.0) as cluster:
        outcome = train(cluster, lambda status, events, outcome: None)
    assert outcome.sha256 == run_plain(job).sha256
    logs = "".join((tmp_path / "run" / f"n{i}.log").read_text() for i in range(2))
    assert "the rest of each step goes without" in logs


class Chosen(Exception):
    """Some steps have been computed by what was chosen; its argument: the losses of all steps."""


@pytest.mark.slow
def test_auto_fills_the_bubbles_once_nodes_are_lost(tmp_path: Path) -> None:
    """Forwards and bubbles are long against what load adds to a step: with one lost node in 100 s they still pay."""
    settings = {"stages": STAGES, "microbatches": 3, "redundancy": "auto"}
    job = load_job(job_file(tmp_path, steps=200, forward=0.1, backward=0.01, **settings))
    reasons: list[str] = []
    chosen_at: list[int] = []

    def note(status: pb.GetStatusResponse, events: list[pb.ListEventsResponse], outcome: Outcome) -> None:
        reasons.extend(event.text for event in events if event.kind == "plan")
        if not chosen_at and any("eager: with a lost node every" in reason for reason in reasons):
            chosen_at.append(status.step)
        assert status.step < status.steps, reasons
        if chosen_at and len(outcome.losses) > chosen_at[0] + 3:
            raise Chosen(outcome.losses)

    kills = [Kill("n1", 5, "1B2")]
    with (
        LocalCluster(job, ROOT, STAGES, kills, folder=tmp_path / "run", patience=20.0) as cluster,
        pytest.raises(Chosen) as chosen,
    ):
        train(cluster, note)
    (losses,) = chosen.value.args
    plain = run_plain(load_job(job_file(tmp_path, steps=len(losses), forward=0, backward=0, **settings)))
    assert [loss.hex() for loss in losses] == [loss.hex() for loss in plain.losses]
