"""A layer's state that does not fit says something about whoever gave it, and about nobody else (rule 14)."""

from dataclasses import replace
from pathlib import Path

import pytest

from culm.pipeline.job import Job, load_job
from culm.pipeline.origin import Origin
from culm.pipeline.plan import Member, Plan, StagePlan, Standby
from culm.pipeline.schedule import Schedule
from culm.pipeline.tensors.values import Value
from culm.protos import coordinator_pb2 as pb
from culm.stage_server.checkpoint_share import Checkpoints
from culm.stage_server.turn import Turn
from culm.stage_server.worker.effects import FetchLayers
from culm.stage_server.worker.holdings import CHECKPOINT
from culm.stage_server.worker.work import Install
from culm.stage_server.worker.worker import Worker

STATE = Value(())
NAMES = ("n0", "n1", "n2")
ORIGIN = Origin(4, "memory://c/step-00000004", "ab" * 32)
# All three hold the one layer from the era's beginning, and read it from its checkpoint.
PLAN = Plan(
    term=1,
    generation=1,
    era=1,
    step=4,
    stages=(StagePlan(0, 1, ("n0",), (Standby("n1", hot=True), Standby("n2", hot=True))),),
    members={name: Member(name, 1) for name in NAMES},
    origin=ORIGIN,
)


@pytest.fixture
def job() -> Job:
    return load_job(Path(__file__).parents[2] / "examples" / "digits_mlp.toml", [])


class Owner:
    """What its checkpoints see of a node."""

    def __init__(self, plan: Plan = PLAN) -> None:
        self.worker: Worker[Value] = Worker("n2", 1, Schedule(2), 8)
        self.changed = Turn(lambda error: None)
        self.worker.take_plan(plan)
        self.worker.finish(self.worker.next_work() or pytest.fail("nothing is arranged"))
        self.asked = self.asks()

    def fetched(self, era: int, layer: int, version: int, state: Value, source: str) -> None:
        self.worker.fetched(era, layer, version, state, source)

    def after_event(self) -> None:
        return

    def asks(self) -> list[str]:
        return [effect.peer for effect in self.worker.drain() if isinstance(effect, FetchLayers)]

    def installs(self, source: str) -> Install[Value]:
        """What the node is to put in place, once this source has given the layer."""
        self.fetched(1, 0, 4, STATE, source)
        work = self.worker.next_work()
        assert isinstance(work, Install)
        return work


def test_a_peers_state_says_nothing_against_the_checkpoint(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    """The checkpoint was struck off, and the run went back behind a whole one."""
    node, reports = Owner(), list[pb.AttendRequest]()
    checkpoints = Checkpoints(node, job, reports.append)
    node.worker.unread(1)
    (peer,) = node.asks()
    checkpoints.refuse(node.installs(peer), "it has no parameter.weight")
    assert (reports, checkpoints.facts()) == ([], [])
    assert f"layer 0 from {peer} is not taken" in caplog.text
    assert checkpoints.lacks(1, 0), "it is still wanted from the checkpoint"
    node.worker.unread(1)
    assert node.asks() == ["n1"], "another holder is asked next"
    node.worker.finish(node.installs(CHECKPOINT))
    assert node.worker.holdings.version_of(0) == 4


def test_a_seeded_layer_that_does_not_fit_is_asked_for_elsewhere_at_once(job: Job) -> None:
    """No other event may follow, where all others wait for this node."""
    stage = replace(PLAN.stages[0], standbys=(Standby("n1", hot=True), Standby("n2", hot=False)))
    node, reports = Owner(replace(PLAN, stages=(stage,))), list[pb.AttendRequest]()
    assert node.asked == ["n0"]
    Checkpoints(node, job, reports.append).refuse(node.installs("n0"), "it has no parameter.weight")
    assert (node.asks(), reports) == (["n1"], [])


def test_a_state_from_the_checkpoint_is_a_proof_against_it(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    node, reports = Owner(), list[pb.AttendRequest]()
    checkpoints = Checkpoints(node, job, reports.append)
    node.worker.unread(1)
    assert node.asks() == ["n0"], "a holder was asked as well"
    checkpoints.refuse(node.installs(CHECKPOINT), "it has no parameter.weight")
    (report,) = reports
    assert report.checkpoint_bad.folder == ORIGIN.folder
    assert f"layer 0 from the checkpoint {ORIGIN.folder} is not taken" in caplog.text
