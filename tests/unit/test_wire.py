"""Values survive the wire bit for bit."""

import pytest
import torch

from culm.pipeline.tensors.values import Value
from culm.pipeline.tensors.wire import Assembler, chunks, header_of

DTYPES = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
]


def through_the_wire(value: Value, chunk_bytes: int) -> Value:
    assembler = Assembler(header_of(value))
    for offset, payload in chunks(value, chunk_bytes):
        assembler.add(offset, b"".join(payload))
    assert assembler.complete
    return assembler.value()


@pytest.mark.parametrize("chunk_bytes", [7, 64, 1 << 20])
def test_every_dtype_and_shape(chunk_bytes: int) -> None:
    shapes = [(), (0,), (3,), (2, 5), (4, 1, 3)]
    tensors = tuple((f"{dtype}{shape}", (torch.rand(shape) * 100).to(dtype)) for dtype in DTYPES for shape in shapes)
    sent = Value(tensors, (1.25, 2.0), (0.1, 0.2))
    got = through_the_wire(sent, chunk_bytes)
    assert (got.squared_norms, got.tallies) == ((1.25, 2.0), (0.1, 0.2))
    for (name, a), (other, b) in zip(sent.tensors, got.tensors, strict=True):
        assert (name, a.dtype, a.shape) == (other, b.dtype, b.shape)
        assert torch.equal(a, b), name


def test_a_transposed_tensor_arrives_as_it_looks() -> None:
    tensor = torch.arange(6.0).reshape(2, 3).T
    assert torch.equal(through_the_wire(Value.single(tensor), 5).tensor(), tensor)


def test_nothing_is_a_value_too() -> None:
    assert through_the_wire(Value(()), 64).tensors == ()


def test_a_piece_out_of_order_is_refused() -> None:
    assembler = Assembler(header_of(Value.single(torch.zeros(4))))
    with pytest.raises(ValueError, match="does not follow"):
        assembler.add(4, b"1234")


def test_a_header_that_is_known_serves_the_next_value_of_that_shape_and_no_other() -> None:
    first = header_of(Value.single(torch.zeros(2, 3)))
    with_facts = header_of(Value((("output", torch.zeros(2, 3)),), squared_norms=(2.0,), tallies=(1.0,)))
    assert (list(with_facts.squared_norms), list(with_facts.tallies)) == ([2.0], [1.0])
    again = header_of(Value.single(torch.ones(2, 3)))
    assert (again, list(again.squared_norms), list(again.tallies)) == (first, [], [])
    assert header_of(Value.single(torch.zeros(3, 2))).tensors[0].shape == [3, 2]
