"""The Stage service on the wire: gRPC as it is, but protobuf never touches a tensor's bytes.

A chunk's payload is its message's first field. So it is joined in front of what protobuf has encoded of the rest, and
cut off before protobuf decodes the rest: the wire stays valid protobuf, which tests hold against the generated code.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from culm.protos import stage_pb2, tensor_pb2

SERVICE = "culm.v1.Stage"
CHUNK = 0x12  # tag of DeliverRequest.chunk: field 2, length-delimited
PAYLOAD = 0x0A  # tag of Chunk.payload: field 1, length-delimited
NOTHING = memoryview(b"")


@dataclass(frozen=True, slots=True)
class Received:
    """A DeliverRequest; a chunk's payload lies beside it, in the message's own memory."""

    request: stage_pb2.DeliverRequest
    chunk: tensor_pb2.Chunk | None = None
    payload: memoryview = NOTHING
    wrong: str = ""  # what is wrong with it, where it is no DeliverRequest at all


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def read_varint(data: memoryview, at: int) -> tuple[int, int]:
    """The number that begins there, and where it ends. Raises ValueError if it does not end."""
    number = shift = 0
    while at < len(data):
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
    raise ValueError("a number does not end")


def encode_chunk(payload: Sequence[memoryview], rest: tensor_pb2.Chunk) -> bytes:
    """A DeliverRequest with this chunk; ``rest`` is the chunk without its payload, which may be in several parts."""
    size = sum(map(len, payload))
    fields = rest.SerializeToString()
    head = bytes((PAYLOAD,)) + varint(size)
    return b"".join((bytes((CHUNK,)), varint(len(head) + size + len(fields)), head, *payload, fields))


def encode(request: stage_pb2.DeliverRequest) -> bytes:
    """A DeliverRequest that is no chunk."""
    return request.SerializeToString()


def decode(data: bytes) -> Received:
    """Any DeliverRequest. Raises protobuf's DecodeError, or ValueError, for what is none."""
    if len(data) > 2 and data[0] == CHUNK:
        view = memoryview(data)
        length, at = read_varint(view, 1)
        if at + length == len(data) and length and data[at] == PAYLOAD:
            size, at = read_varint(view, at + 1)
            if at + size > len(data):
                raise ValueError("a payload is longer than its message")
            return Received(EMPTY, tensor_pb2.Chunk.FromString(view[at + size :].tobytes()), view[at : at + size])
    request = stage_pb2.DeliverRequest.FromString(data)
    if request.HasField("chunk"):
        return Received(request, request.chunk, memoryview(request.chunk.payload))
    return Received(request)


EMPTY = stage_pb2.DeliverRequest()


def decode_any(data: bytes) -> Received:
    """Never raises: gRPC would write a traceback for every message that is none, whoever sends it."""
    try:
        return decode(data)
    except (DecodeError, ValueError, IndexError) as error:
        return Received(EMPTY, wrong=f"{len(data)} bytes that are no DeliverRequest ({error})")


def _fetch_request(data: bytes) -> stage_pb2.FetchRequest:
    """One that asks for nothing in place of what is none."""
    try:
        return stage_pb2.FetchRequest.FromString(data)
    except DecodeError:
        return stage_pb2.FetchRequest()


class DeliverCall(grpc.Call, Iterator[stage_pb2.DeliverResponse]):
    """A Deliver stream at its sender; the answers."""


def deliver(channel: grpc.Channel, requests: Iterable[bytes]) -> DeliverCall:
    """Opens a Deliver stream with encoded requests."""
    call: Any = channel.stream_stream(f"/{SERVICE}/Deliver", None, stage_pb2.DeliverResponse.FromString)
    answers: DeliverCall = call(iter(requests))
    return answers


def add_to_server(
    server: grpc.Server,
    deliver: Callable[[Iterator[Received], grpc.ServicerContext], Iterator[stage_pb2.DeliverResponse]],
    fetch: Callable[[stage_pb2.FetchRequest, grpc.ServicerContext], Iterator[stage_pb2.FetchResponse]],
) -> None:
    """Serves the Stage service by these two."""
    answer, piece = stage_pb2.DeliverResponse.SerializeToString, stage_pb2.FetchResponse.SerializeToString
    handlers: dict[str, Any] = {
        "Deliver": grpc.stream_stream_rpc_method_handler(deliver, decode_any, answer),
        "Fetch": grpc.unary_stream_rpc_method_handler(fetch, _fetch_request, piece),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
