"""Real processes train on a graph: neither their number nor a lost one changes a bit."""

from pathlib import Path

import pytest

from culm.local.cluster import LocalCluster
from culm.local.kills import Kill
from culm.local.training import train
from culm.oracle.plain_loop import PlainResult, run_plain
from culm.pipeline.job import Job, load_job
from culm.terminal.outcome import Outcome

EXAMPLES = Path(__file__).parents[2] / "examples"
PATIENCE = 20.0  # on a busy machine a node may be slow to speak: streams tell of a kill, not silence
KINDS = {"gcn": "{ sizes = [16, 8, 4], dropout = 0.2 }", "gat": "{ sizes = [16, 8, 4], heads = 2, dropout = 0.2 }"}


def job_of(layers: str) -> Job:
    changes = ["job.steps=6", "graph.args.vertices=120", "graph.chunks=6", 'graph.partitioner="hash"']
    return load_job(
        EXAMPLES / "blocks.toml", [*changes, f"model.layers=culm.graphs:{layers}", f"model.args={KINDS[layers]}"]
    )


@pytest.fixture(scope="module")
def job() -> Job:
    return job_of("gcn")


@pytest.fixture(scope="module")
def plain(job: Job) -> PlainResult:
    return run_plain(job)


def outcome_of(job: Job, servers: int, folder: Path, kills: list[Kill]) -> Outcome:
    with LocalCluster(job, EXAMPLES, servers, kills, "", False, folder, PATIENCE) as cluster:
        return train(cluster, lambda status, events, outcome: None)


def check(outcome: Outcome, plain: PlainResult) -> None:
    assert [x.hex() for x in outcome.losses] == [x.hex() for x in plain.losses]
    assert outcome.sha256 == plain.sha256


@pytest.mark.parametrize("servers", [1, 2, 3])
def test_the_number_of_servers_changes_no_bit(servers: int, job: Job, plain: PlainResult, tmp_path: Path) -> None:
    check(outcome_of(job, servers, tmp_path / "run", []), plain)


def test_a_lost_server_changes_no_bit(job: Job, plain: PlainResult, tmp_path: Path) -> None:
    outcome = outcome_of(job, 3, tmp_path / "run", [Kill("n1", 3, "backward")])
    check(outcome, plain)
    assert {loss["node"] for loss in outcome.losses_of_nodes} == {"n1"}, "each of its duties is told"


def test_attention_on_two_servers_of_which_one_is_lost(tmp_path: Path) -> None:
    job = job_of("gat")
    outcome = outcome_of(job, 2, tmp_path / "run", [Kill("n0", 3, "ship")])
    check(outcome, run_plain(job))
    assert {loss["node"] for loss in outcome.losses_of_nodes} == {"n0"}
