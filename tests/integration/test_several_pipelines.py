"""Real processes, several pipelines: a stage's owner runs it in all of them, and its heir takes all of them over."""

from pathlib import Path

import pytest

from culm.local.cluster import LocalCluster
from culm.local.kills import Kill
from culm.local.training import train
from culm.oracle.plain_loop import PlainResult, run_plain
from culm.pipeline.job import Job, load_job
from culm.terminal.outcome import Outcome

EXAMPLES = Path(__file__).parents[2] / "examples"
STAGES = 3
PATIENCE = 20.0  # on a busy machine a node may be slow to speak: streams tell of a kill, not silence


@pytest.fixture(scope="module")
def job() -> Job:
    """With BatchNorm, whose buffers every pipeline has of its own (rule 21), and a clipped gradient."""
    changes = ["job.steps=10", f"pipeline.stages={STAGES}", "pipeline.microbatches=3", "pipeline.pipelines=3"]
    return load_job(EXAMPLES / "digits_mlp.toml", [*changes, "data.microbatch=8", "train.clip_norm=0.5"])


@pytest.fixture(scope="module")
def plain(job: Job) -> PlainResult:
    return run_plain(job)


def outcome_of(job: Job, folder: Path, kills: list[Kill]) -> Outcome:
    with LocalCluster(job, EXAMPLES, STAGES, kills, "", False, folder, PATIENCE) as cluster:
        return train(cluster, lambda status, events, outcome: None)


PLACES = [(1, "p1/1B1"), (2, "p2/2F0"), (0, "p2/0B2"), (1, "ship"), (0, "receive")]


@pytest.mark.parametrize(("stage", "place"), PLACES)
def test_a_kill_in_any_pipeline_changes_no_bit(
    stage: int, place: str, job: Job, plain: PlainResult, tmp_path: Path
) -> None:
    outcome = outcome_of(job, tmp_path / "run", [Kill(f"n{stage}", 5, place)])
    assert [x.hex() for x in outcome.losses] == [x.hex() for x in plain.losses]
    assert outcome.sha256 == plain.sha256
    assert [(loss["node"], loss["stage"]) for loss in outcome.losses_of_nodes] == [(f"n{stage}", stage)]


@pytest.mark.parametrize("changes", [{"redundancy": "eager"}, {"ship_every": 1}], ids=str)
def test_forwards_ahead_and_shipped_gradients_are_of_each_pipeline(
    changes: dict[str, object], job: Job, plain: PlainResult, tmp_path: Path
) -> None:
    job = job.model_copy(update={"resilience": job.resilience.model_copy(update=changes)})
    outcome = outcome_of(job, tmp_path / "run", [Kill("n1", 5, "p1/1B1")])
    assert outcome.sha256 == plain.sha256
