"""What no peer of a run says is refused before anything is set aside for it (rule 18)."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from culm.pipeline.keys import Key, Kind
from culm.pipeline.tensors.tensor_bounds import MOST_BYTES
from culm.pipeline.tensors.tensor_bounds import problem as header_problem
from culm.pipeline.tensors.value_layout import LONGEST_KEPT
from culm.pipeline.tensors.values import Value
from culm.pipeline.tensors.wire import Assembler, header_of
from culm.pipeline.ties import Tie
from culm.pipeline.user_code.layer_shapes import LayerShapes
from culm.protos import stage_pb2, tensor_pb2
from culm.stage_server.one_machine.slots import Slots
from culm.stage_server.streams import stream_bounds as bounds
from culm.stage_server.streams.stream_bounds import RunShape
from tests.headers import sealed

STEPS, MICROBATCHES = 20, 4
LAYERS = tuple(LayerShapes.of(nn.Linear(3, 3)) for _ in range(4))
RUN = RunShape(pipelines=1, microbatches=MICROBATCHES, steps=STEPS, layers=LAYERS)
TERM = 1


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
    longest = header(total=0, name="n" * (LONGEST_KEPT + 1))
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
