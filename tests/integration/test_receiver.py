"""A receiver that is sent what cannot be read: it ends the stream, says whose it was, and takes the next one."""

import queue
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
import torch

from culm.pipeline.keys import Key, Kind
from culm.pipeline.messages import key_to_proto
from culm.pipeline.plan import PlanOrder
from culm.pipeline.rpc.channel import server_options
from culm.pipeline.tensors.values import Value
from culm.pipeline.tensors.wire import chunks, header_of
from culm.protos import stage_pb2, tensor_pb2
from culm.stage_server.compute.loan import Loan
from culm.stage_server.streams.plane import deliver, encode
from culm.stage_server.streams.receiver import Receiver
from tests.headers import sealed

PATIENCE = 30.0
KEY = Key(0, 0, 0, Kind.ACTIVATION, 0, 0)
SPEC = tensor_pb2.TensorSpec(name="", dtype="float32", shape=[2])


class Taker:
    """Takes what comes."""

    incarnation = 1

    def __init__(self) -> None:
        self.heard: queue.SimpleQueue[str | Key] = queue.SimpleQueue()
        self.hellos: queue.SimpleQueue[PlanOrder] = queue.SimpleQueue()
        self.receiver = Receiver(self)

    def heard_hello(self, peer: str, incarnation: int, order: PlanOrder) -> None:
        self.hellos.put(order)

    def receiving(self, key: Key) -> None: ...

    def received(self, peer: str, count: int) -> None: ...

    def deliver(self, peer: str, incarnation: int, order: PlanOrder, key: Key, value: Value) -> None:
        self.heard.put(key)

    def sender_lost(self, peer: str, incarnation: int, why: str) -> None:
        self.heard.put(f"lost {peer}")

    def lend(self, layers: list[int], era: int) -> Iterator[tuple[int, int, Loan]]:
        yield from ()

    def broken(self, error: BaseException) -> None:
        raise error


@pytest.fixture
def taker() -> Taker:
    return Taker()


@pytest.fixture
def channel(taker: Taker) -> Iterator[grpc.Channel]:
    server = grpc.server(ThreadPoolExecutor(max_workers=8), options=server_options())
    taker.receiver.serve(server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel
    server.stop(None)


def sends(channel: grpc.Channel, *pieces: tensor_pb2.Chunk) -> list[stage_pb2.DeliverResponse]:
    """All answers to a hello and these pieces; the sender waits for ever afterwards."""
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    requests.put(encode(stage_pb2.DeliverRequest(hello=stage_pb2.Hello(node="n0", incarnation=1))))
    for piece in pieces:
        requests.put(encode(stage_pb2.DeliverRequest(chunk=piece)))
    return list(deliver(channel, iter(requests.get, b"")))


@pytest.mark.parametrize(
    "piece",
    [
        tensor_pb2.Chunk(payload=bytes(8)),
        tensor_pb2.Chunk(header=tensor_pb2.ValueHeader(tensors=[SPEC], total_bytes=8), offset=4, payload=bytes(4)),
        tensor_pb2.Chunk(header=tensor_pb2.ValueHeader(tensors=[SPEC], total_bytes=8), payload=bytes(9)),
        tensor_pb2.Chunk(
            header=tensor_pb2.ValueHeader(tensors=[SPEC], total_bytes=8), slot=tensor_pb2.Slot(number=0, size=8)
        ),
        tensor_pb2.Chunk(
            header=tensor_pb2.ValueHeader(tensors=[tensor_pb2.TensorSpec(dtype="float33", shape=[2])], total_bytes=8),
            payload=bytes(8),
        ),
    ],
    ids=["no header", "a gap", "too long", "no such memory", "no such type"],
)
def test_what_cannot_be_read_ends_the_stream_and_the_next_one_is_taken(
    piece: tensor_pb2.Chunk, taker: Taker, channel: grpc.Channel
) -> None:
    piece.key.CopyFrom(key_to_proto(KEY))
    with pytest.raises(grpc.RpcError) as refused:
        sends(channel, piece)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    whole = Value.single(torch.ones(2))
    (_, payload), *_ = chunks(whole)
    good = tensor_pb2.Chunk(key=key_to_proto(KEY), header=header_of(whole), payload=b"".join(payload))
    with pytest.raises(grpc.RpcError):
        sends(channel, good, piece)
    assert taker.heard.get(timeout=PATIENCE) == KEY
    assert taker.heard.empty(), "what no node sends says nothing about the node that it names"


def test_a_tensor_that_was_changed_on_the_way_counts_as_a_broken_stream(taker: Taker, channel: grpc.Channel) -> None:
    """It is not acknowledged, so the next stream brings it again."""
    whole = Value.single(torch.ones(2))
    changed = tensor_pb2.Chunk(key=key_to_proto(KEY), header=sealed(whole), payload=b"".join(next(chunks(whole))[1]))
    changed.payload = bytes([changed.payload[0] ^ 1]) + changed.payload[1:]
    assert not any(answer.acknowledged for answer in sends(channel, changed))
    assert taker.heard.get(timeout=PATIENCE) == "lost n0"
    assert taker.heard.empty()


def test_answers_go_to_the_newest_stream_though_an_older_one_says_hello_again(
    channel: grpc.Channel, taker: Taker
) -> None:
    """The Hello of a new plan was still on its way on a stream that its sender had given up."""

    def hello(generation: int) -> bytes:
        said = stage_pb2.Hello(node="n0", incarnation=1, generation=generation)
        return encode(stage_pb2.DeliverRequest(hello=said))

    older: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    newer: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    streams = []
    for requests, generation in ((older, 1), (newer, 2)):
        requests.put(hello(generation))
        streams.append(deliver(channel, iter(requests.get, b"")))
        assert taker.hellos.get(timeout=PATIENCE) == (0, generation)
    older.put(hello(3))
    assert taker.hellos.get(timeout=PATIENCE) == (0, 3)
    taker.receiver.acknowledge("n0", KEY)
    with ThreadPoolExecutor(max_workers=1) as beside:
        answer = beside.submit(next, streams[1])
        try:
            assert answer.result(timeout=PATIENCE).acknowledged
        finally:
            older.put(b"")
            newer.put(b"")
