"""The hand-made half of the wire format, held against protobuf's own code both ways."""

from contextlib import suppress

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from culm.protos import stage_pb2, tensor_pb2
from culm.stage_server.streams.plane import decode, encode, encode_chunk, read_varint, varint

SIZES = st.one_of(st.integers(0, 300), st.sampled_from([127, 128, 16383, 16384, 1 << 20]))


def chunk(step: int = 3, offset: int = 0) -> tensor_pb2.Chunk:
    made = tensor_pb2.Chunk(key=tensor_pb2.Key(era=1, step=step), offset=offset, generation=7, term=2)
    if offset == 0:
        made.header.tensors.add(name="output", dtype="float32", shape=[2, 3])
    return made


@given(sizes=st.lists(SIZES, max_size=4), step=st.integers(0, 2**63), offset=st.integers(0, 2**63))
def test_protobuf_reads_what_is_joined_by_hand(sizes: list[int], step: int, offset: int) -> None:
    parts = [bytes([i % 251]) * size for i, size in enumerate(sizes)]
    data = encode_chunk([memoryview(part) for part in parts], chunk(step, offset))
    request = stage_pb2.DeliverRequest.FromString(data)
    assert request.chunk.payload == b"".join(parts)
    request.chunk.ClearField("payload")
    assert request.chunk == chunk(step, offset)


@given(size=SIZES, step=st.integers(0, 2**63), offset=st.integers(0, 2**63))
def test_what_protobuf_wrote_is_cut_by_hand(size: int, step: int, offset: int) -> None:
    whole = chunk(step, offset)
    whole.payload = b"\x5a" * size
    received = decode(stage_pb2.DeliverRequest(chunk=whole).SerializeToString())
    assert received.chunk is not None
    assert bytes(received.payload) == whole.payload
    received.chunk.ClearField("payload")
    assert received.chunk == chunk(step, offset)


HELLO = stage_pb2.DeliverRequest(hello=stage_pb2.Hello(node="n0"))
END = stage_pb2.DeliverRequest(end=stage_pb2.End())


@pytest.mark.parametrize("request_", [HELLO, END])
def test_other_requests_are_protobufs_own(request_: stage_pb2.DeliverRequest) -> None:
    received = decode(encode(request_))
    assert received.request == request_
    assert received.chunk is None


@given(data=st.binary(max_size=64))
def test_nonsense_is_an_error_and_no_crash(data: bytes) -> None:
    with suppress(DecodeError, ValueError):
        decode(data)


@given(number=st.integers(0, 2**64 - 1))
def test_numbers_come_back(number: int) -> None:
    data = varint(number)
    assert read_varint(memoryview(data), 0) == (number, len(data))


def test_a_number_longer_than_64_bits_is_refused_without_being_read() -> None:
    with pytest.raises(ValueError, match="does not end"):
        read_varint(memoryview(b"\xff" * (1 << 20)), 0)
