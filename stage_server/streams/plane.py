"""The Stage service on the wire: gRPC as it is, but protobuf never touches a tensor's bytes.

A chunk's payload is its message's first field. So it is joined in front of what protobuf has encoded of the rest, and
cut off before protobuf decodes the rest: the wire stays valid protobuf, which tests hold against the generated code.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import grpc
from google.protobuf.message import DecodeError

from culm.pipeline.patience import Patience
from culm.pipeline.rpc.tls import open_channel
from culm.protos import stage_pb2, tensor_pb2
from culm.stage_server.one_machine.local_streams import LocalCall

# A DeliverRequest with a chunk, byte by byte as ``encode_chunk`` writes it (``protos/stage.proto``, ``tensor.proto``):
#
#     0x12  length  0x0A  size  payload ... key, offset, header, generation, term, slot
#     └─ DeliverRequest.chunk
#                   └─ Chunk.payload       └─ the other fields of Chunk, encoded by protobuf
#
# Generated code would copy the payload into a message and out of it again, on both sides. Here the sender joins the
# tensors' own memory into gRPC's bytes, once. The receiver gets a view of gRPC's bytes, and ``Assembler`` copies that
# once, into the tensor's memory.
#
# ``decode`` takes every other valid encoding too: fields in another order, a chunk without payload, a request with
# unknown fields. It leaves those to protobuf, which costs a copy and nothing else. So a sender that uses generated code
# is understood as well.

SERVICE = "culm.v1.Stage"
CHUNK = 0x12  # tag of DeliverRequest.chunk: field 2, length-delimited
PAYLOAD = 0x0A  # tag of Chunk.payload: field 1, length-delimited
LONGEST_VARINT = 10  # bytes, of 64 bits: without a bound a message full of 0xFF would take quadratic time
NOTHING = memoryview(b"")


class Received(NamedTuple):
    """A DeliverRequest; a chunk's payload lies beside it, in the message's own memory."""

    request: stage_pb2.DeliverRequest
    chunk: tensor_pb2.Chunk | None = None
    payload: memoryview = NOTHING  # keeps gRPC's whole message in memory for as long as somebody has it
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
    number = 0
    for place, byte in enumerate(data[at : at + LONGEST_VARINT]):
        number |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return number, at + place + 1
    raise ValueError("a number in it does not end")


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
                raise ValueError("its payload is longer than the message")
            return Received(EMPTY, tensor_pb2.Chunk.FromString(view[at + size :].tobytes()), view[at : at + size])
    request = stage_pb2.DeliverRequest.FromString(data)
    if request.HasField("chunk"):
        return Received(request, request.chunk, memoryview(request.chunk.payload))
    return Received(request)


EMPTY = stage_pb2.DeliverRequest()


def decode_any(data: bytes) -> Received:
    """Never raises: gRPC would log a traceback for each message that cannot be decoded, and anybody may send one."""
    try:
        return decode(data)
    except (DecodeError, ValueError, IndexError) as error:
        return Received(EMPTY, wrong=f"a message of {len(data)} bytes cannot be read as a DeliverRequest: {error}")


def _fetch_request(data: bytes) -> stage_pb2.FetchRequest:
    """A request that asks for no layer where the bytes are no FetchRequest; the caller gets an empty answer."""
    try:
        return stage_pb2.FetchRequest.FromString(data)
    except DecodeError:
        return stage_pb2.FetchRequest()


class DeliverCall(grpc.Call, Iterator[stage_pb2.DeliverResponse]):
    """A Deliver stream at its sender; the answers."""


def deliver(channel: grpc.Channel, requests: Iterable[bytes]) -> DeliverCall:
    """Opens a Deliver stream with encoded requests."""
    # No serializer: ``requests`` are bytes already. gRPC takes them on a thread of its own.
    call: Any = channel.stream_stream(f"/{SERVICE}/Deliver", None, stage_pb2.DeliverResponse.FromString)
    answers: DeliverCall = call(iter(requests))
    return answers


@dataclass(frozen=True, slots=True)
class Opened:
    """A Deliver stream to a node."""

    exchange: Callable[[Iterable[bytes]], Iterator[stage_pb2.DeliverResponse]]  # encoded requests in, answers out
    send_at_once: Callable[[bytes], bool] | None = None  # as ``LocalCall`` has it; None: the stream goes over gRPC


@contextmanager
def open_stream(address: str, one_machine: bool, patience: Patience) -> Iterator[Opened]:
    """``one_machine``: as ``Sender`` has it."""
    local = LocalCall.to(address) if one_machine else None
    if local is not None:
        with local:
            answers = partial(map, stage_pb2.DeliverResponse.FromString)
            yield Opened(lambda requests: answers(local.exchange(requests)), local.send_at_once)
    else:
        with open_channel(address, "stage", patience) as channel:
            yield Opened(partial(deliver, channel))


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
