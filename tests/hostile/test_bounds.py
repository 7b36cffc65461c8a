"""What no node of a run says is refused before anything is set aside or decided for it (rule 18)."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from culm.coordinator import report_bounds as coordinator_bounds
from culm.coordinator import request_bounds
from culm.coordinator.decide import advance, begin
from culm.coordinator.edges.translation import report_of
from culm.coordinator.reports import Available, Joined
from culm.coordinator.state import Settings, State
from culm.pipeline.keys import Key, Kind
from culm.pipeline.origin import Origin
from culm.pipeline.plan import Member, Plan, StagePlan, Standby
from culm.pipeline.plan_bounds import plan_problem
from culm.pipeline.plan_codec import plan_to_proto
from culm.pipeline.tensors.tensor_bounds import MOST_BYTES
from culm.pipeline.tensors.tensor_bounds import problem as header_problem
from culm.pipeline.tensors.values import Value
from culm.pipeline.tensors.wire import Assembler, header_of, sealed
from culm.pipeline.ties import Tie
from culm.pipeline.user_code.layer_shapes import LayerShapes
from culm.protos import coordinator_pb2 as pb
from culm.protos import stage_pb2, tensor_pb2
from culm.stage_server.one_machine.slots import Slots
from culm.stage_server.streams import stream_bounds as bounds
from culm.stage_server.streams.stream_bounds import RunShape

STEPS, MICROBATCHES = 20, 4
LAYERS = tuple(LayerShapes.of(nn.Linear(3, 3)) for _ in range(4))
RUN = RunShape(pipelines=1, microbatches=MICROBATCHES, steps=STEPS, layers=LAYERS)
TERM = 1
FULL = ("n0", "n1")


def header(
    dtype: str = "float32",
    shape: tuple[int, ...] = (2,),
    total: int = 8,
    name: str = "output",
    strides: tuple[int, ...] = (),
) -> tensor_pb2.ValueHeader:
    spec = tensor_pb2.TensorSpec(name=name, dtype=dtype, shape=shape, strides=strides)
    return tensor_pb2.ValueHeader(tensors=[spec], total_bytes=total)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (header("quint8", (32,), 32), "cannot be sent"),  # ended the process: torch aborts
        (header("Tensor", (2,), 8), "cannot be sent"),
        (header(shape=(1 << 62,), total=16), "the tensors have"),  # read beyond the 16 bytes
        (header(shape=(1 << 63, 2), total=0), "the tensors have"),
        (header(shape=(0, 1 << 62), total=0), "empty tensor"),
        (header("uint8", (1 << 62,), 1 << 62), "at most"),
        (header(shape=(1,) * 33, total=4), "dimensions"),
        (header(shape=(2,), total=4), "the tensors have"),
        (header(shape=(), total=0), "the tensors have"),
        (header(strides=(1, 1)), "2 strides for 1 dimensions"),
        (header(strides=(1 << 62,)), "reach further"),
        (header(shape=(2, 1), strides=(1, (1 << 64) - 1)), "reach further"),
        (tensor_pb2.ValueHeader(total_bytes=8), "the tensors have"),
        (tensor_pb2.ValueHeader(squared_norms=[-1.0]), "squared norm"),
        (tensor_pb2.ValueHeader(squared_norms=[1.0] * 99), "99 squared norms"),
    ],
)
def test_a_header_that_cannot_be_true_takes_no_memory(wrong: tensor_pb2.ValueHeader, why: str) -> None:
    assert why in header_problem(wrong)
    with pytest.raises(ValueError, match=why):
        Assembler(wrong)


def test_a_header_of_a_large_value_takes_no_memory_before_its_bytes_come() -> None:
    """As much as the machine has: page by page, when something is written there."""
    half = MOST_BYTES // 2
    before = _resident()
    assembler = Assembler(header("uint8", (half,), half))
    assert not assembler.complete
    assert _resident() - before < 1 << 26


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def key(kind: Kind = Kind.REDUCED, **other: int) -> Key:
    return Key(0, 5, 0, kind, 1, 1)._replace(**other)  # type: ignore[arg-type]


GRADIENT = header_of(Value((("grad.weight", torch.zeros(3, 3)), ("grad.bias", torch.zeros(3)))))
ONE = header_of(Value.activation(torch.zeros(2), None))


def test_headers_are_looked_at_once_unless_they_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer may send other headers all the time, each of which is as long as a message may be."""
    looked_at: list[int] = []

    def looks(header: tensor_pb2.ValueHeader) -> str:
        looked_at.append(len(header.tensors))
        return header_problem(header)

    monkeypatch.setattr(bounds, "header_problem", looks)
    longest = header(total=0, name="n" * (bounds.LONGEST_KEPT + 1))
    for _ in range(2):
        assert "the tensors have" in bounds.tensor_problem(key(Kind.GRADIENT), longest, RUN)
    assert len(looked_at) == 2
    for number in range(2):  # microbatches differ in the digest alone; this shape is of no other test
        of_another = sealed(Value.activation(torch.full((2, 3, 4), number), None))
        assert bounds.tensor_problem(key(Kind.ACTIVATION), of_another, RUN) == ""
    assert len(looked_at) == 3


def test_what_nodes_send_is_taken() -> None:
    last = header_of(Value((("grad.weight", torch.zeros(3, 3)),), (1.0,), (1.0, math.nan, 2.0, math.inf)))
    shipped = header_of(Value((("1.weight", torch.zeros(3, 3)),)))
    assert bounds.tensor_problem(key(), GRADIENT, RUN) == ""
    assert bounds.tensor_problem(key(index=3), last, RUN) == "", "a loss that is no number is the job's fault"
    assert bounds.tensor_problem(key(Kind.ACTIVATION), ONE, RUN) == ""
    assert bounds.tensor_problem(key(Kind.GRADIENT), header_of(Value(())), RUN) == ""
    assert bounds.tensor_problem(key(Kind.ACCUMULATED), shipped, RUN) == ""
    state = header_of(
        Value(
            (
                ("parameter.weight", torch.zeros(3, 3)),
                ("parameter.bias", torch.zeros(3)),
                ("optimizer.0.x", torch.zeros(7)),
            )
        )
    )
    assert bounds.fetched_problem(stage_pb2.FetchResponse(layer=2, version=5, header=state), [1, 2], RUN) == ""


@pytest.mark.parametrize(
    ("where", "what"),
    [
        (key(step=STEPS), GRADIENT),
        (key(stage=4), GRADIENT),
        (key(index=4), GRADIENT),
        (key(pipeline=1), GRADIENT),
        (key(Kind.PARTIAL), GRADIENT),
        (key(Kind.ACTIVATION, index=MICROBATCHES), ONE),
        (key(Kind.ACTIVATION), GRADIENT),  # a stage takes one tensor: two ended its compute thread
        (key(Kind.ACTIVATION), header_of(Value(()))),
        (key(Kind.ACTIVATION), header_of(Value.single(torch.zeros(2)))),  # without a target
        (key(), ONE),
        (key(), header("float64", (3, 3), 72, "grad.weight")),
        (key(), header("float32", (9,), 36, "grad.weight")),
        (key(), header_of(Value((("grad.bias", torch.zeros(3)), ("grad.bias", torch.zeros(3)))))),
        (key(), header_of(Value((), tallies=(1.0,)))),
        (key(index=3), header_of(Value((), tallies=(1.0,)))),
        (key(Kind.ACCUMULATED), header_of(Value((("1.weight", torch.zeros(3)),)))),
    ],
)
def test_a_tensor_that_no_node_sends_is_refused_by_its_key_and_header(where: Key, what: tensor_pb2.ValueHeader) -> None:
    assert bounds.tensor_problem(where, what, RUN)


def test_only_a_tied_layer_adds_to_the_bucket_of_another() -> None:
    tied = replace(RUN, ties=(Tie(1, 3, (("weight", "weight"),)),))
    lent = header_of(Value((("grad.weight", torch.zeros(3, 3)),)))
    assert bounds.tensor_problem(key(Kind.PARTIAL, end=1, use=3), lent, tied) == ""
    for other in (key(Kind.PARTIAL, end=1, use=2), key(Kind.PARTIAL, end=1, use=3, index=2), key(use=3)):
        assert "adds nothing" in bounds.tensor_problem(other, lent, tied)
    assert "adds nothing" in bounds.tensor_problem(key(Kind.PARTIAL, end=1, use=3), lent, RUN)

    def answer(bucket: int, use: int) -> stage_pb2.DeliverResponse:
        cover = stage_pb2.Cover(bucket=bucket, use=use, pipelines=[0])
        return stage_pb2.DeliverResponse(synced=stage_pb2.Synced(covers=[cover]))

    assert bounds.answer_problem(answer(1, 3), [], tied) == ""
    assert bounds.answer_problem(answer(1, 2), [], tied)
    assert bounds.answer_problem(answer(2, 3), [], tied)


@pytest.mark.parametrize(
    "hello",
    [
        stage_pb2.Hello(node="../n1", incarnation=1),
        stage_pb2.Hello(node="n" * 65, incarnation=1),
        stage_pb2.Hello(node="", incarnation=1),
        stage_pb2.Hello(node="n1", incarnation=1 << 63),
        stage_pb2.Hello(node="n1", term=1 << 40),
        stage_pb2.Hello(node="n1", term=5000),  # the node would leave its coordinator for one that nobody is
        stage_pb2.Hello(node="n1", term=1, generation=1 << 63),
    ],
)
def test_a_hello_that_no_peer_says_is_refused(hello: stage_pb2.Hello) -> None:
    assert bounds.hello_problem(hello, TERM)
    assert bounds.hello_problem(stage_pb2.Hello(node="n1", incarnation=1, term=2, generation=9), TERM) == ""


def test_answers_and_requests_are_held_against_the_run() -> None:
    nothing = stage_pb2.DeliverResponse()
    assert bounds.answer_problem(nothing, [key()], RUN) == ""
    assert bounds.answer_problem(nothing, [key(step=STEPS - 1)], RUN) == "", "nobody waits for a node being seeded"
    assert bounds.answer_problem(nothing, [key(step=STEPS)], RUN)
    assert bounds.answer_problem(stage_pb2.DeliverResponse(free_slots=[16]), [], RUN)
    synced = stage_pb2.Synced(committed=STEPS + 1)
    assert bounds.answer_problem(stage_pb2.DeliverResponse(synced=synced), [], RUN)
    assert bounds.fetch_problem([0, 3], 4) == ""
    assert bounds.fetch_problem([4], 4)
    assert bounds.fetch_problem([0] * 1000, 4)
    whole = header_of(Value((("parameter.weight", torch.zeros(3, 3)), ("parameter.bias", torch.zeros(3)))))
    assert bounds.fetched_problem(stage_pb2.FetchResponse(layer=2, header=whole), [1], RUN)
    assert bounds.fetched_problem(stage_pb2.FetchResponse(layer=2, version=99, header=whole), [2], RUN)
    half = header_of(Value((("parameter.weight", torch.zeros(3, 3)),)))
    assert "lacks the parameter bias" in bounds.fetched_problem(stage_pb2.FetchResponse(layer=2, header=half), [2], RUN)


def test_a_slot_is_given_back_once() -> None:
    """Twice, and two pieces would lie in one slot: the first is read as the second."""
    slots = Slots()
    slots.opened()
    slot = slots.put([memoryview(bytes(1 << 15))])
    assert slot is not None
    slots.give_back([slot])
    with pytest.raises(ValueError, match="was not in use"):
        slots.give_back([slot])
    slots.close()


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
    assert bounds.order_problem_of(pb.AttendResponse(plan=plan_to_proto(wrong)), RUN)


def test_orders_are_held_against_the_run() -> None:
    assert bounds.order_problem_of(pb.AttendResponse(commit=pb.Commit(step=4, scale=1.0, loss=math.nan)), RUN) == ""
    assert (
        bounds.order_problem_of(pb.AttendResponse(commit=pb.Commit(step=4, scale=1.0, evaluated=[math.nan])), RUN) == ""
    )
    more = pb.Commit(step=4, scale=1.0, evaluated=[1.0, 2.0])  # of a job without metrics
    for commit in (pb.Commit(step=STEPS), pb.Commit(step=4, scale=math.nan), pb.Commit(step=4, scale=-1.0), more):
        assert bounds.order_problem_of(pb.AttendResponse(commit=commit), RUN)
    assert bounds.order_problem_of(pb.AttendResponse(die=pb.Die(at="nowhere")), RUN)
    assert bounds.welcome_problem(pb.Welcome(heartbeat_seconds=math.nan))
    assert bounds.welcome_problem(pb.Welcome(heartbeat_seconds=1e-9))


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
    assert coordinator_bounds.problem(state, request_)


def test_the_same_is_refused_as_long_as_the_layers_are_not_known() -> None:
    fresh = begin(Settings(stages=2, microbatches=MICROBATCHES, steps=STEPS))
    far = pb.AttendRequest(caught_up=pb.CaughtUp(end_layer=(1 << 32) - 1))
    assert coordinator_bounds.problem(fresh, far)


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
        assert coordinator_bounds.problem(state, request) == ""
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
