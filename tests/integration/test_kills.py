"""Real processes, killed at every kind of instruction on every stage: the weights never change."""

import os
import signal
from pathlib import Path

import pytest

from culm.local.cluster import LocalCluster
from culm.local.kills import Kill
from culm.local.training import train
from culm.oracle.plain_loop import PlainResult, run_plain
from culm.pipeline.job import Job, load_job
from culm.pipeline.places import KINDS
from culm.protos import coordinator_pb2 as pb
from culm.protos.coordinator_pb2_grpc import CoordinatorStub
from culm.terminal.client import connect
from culm.terminal.outcome import Outcome

EXAMPLES = Path(__file__).parents[2] / "examples"
SOAK = os.environ.get("CULM_SOAK") == "1"
STAGES = 4
PATIENCE = 20.0  # on a busy machine a node may be slow to speak: streams tell of a kill, not silence


@pytest.fixture(scope="module")
def job() -> Job:
    """Small, with BatchNorm and dropout-free layers; four stages."""
    changes = ["job.steps=16", f"pipeline.stages={STAGES}", "pipeline.microbatches=6", "data.microbatch=8"]
    return load_job(EXAMPLES / "digits_mlp.toml", changes)


@pytest.fixture(scope="module")
def plain(job: Job) -> PlainResult:
    return run_plain(job)


class Strike:
    """Disturbs a run once it has reached a step."""

    def __init__(self, step: int, number: int, node: str) -> None:
        self._step = step
        self._number = number
        self._node = node
        self._done = False

    def __call__(self, stub: CoordinatorStub, status: pb.GetStatusResponse, deaths: list[tuple[str, float]]) -> None:
        if not self._done and status.step >= self._step:
            self._done = True
            os.kill(next(n.pid for n in status.nodes if n.id == self._node), self._number)


def run(
    job: Job, folder: Path, kills: list[Kill], strike: Strike | None = None, patience: float = PATIENCE
) -> tuple[Outcome, dict[str, int]]:
    """The outcome, and how many instructions each surviving node has run."""
    timeout = patience
    with LocalCluster(job, EXAMPLES, STAGES, kills, "", False, folder, timeout) as cluster:
        outcome = train(cluster, lambda status, events, outcome: None, strike)
        return outcome, finished(cluster, job.job.steps)


def finished(cluster: LocalCluster, steps: int) -> dict[str, int]:
    """By node, once the heartbeats have told that all is applied."""
    channel, stub = connect(cluster.address)
    with channel:
        while True:
            status = stub.GetStatus(pb.GetStatusRequest(), timeout=10.0)
            if all(node.version == steps for node in status.nodes):
                return {node.id: node.finished for node in status.nodes}


def nobody_else_redid_work(job: Job, counts: dict[str, int], lost: int) -> None:
    each = job.job.steps * 2 * job.pipeline.microbatches
    heir = f"n{(lost - 1) % STAGES}"
    others = {f"n{s}" for s in range(STAGES)} - {f"n{lost}", heir}
    assert {name: counts[name] for name in others} == dict.fromkeys(others, each)
    assert counts[heir] > each


def check(outcome: Outcome, plain: PlainResult) -> None:
    assert [x.hex() for x in outcome.losses] == [x.hex() for x in plain.losses]
    assert outcome.sha256 == plain.sha256


# Every kind and every stage each time; each of the pairs when there is time: make soak. Nobody adds up what peers send
# where there are none: that is struck in test_grid.
PLACES = [kind for kind in KINDS if kind != "sum"]
PAIRS = [(kind, stage) for i, kind in enumerate(PLACES) for stage in range(STAGES) if SOAK or stage == i % 4]


@pytest.mark.parametrize(("kind", "stage"), PAIRS)
def test_a_kill_at_every_kind_of_instruction(
    kind: str, stage: int, job: Job, plain: PlainResult, tmp_path: Path
) -> None:
    outcome, counts = run(job, tmp_path / "run", [Kill(f"n{stage}", 5, kind)])
    check(outcome, plain)
    nobody_else_redid_work(job, counts, stage)
    (loss,) = outcome.losses_of_nodes
    assert (loss["node"], loss["stage"]) == (f"n{stage}", stage)
    assert loss["detect_ms"] < 500
    assert loss["redone"] <= 2 * job.pipeline.microbatches


LARGE = {"send": 1, "receive": 2, "ship": 0}  # kind of instruction -> the stage it strikes


@pytest.mark.parametrize(("kind", "stage"), LARGE.items())
def test_a_kill_while_large_tensors_pass_through_shared_memory(kind: str, stage: int, job: Job, tmp_path: Path) -> None:
    """Activations of 512 KiB, gradients of 4 MiB."""
    model = job.model.model_copy(update={"args": {"width": 1024, "hidden": 2}})
    data, steps = job.data.model_copy(update={"microbatch": 128}), job.job.model_copy(update={"steps": 6})
    job = job.model_copy(update={"model": model, "data": data, "job": steps})
    outcome, _ = run(job, tmp_path / "run", [Kill(f"n{stage}", 3, kind)])
    check(outcome, run_plain(job))
    assert [loss["node"] for loss in outcome.losses_of_nodes] == [f"n{stage}"]


def test_a_frozen_node_is_detected_and_replaced(job: Job, plain: PlainResult, tmp_path: Path) -> None:
    """SIGSTOP for good: no stream breaks, only heartbeats are missing."""
    outcome, counts = run(job, tmp_path / "run", [], Strike(5, signal.SIGSTOP, "n2"), patience=2.0)
    check(outcome, plain)
    nobody_else_redid_work(job, counts, 2)
    (loss,) = outcome.losses_of_nodes
    assert loss["node"] == "n2"
    assert loss["detect_ms"] >= 2000


@pytest.mark.slow
def test_a_node_that_is_alive_but_stuck_is_replaced(job: Job, tmp_path: Path) -> None:
    """Heartbeats go on; its own history tells that an instruction has been running for far too long."""
    model = job.model.model_copy(update={"layers": "tests.integration.bad_models:sticky", "args": {}})
    pipeline, steps = job.pipeline.model_copy(update={"stages": 3}), job.job.model_copy(update={"steps": 200})
    job = job.model_copy(update={"model": model, "pipeline": pipeline, "job": steps})
    flag = tmp_path / "stick"
    events: list[pb.ListEventsResponse] = []
    told: list[int] = []

    def stick(stub: CoordinatorStub, status: pb.GetStatusResponse, deaths: list[tuple[str, float]]) -> None:
        if status.step >= 5 and not told:
            told.append(status.step)
            flag.touch()

    environments = {name: {"CULM_STICK": str(flag)} for name in ("n0", "n1", "n2")}
    folder = tmp_path / "run"
    with LocalCluster(job, EXAMPLES, 3, folder=folder, environments=environments) as cluster:
        outcome = train(cluster, lambda status, new, outcome: events.extend(new), stick)
    (lost,) = (event for event in events if event.kind == "lost")
    assert "stuck: " in lost.fields["evidence"]
    check(outcome, run_plain(job))


@pytest.mark.slow
def test_a_slow_node_gets_fewer_layers_and_stays(job: Job, tmp_path: Path) -> None:
    """Its own history tells that it has become slow; nobody is lost, and no bit changes."""
    model = job.model.model_copy(update={"layers": "tests.integration.bad_models:paced", "args": {}})
    pipeline, steps = job.pipeline.model_copy(update={"stages": 3}), job.job.model_copy(update={"steps": 60})
    job = job.model_copy(update={"model": model, "pipeline": pipeline, "job": steps})
    flag = tmp_path / "slow"
    events: list[pb.ListEventsResponse] = []

    def slow_down(stub: CoordinatorStub, status: pb.GetStatusResponse, deaths: list[tuple[str, float]]) -> None:
        if status.step >= 15:
            flag.touch()

    environments = {"n1": {"CULM_SLOW": str(flag)}, "coordinator": {"CULM_SETTLE_SECONDS": "1"}}
    folder = tmp_path / "run"
    with LocalCluster(job, EXAMPLES, 3, folder=folder, patience=PATIENCE, environments=environments) as cluster:
        outcome = train(cluster, lambda status, new, outcome: events.extend(new), slow_down)
        channel, stub = connect(cluster.address)
        with channel:
            plan = stub.GetStatus(pb.GetStatusRequest()).plan
    kinds = [event.kind for event in events]
    assert "lost" not in kinds
    assert "n1" in {event.fields["node"] for event in events if event.kind == "slow"}
    layers = {stage.owners[0]: stage.end_layer - stage.first_layer for stage in plan.stages}
    assert layers["n1"] == min(layers.values()) < 2
    check(outcome, run_plain(job))
