"""Real processes that evaluate, and die at it: the same numbers, and the same weights."""

from pathlib import Path

import pytest

from culm.local.cluster import LocalCluster
from culm.local.kills import Kill
from culm.local.training import train
from culm.oracle.plain_loop import PlainResult, run_plain
from culm.oracle.verification import compare
from culm.pipeline.checkpoints.manifest import find_checkpoints
from culm.pipeline.job import Job, load_job, with_values

EXAMPLES = Path(__file__).parents[2] / "examples"
STEPS = 8


@pytest.fixture(scope="module")
def job() -> Job:
    """Two pipelines of three stages with BatchNorm; the last microbatch of an evaluation is small."""
    job = load_job(EXAMPLES / "digits_mlp.toml", [f"job.steps={STEPS}", "pipeline.pipelines=2"])
    asked = {"dataset": job.data.dataset, "args": {"samples": 100, "seed": 1}, "every": 3, "samples": 90}
    asked["metrics"] = {"accuracy": "culm.metrics:accuracy"}
    return with_values(job, {f"evaluate.{key}": value for key, value in asked.items()})


@pytest.fixture(scope="module")
def plain(job: Job) -> PlainResult:
    return run_plain(job)


@pytest.mark.parametrize(
    ("nodes", "kills"),
    [
        (3, [Kill("n1", 3, "1E1"), Kill("n2", 8, "2E0")]),  # one in training, one in the closing step
        (6, [Kill("n0", 6, "send:0E1"), Kill("n4", 8, "forward")]),
    ],
)
def test_what_is_evaluated_does_not_depend_on_the_machines(
    nodes: int, kills: list[Kill], job: Job, plain: PlainResult, tmp_path: Path
) -> None:
    assert list(plain.evaluations) == [3, 6, 8]
    url = (tmp_path / "kept").as_uri()
    saved = with_values(job, {"checkpoint.url": url, "checkpoint.every": 4})
    with LocalCluster(saved, EXAMPLES, nodes + 1, kills, "", False, tmp_path / "run", 20.0) as cluster:
        outcome = train(cluster, lambda status, events, outcome: None)
    assert compare("killed", plain, outcome) is None
    assert {lost["node"] for lost in outcome.losses_of_nodes} == {kill.node for kill in kills}
    # That of step 4 gives way to the last one where steps are faster than the storage.
    assert [found.step for found in find_checkpoints(url) if found.manifest is not None] in ([STEPS, 4], [STEPS])


def test_a_killed_run_ends_early_where_the_plain_loop_does_and_goes_on_with_more_patience(
    job: Job, tmp_path: Path
) -> None:
    """A node dies at the evaluation that decides. The checkpoint tells the next run what was best before it."""
    url = (tmp_path / "kept").as_uri()
    asked = {"job.steps": 20, "train.optimizer_args": {"lr": 1.0, "momentum": 0.9}, "evaluate.every": 1}
    asked |= {"evaluate.best": "accuracy", "evaluate.best_is": "most", "evaluate.patience": 2}
    asked |= {"checkpoint.url": url, "checkpoint.every": 100}  # that of the last step alone
    job = with_values(job, asked)
    plain, kill = run_plain(job), Kill("n1", 8, "1E1")
    with LocalCluster(job, EXAMPLES, 4, [kill], "", False, tmp_path / "run", 20.0) as cluster:
        outcome = train(cluster, lambda status, events, outcome: None)
    assert compare("killed", plain, outcome) is None
    assert len(outcome.losses) == len(plain.losses) == 8
    assert outcome.stopped_early == "stopped early at step 8: no better accuracy than 0.5889 of step 6 in 2 evaluations"
    assert [lost["node"] for lost in outcome.losses_of_nodes] == ["n1"]
    assert [found.step for found in find_checkpoints(url) if found.manifest is not None] == [8]

    patient = with_values(job, {"evaluate.patience": 3})
    plain = run_plain(patient)
    with LocalCluster(patient, EXAMPLES, 3, [], "", False, tmp_path / "again", 20.0, resume=url) as cluster:
        outcome = train(cluster, lambda status, events, outcome: None)
    assert (outcome.sha256, outcome.losses) == (plain.sha256, plain.losses[8:])
    assert outcome.stopped_early == "stopped early at step 9: no better accuracy than 0.5889 of step 6 in 3 evaluations"
