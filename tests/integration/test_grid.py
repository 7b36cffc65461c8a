"""Real processes on a grid: several owners of a stage, each for some pipelines; peers take over from one another."""

import json
from pathlib import Path

import pytest

from culm.local.cluster import LocalCluster
from culm.local.kills import Kill
from culm.local.training import train
from culm.oracle.plain_loop import PlainResult, run_plain
from culm.pipeline.buckets import count
from culm.pipeline.job import Job, load_job
from culm.protos import coordinator_pb2 as pb
from culm.terminal.outcome import Outcome

EXAMPLES = Path(__file__).parents[2] / "examples"
STAGES, PIPELINES = 3, 2
PATIENCE = 20.0  # on a busy machine a node may be slow to speak: streams tell of a kill, not silence


@pytest.fixture(scope="module")
def job() -> Job:
    """With BatchNorm, whose buffers every pipeline has of its own (rule 21), and a clipped gradient."""
    changes = [f"pipeline.stages={STAGES}", f"pipeline.pipelines={PIPELINES}", "pipeline.microbatches=3"]
    return load_job(
        EXAMPLES / "digits_mlp.toml", [*changes, "job.steps=10", "data.microbatch=8", "train.clip_norm=0.5"]
    )


@pytest.fixture(scope="module")
def plain(job: Job) -> PlainResult:
    return run_plain(job)


def outcome_of(job: Job, nodes: int, folder: Path, kills: list[Kill]) -> Outcome:
    with LocalCluster(job, EXAMPLES, nodes, kills, "", False, folder, PATIENCE) as cluster:
        return train(cluster, lambda status, events, outcome: None)


@pytest.mark.parametrize(
    "nodes", [1, pytest.param(3, marks=pytest.mark.slow), 4, pytest.param(6, marks=pytest.mark.slow)]
)
def test_the_number_of_nodes_changes_no_bit(nodes: int, job: Job, plain: PlainResult, tmp_path: Path) -> None:
    outcome = outcome_of(job, nodes, tmp_path / "run", [])
    assert [x.hex() for x in outcome.losses] == [x.hex() for x in plain.losses]
    assert outcome.sha256 == plain.sha256


# On six nodes n0, n1 and n2 run the first pipeline, n3, n4 and n5 the second.
PLACES = [
    pytest.param(0, "forward", marks=pytest.mark.slow),
    pytest.param(1, "backward", marks=pytest.mark.slow),
    pytest.param(2, "send", marks=pytest.mark.slow),
    pytest.param(3, "receive", marks=pytest.mark.slow),
    (4, "p1/1B2"),
    pytest.param(5, "ship", marks=pytest.mark.slow),
    (3, "ship"),  # of the first stage: the last backward of its pipeline runs still
    (0, "sum"),
    pytest.param(1, "sum", marks=pytest.mark.slow),
    (0, "ready"),
    (4, "commit"),
]


@pytest.mark.parametrize(("node", "place"), PLACES)
def test_a_kill_anywhere_on_the_grid_changes_no_bit(
    node: int, place: str, job: Job, plain: PlainResult, tmp_path: Path
) -> None:
    outcome = outcome_of(job, 6, tmp_path / "run", [Kill(f"n{node}", 5, place)])
    assert [x.hex() for x in outcome.losses] == [x.hex() for x in plain.losses]
    assert outcome.sha256 == plain.sha256
    assert [loss["node"] for loss in outcome.losses_of_nodes] == [f"n{node}"]


def test_two_lost_at_once_of_different_stages_change_no_bit(job: Job, plain: PlainResult, tmp_path: Path) -> None:
    kills = [Kill("n1", 5, "sum"), Kill("n5", 5, "p1/2B0")]
    outcome = outcome_of(job, 6, tmp_path / "run", kills)
    assert outcome.sha256 == plain.sha256


def test_the_parts_of_a_large_layer_are_added_up_by_several_owners(tmp_path: Path) -> None:
    """Of three owners one is lost while it sends: what it added up goes to the others (``culm.pipeline.buckets``)."""
    changes = ["pipeline.stages=1", "pipeline.pipelines=3", "pipeline.microbatches=1", "data.microbatch=8"]
    job = load_job(EXAMPLES / "digits_mlp.toml", [*changes, "job.steps=5", "train.clip_norm=0.5"])
    width = 1800
    assert count(width * width, 3) == 3, "each owner has a part of the second layer"
    job = job.model_copy(update={"model": job.model.model_copy(update={"args": {"width": width, "hidden": 1}})})
    outcome = outcome_of(job, 3, tmp_path / "run", [Kill("n1", 2, "ship")])
    plain = run_plain(job)
    assert [x.hex() for x in outcome.losses] == [x.hex() for x in plain.losses]
    assert outcome.sha256 == plain.sha256
    assert [loss["node"] for loss in outcome.losses_of_nodes] == ["n1"]


def test_a_run_through_ten_shapes_changes_no_bit(tmp_path: Path) -> None:
    """Of ten nodes all but one are lost, one after the other; the shape follows each time, and no bit changes."""
    changes = ["pipeline.stages=2", "pipeline.most_stages=4", "pipeline.pipelines=10", "pipeline.microbatches=1"]
    job = load_job(EXAMPLES / "digits_mlp.toml", [*changes, "job.steps=110", "data.microbatch=4"])
    places = ("forward", "ready", "backward", "ship", "commit", "receive", "forward", "ready", "backward")
    kills = [Kill(f"n{i}", 10 + 10 * i, place) for i, place in enumerate(places)]
    shapes: list[str] = []

    def note(status: pb.GetStatusResponse, events: list[pb.ListEventsResponse], outcome: Outcome) -> None:
        plans = [json.loads(event.fields["stages"]) for event in events if event.kind == "plan"]
        shapes.extend("x".join(str(len(set(stage[2]))) for stage in plan) for plan in plans)

    soon = {"coordinator": {"CULM_SETTLE_SECONDS": "0.1"}}
    with LocalCluster(job, EXAMPLES, 10, kills, "", False, tmp_path / "run", PATIENCE, environments=soon) as cluster:
        outcome = train(cluster, note)
    plain = run_plain(job)
    assert [x.hex() for x in outcome.losses] == [x.hex() for x in plain.losses]
    assert outcome.sha256 == plain.sha256
    assert len(set(shapes)) >= 10, shapes
