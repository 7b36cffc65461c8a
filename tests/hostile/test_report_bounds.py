"""What no node reports, no operator asks and no coordinator orders is refused before anything is decided (rule 18)."""

import math
from dataclasses import replace
from typing import Any

import pytest
from torch import nn

from culm.coordinator import report_bounds, request_bounds
from culm.coordinator.decide import advance, begin
from culm.coordinator.edges.translation import report_of
from culm.coordinator.reports import Available, Joined
from culm.coordinator.state import Settings, State
from culm.pipeline.origin import Origin
from culm.pipeline.plan import Member, Plan, StagePlan, Standby
from culm.pipeline.plan_bounds import plan_problem
from culm.pipeline.plan_codec import plan_to_proto
from culm.pipeline.user_code.layer_shapes import LayerShapes
from culm.protos import coordinator_pb2 as pb
from culm.stage_server.streams.stream_bounds import RunShape, order_problem_of, welcome_problem

STEPS, MICROBATCHES = 20, 4
LAYERS = tuple(LayerShapes.of(nn.Linear(3, 3)) for _ in range(4))
RUN = RunShape(pipelines=1, microbatches=MICROBATCHES, steps=STEPS, layers=LAYERS)
FULL = ("n0", "n1")


def plan(**other: object) -> Plan:
    stages = (StagePlan(0, 2, ("n0",), (Standby("n1", True),)), StagePlan(2, 4, ("n1",), (Standby("n0", True),)))
    members = {name: Member(name, 1, f"{name}:1") for name in FULL}
    return replace(Plan(term=1, generation=1, era=0, step=5, stages=stages, members=members, reason="begun"), **other)  # type: ignore[arg-type]


def stage(first: int, end: int, owner: str = "n0", standby: str = "n1") -> StagePlan:
    return StagePlan(first, end, (owner,), (Standby(standby, True),))


@pytest.mark.parametrize(
    "wrong",
    [
        plan(stages=()),
        plan(stages=(stage(0, 2),)),
        plan(stages=(stage(0, 1 << 31),)),
        plan(stages=(stage(0, 2), stage(1, 4))),
        plan(stages=(stage(2, 2), stage(2, 4))),
        plan(stages=(stage(0, 4, "n9"),)),
        plan(stages=(stage(0, 4, "n0", "n0"),)),
        plan(target=(stage(0, 5),)),
        plan(members={"..": Member("..", 1)}),
        plan(step=STEPS + 1),
        plan(origin=Origin(6)),
        plan(term=1 << 21),
        plan(generation=1 << 63),
    ],
)
def test_a_plan_that_no_coordinator_makes_is_refused(wrong: Plan) -> None:
    assert plan_problem(plan_to_proto(wrong), 4, STEPS, 1)
    assert plan_problem(plan_to_proto(plan()), 4, STEPS, 1) == ""
    assert order_problem_of(pb.AttendResponse(plan=plan_to_proto(wrong)), RUN)


def test_orders_are_held_against_the_run() -> None:
    assert order_problem_of(pb.AttendResponse(commit=pb.Commit(step=4, scale=1.0, loss=math.nan)), RUN) == ""
    assert order_problem_of(pb.AttendResponse(commit=pb.Commit(step=4, scale=1.0, evaluated=[math.nan])), RUN) == ""
    more = pb.Commit(step=4, scale=1.0, evaluated=[1.0, 2.0])  # of a job without metrics
    for commit in (pb.Commit(step=STEPS), pb.Commit(step=4, scale=math.nan), pb.Commit(step=4, scale=-1.0), more):
        assert order_problem_of(pb.AttendResponse(commit=commit), RUN)
    assert order_problem_of(pb.AttendResponse(die=pb.Die(at="nowhere")), RUN)
    assert welcome_problem(pb.Welcome(heartbeat_seconds=math.nan))
    assert welcome_problem(pb.Welcome(heartbeat_seconds=1e-9))


@pytest.fixture
def state() -> State:
    """Two nodes train a model of four layers; step 0 is being computed."""
    found = begin(Settings(stages=2, microbatches=MICROBATCHES, steps=STEPS))
    for name in FULL:
        found, _ = advance(found, Joined(node=name, incarnation=1, address=f"{name}:1"), 0.0)
        found, _ = advance(
            found, Available(node=name, incarnation=1, layer_costs=(9.0, 9.0, 9.0, 9.0), fingerprint="code"), 0.0
        )
    assert found.plan is not None
    return found


FOUR: dict[str, Any] = {"layer_parameters": [9, 9, 9, 9], "fingerprint": "code"}
SHA = "0" * 64
WRONG = [
    pb.AttendRequest(join=pb.Join(node="n0")),
    pb.AttendRequest(available=pb.Available()),
    pb.AttendRequest(available=pb.Available(layer_parameters=[9] * 5, fingerprint="code")),
    pb.AttendRequest(available=pb.Available(layer_parameters=[1 << 63] * 4, fingerprint="other")),
    pb.AttendRequest(available=pb.Available(version=STEPS + 1, **FOUR)),
    pb.AttendRequest(available=pb.Available(version=3, holds_state=True, **FOUR)),  # would count as committed
    pb.AttendRequest(available=pb.Available(layer_seconds=[0.1] * 3, **FOUR)),
    pb.AttendRequest(available=pb.Available(layer_seconds=[0.1, 0.1, 0.1, 0.0], **FOUR)),
    pb.AttendRequest(available=pb.Available(layer_seconds=[0.1, 0.1, 0.1, -1.0], **FOUR)),
    pb.AttendRequest(available=pb.Available(layer_seconds=[0.1, 0.1, 0.1, math.nan], **FOUR)),
    pb.AttendRequest(available=pb.Available(layer_seconds=[0.1, 0.1, 0.1, math.inf], **FOUR)),
    pb.AttendRequest(available=pb.Available(unmeasured="x" * (1 << 20), **FOUR)),
    pb.AttendRequest(available=pb.Available(memory_bytes=1 << 62, **FOUR)),
    pb.AttendRequest(available=pb.Available(layer_state_bytes=[9] * 4, **FOUR)),
    pb.AttendRequest(available=pb.Available(layer_state_bytes=[9] * 3, layer_gradient_bytes=[9] * 3, **FOUR)),
    pb.AttendRequest(available=pb.Available(layer_state_bytes=[9] * 4, layer_gradient_bytes=[1 << 62] * 4, **FOUR)),
    pb.AttendRequest(available=pb.Available(layer_boundary_bytes=[9] * 4, **FOUR)),
    pb.AttendRequest(available=pb.Available(spill_above=1 << 62, **FOUR)),
    pb.AttendRequest(available=pb.Available(layers=[4], **FOUR)),
    pb.AttendRequest(available=pb.Available(layers=[0, 0], **FOUR)),
    pb.AttendRequest(available=pb.Available(last_commit=pb.Commit(step=1 << 60), **FOUR)),  # hung the coordinator
    pb.AttendRequest(available=pb.Available(version=5, last_commit=pb.Commit(step=4, evaluated=[1.0] * 9), **FOUR)),
    pb.AttendRequest(available=pb.Available(plan=pb.Plan(step=1 << 60), **FOUR)),
    # A leader would adopt it, and all nodes refuse whatever comes after the last generation, or era.
    pb.AttendRequest(available=pb.Available(plan=plan_to_proto(plan(step=0, generation=(1 << 63) - 1)), **FOUR)),
    pb.AttendRequest(available=pb.Available(plan=plan_to_proto(plan(step=0, era=(1 << 32) - 1)), **FOUR)),
    pb.AttendRequest(available=pb.Available(plan=plan_to_proto(plan(step=0, term=1 << 19)), **FOUR)),
    pb.AttendRequest(heartbeat=pb.Heartbeat(version=STEPS + 1)),
    pb.AttendRequest(heartbeat=pb.Heartbeat(slowness=math.inf)),
    pb.AttendRequest(heartbeat=pb.Heartbeat(running_seconds=-1.0)),
    pb.AttendRequest(heartbeat=pb.Heartbeat(times=pb.TimeSplit(idle=math.nan))),
    pb.AttendRequest(heartbeat=pb.Heartbeat(sent_bytes={"[red]n1": 1})),
    pb.AttendRequest(heartbeat=pb.Heartbeat(instruction="x" * 1000)),
    pb.AttendRequest(heartbeat=pb.Heartbeat(resources=pb.Resources(cpu_seconds=math.nan))),
    pb.AttendRequest(heartbeat=pb.Heartbeat(resources=pb.Resources(processors=-1.0))),
    pb.AttendRequest(heartbeat=pb.Heartbeat(resources=pb.Resources(accelerator_busy=1.5))),
    pb.AttendRequest(heartbeat=pb.Heartbeat(resources=pb.Resources(resident_bytes=1 << 63))),
    pb.AttendRequest(heartbeat=pb.Heartbeat(log_lines=[pb.LogLine(number=n) for n in range(1000)])),
    pb.AttendRequest(heartbeat=pb.Heartbeat(log_lines=[pb.LogLine(text="x" * 100_000)])),
    pb.AttendRequest(heartbeat=pb.Heartbeat(log_lines=[pb.LogLine(time=math.nan)])),
    pb.AttendRequest(heartbeat=pb.Heartbeat(log_lines=[pb.LogLine(number=1 << 60)])),
    pb.AttendRequest(ready=pb.Ready(step=STEPS, squared_norms=[1.0])),
    pb.AttendRequest(ready=pb.Ready(first_layer=3, squared_norms=[1.0, 1.0])),
    pb.AttendRequest(ready=pb.Ready(stage=4, squared_norms=[1.0])),
    pb.AttendRequest(ready=pb.Ready(squared_norms=[-1.0])),  # its square root ended the coordinator
    pb.AttendRequest(ready=pb.Ready(squared_norms=[1.0], tallies=[1.0])),
    pb.AttendRequest(ready=pb.Ready()),
    pb.AttendRequest(caught_up=pb.CaughtUp(end_layer=(1 << 32) - 1)),  # eight bytes that took 17 GB
    pb.AttendRequest(caught_up=pb.CaughtUp(first_layer=2, end_layer=1)),
    pb.AttendRequest(resumed=pb.Resumed(stage=4)),
    pb.AttendRequest(peer_lost=pb.PeerLost(node="n\x1b[2J")),
    pb.AttendRequest(draining=pb.Draining(seconds_left=math.nan)),
    pb.AttendRequest(saved=pb.Saved(step=STEPS + 1)),
    pb.AttendRequest(saved=pb.Saved(files=[pb.SavedFile(layer=4, name="x", sha256=SHA)])),
    pb.AttendRequest(saved=pb.Saved(files=[pb.SavedFile(name="../x", sha256=SHA)])),
    pb.AttendRequest(saved=pb.Saved(files=[pb.SavedFile(name="x", sha256="..")])),
    pb.AttendRequest(checkpoint_bad=pb.CheckpointBad(step=STEPS + 1)),
    pb.AttendRequest(leave=pb.Leave(why="x" * (1 << 20))),
]


@pytest.mark.parametrize("request_", WRONG, ids=lambda r: r.WhichOneof("body"))
def test_a_report_that_no_node_makes_is_refused(state: State, request_: pb.AttendRequest) -> None:
    assert report_bounds.problem(state, request_)


def test_the_same_is_refused_as_long_as_the_layers_are_not_known() -> None:
    fresh = begin(Settings(stages=2, microbatches=MICROBATCHES, steps=STEPS))
    far = pb.AttendRequest(caught_up=pb.CaughtUp(end_layer=(1 << 32) - 1))
    assert report_bounds.problem(fresh, far)


def test_what_nodes_report_is_taken(state: State) -> None:
    right = [
        pb.AttendRequest(available=pb.Available(plan=plan_to_proto(plan(step=0)), layers=[0, 1], **FOUR)),
        pb.AttendRequest(available=pb.Available(layer_seconds=[1e-9, 0.1, 0.1, 900.0], **FOUR)),
        pb.AttendRequest(available=pb.Available(layer_parameters=[1], fingerprint="other")),  # told why, by advance
        pb.AttendRequest(heartbeat=pb.Heartbeat(slowness=1.0, sent_bytes={"n1": 5})),
        pb.AttendRequest(heartbeat=pb.Heartbeat()),
        pb.AttendRequest(heartbeat=pb.Heartbeat(resources=pb.Resources(seconds=5.0, accelerator_busy=1.0))),
        pb.AttendRequest(heartbeat=pb.Heartbeat(log_lines=[pb.LogLine(number=1, time=1e9, text="hi")])),
        pb.AttendRequest(ready=pb.Ready(squared_norms=[math.nan, math.inf], tallies=[math.nan] * MICROBATCHES)),
        pb.AttendRequest(caught_up=pb.CaughtUp(first_layer=2, end_layer=4)),
        pb.AttendRequest(saved=pb.Saved(step=5, files=[pb.SavedFile(name="layer-00000.safetensors", sha256=SHA)])),
        pb.AttendRequest(leave=pb.Leave(why="it was told to stop")),
        pb.AttendRequest(),
    ]
    for request in right:
        assert report_bounds.problem(state, request) == ""
        report = report_of("n0", 1, request)
        if report is not None:
            advance(state, report, 0.0)


@pytest.mark.parametrize("at", ["x", ":", "12", "12:", "-1:2B3", "x" * 1000, "²:2B3"])
def test_an_operator_who_names_no_instruction_is_told_so(at: str) -> None:
    assert "names no instruction" in request_bounds.kill_problem(pb.KillRequest(node="n0", at=at))
    assert request_bounds.kill_problem(pb.KillRequest(node="n0", at="12:2B3")) == ""
    assert request_bounds.drain_problem(pb.DrainRequest(node="../n0"))


def test_a_stage_with_several_owners_names_a_reducer_of_each_layer() -> None:
    """``StagePlan.reducer_of`` would raise wherever the plan is looked at."""
    good = plan_to_proto(plan())
    for stage in good.stages:
        stage.owners.append(stage.owners[0])
    assert plan_problem(good, 4, STEPS, 2) == ""
    first = good.stages[0]
    del first.standbys[:]
    first.owners[1] = next(member.node for member in good.members if member.node not in first.owners)
    assert "0 reducers; it needs" in plan_problem(good, 4, STEPS, 2)
    first.reducers.extend([first.owners[1]] * (first.end_layer - first.first_layer))
    assert plan_problem(good, 4, STEPS, 2) == ""
    first.reducers[0] = "a stranger"
    assert "each of them an owner" in plan_problem(good, 4, STEPS, 2)
