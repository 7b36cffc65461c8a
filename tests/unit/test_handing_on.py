"""A result whose bytes come later: the node goes on, and nobody has the result before they are here."""

import threading
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from types import MappingProxyType

import pytest
import torch

from culm.oracle.plain_loop import run_plain
from culm.pipeline.checkpoints.digest import weights_sha256
from culm.pipeline.clip import clip_scale
from culm.pipeline.commit import Commit
from culm.pipeline.job import Job, load_job
from culm.pipeline.partition import partition
from culm.pipeline.patience import Patience
from culm.pipeline.plan import Member, Plan, StagePlan, Standby
from culm.pipeline.plan_codec import commit_to_proto, plan_to_proto
from culm.pipeline.schedule import Schedule
from culm.pipeline.tensors.values import Value
from culm.pipeline.user_code.model import ModelSource
from culm.protos import coordinator_pb2 as pb
from culm.stage_server.compute.compute import Compute, Result
from culm.stage_server.compute.device import CPU, Device
from culm.stage_server.faults import Faults
from culm.stage_server.handing_on import HandingOn
from culm.stage_server.node import Node
from culm.stage_server.spiller import ALL, Allowance
from culm.stage_server.streams.guard import run_of
from culm.stage_server.turn import Turn
from culm.stage_server.worker.work import Apply, Arrange, Run
from culm.stage_server.worker.worker import Worker
from tests.late_device import Late
from tests.short import activation, unit

EXAMPLES = Path(__file__).parents[2] / "examples"
MEMBERS = MappingProxyType({name: Member(name, 1) for name in ("n0", "n1")})


def two_stages(generation: int, first: str) -> Plan:
    stages = (StagePlan(0, 1, (first,), (Standby("n0", hot=True),) * (first != "n0")), StagePlan(1, 2, ("n1",)))
    return Plan(term=1, generation=generation, era=0, step=0, stages=stages, members=MEMBERS)


class Gate:
    """The event of a copy that ends when the test says so."""

    def __init__(self) -> None:
        self._open = threading.Event()

    def open(self) -> None:
        self._open.set()

    def wait(self) -> None:
        self._open.wait()


class Hub:
    """A worker whose first forward is done and not copied out, and what hands it on."""

    def __init__(self) -> None:
        self.worker: Worker[Value] = Worker("n0", 1, Schedule(2), steps=1)
        self.worker.take_plan(two_stages(1, "n0"))
        arrange = self.worker.next_work()
        assert isinstance(arrange, Arrange)
        self.worker.finish(arrange)
        self.heard: SimpleQueue[None] = SimpleQueue()
        self.raised: list[BaseException] = []
        self.changed = Turn(self.raised.append)
        self.handing_on = HandingOn(self.worker, self.changed, lambda: self.heard.put(None))
        self.gates = [Gate(), Gate()]
        for gate in self.gates:
            self.follow(gate)

    def follow(self, gate: Gate) -> None:
        with self.changed:
            work = self.worker.next_work()
            assert isinstance(work, Run)
            self.handing_on.follow(work, Result(value=Value.single(torch.ones(2)), copied=gate))

    def has(self, microbatch: int) -> bool:
        with self.changed:
            return activation(0, microbatch) in self.worker.post.outbox


@pytest.fixture
def hub() -> Iterator[Hub]:
    made = Hub()
    yield made
    made.handing_on.close()


def test_a_result_goes_out_when_its_event_has_passed_and_the_next_instruction_before(hub: Hub) -> None:
    # Both forwards were given out though nothing of the first one is here.
    assert [hub.worker.runner.duties.has_done(unit(0, "F", m)) for m in (0, 1)] == [True, True]
    assert [hub.has(0), hub.has(1)] == [False, False]
    hub.gates[0].open()
    hub.heard.get()
    assert [hub.has(0), hub.has(1)] == [True, False]
    hub.gates[1].open()
    hub.heard.get()
    assert [hub.has(0), hub.has(1)] == [True, True]


def test_a_result_whose_duty_has_gone_meanwhile_is_dropped(hub: Hub) -> None:
    with hub.changed:
        hub.worker.take_plan(two_stages(2, "n1"))
        hub.worker.take_plan(two_stages(3, "n0"))  # and came back: what was done before does not count (tenure)
    for gate in hub.gates:
        gate.open()
        hub.heard.get()
    assert [hub.has(0), hub.has(1)] == [False, False]
    assert not hub.worker.runner.duties.has_done(unit(0, "F", 0))


def test_nothing_is_handed_on_by_a_node_that_ends(hub: Hub) -> None:
    with hub.changed:
        hub.changed.stopped = True
    hub.handing_on.close()
    for gate in hub.gates:
        gate.open()
    for thread in threading.enumerate():
        if thread.name == "hand on":
            thread.join()
    assert [hub.has(0), hub.has(1)] == [False, False]
    assert hub.raised == []


# ---- a whole run on one node -----------------------------------------------------------------------------------------


class StopsAfter(Faults):
    """Ends the node's run when it has applied the last commit."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self._steps = steps
        self.node: Node | None = None

    def after(self, work: object) -> None:
        if isinstance(work, Apply) and work.step == self._steps - 1:
            assert self.node is not None
            self.node.stop()


class Coordinator:
    """Of a run on one node: it commits when every stage is ready."""

    def __init__(self, job: Job, stages: int) -> None:
        self._job = job
        self._stages = stages
        self._reports: SimpleQueue[pb.AttendRequest] = SimpleQueue()

    def report(self, request: pb.AttendRequest) -> None:
        self._reports.put(request)

    def lead(self, node: Node) -> None:
        for step in range(self._job.job.steps):
            norms: dict[int, tuple[float, ...]] = {}
            while len(norms) < self._stages:
                report = self._reports.get()
                if report.WhichOneof("body") == "ready":
                    norms[report.ready.stage] = tuple(report.ready.squared_norms)
            scale = clip_scale([norm for stage in sorted(norms) for norm in norms[stage]], self._job.train.clip_norm)
            commit = Commit(term=1, era=0, step=step, scale=scale)
            node.order(pb.AttendResponse(commit=commit_to_proto(commit)))


def weights_after(job: Job, device: Device, allowance: Allowance = ALL) -> tuple[str, int]:
    """Of a node that runs all stages and pipelines, and so takes its own results; and the bytes that went to disk."""
    source = ModelSource(job)
    compute = Compute(job, source, device)
    compute.warm_up()
    worker: Worker[Value] = Worker("n0", 1, job.schedule, job.job.steps)
    faults, broken = StopsAfter(job.job.steps), list[BaseException]()
    shape = run_of(job, source)
    node = faults.node = Node(worker, compute, faults, job, Patience(), pytest.fail, broken.append, shape, allowance)
    ranges = partition([1.0] * source.layer_count, job.pipeline.stages)
    stages = tuple(StagePlan(first, end, ("n0",) * job.pipeline.pipelines) for first, end in ranges)
    plan = Plan(term=1, generation=1, era=0, step=0, stages=stages, members={"n0": Member("n0", 1)})
    coordinator = Coordinator(job, len(stages))
    node.attendance.begin(coordinator)  # type: ignore[arg-type]
    node.order(pb.AttendResponse(plan=plan_to_proto(plan)))
    leading = threading.Thread(target=coordinator.lead, args=(node,), daemon=True)
    leading.start()
    node.run()
    leading.join()
    assert broken == []
    weights = weights_sha256([(i, compute.layer(i).module.state_dict()) for i in range(source.layer_count)])
    return weights, node.attendance.reading().spilled_bytes


@pytest.mark.parametrize("device", [CPU, Late()], ids=["cpu", "late"])
@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
@pytest.mark.parametrize("stages", [1, 3])
def test_a_run_has_the_plain_loops_bits(device: Device, schedule: str, stages: int) -> None:
    """Whatever the node takes too soon is garbage on a late device, and shows in the weights."""
    changes = ["job.steps=4", "pipeline.pipelines=2", "pipeline.microbatches=3", "data.microbatch=8"]
    changes += [f"pipeline.stages={stages}", f"pipeline.schedule={schedule}", "train.clip_norm=0.5"]
    job = load_job(EXAMPLES / "digits_mlp.toml", changes)
    assert weights_after(job, device) == (run_plain(job).sha256, 0)
