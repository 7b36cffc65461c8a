"""A sender over a stream that breaks though its peer lives: nothing that is sent afterwards is lost."""

import os
import queue
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
import torch

from culm.pipeline.keys import Key, Kind
from culm.pipeline.messages import key_from_proto
from culm.pipeline.plan import Member, PlanOrder
from culm.pipeline.rpc.channel import server_options
from culm.pipeline.tensors.values import Value
from culm.pipeline.tensors.wire import CHUNK_BYTES
from culm.protos import stage_pb2
from culm.protos.stage_pb2_grpc import StageServicer, add_StageServicer_to_server
from culm.stage_server.faults import Faults
from culm.stage_server.one_machine.local_streams import Context, LocalServer
from culm.stage_server.one_machine.slots import SLOTS, SharedSlots
from culm.stage_server.streams.plane import decode_any
from culm.stage_server.streams.sender import Sender
from culm.stage_server.worker.effects import Standing

PATIENCE = 30.0
BREAKS = 3
REPEATS = 4
ATTEMPTS = 1000


class BreakingPeer(StageServicer):
    """Breaks the first streams right after their Hello, then takes what comes."""

    def __init__(self) -> None:
        self.hellos = 0
        self.heard: queue.SimpleQueue[str | Key] = queue.SimpleQueue()

    def Deliver(  # noqa: N802
        self, request_iterator: Iterator[stage_pb2.DeliverRequest], context: grpc.ServicerContext
    ) -> Iterator[stage_pb2.DeliverResponse]:
        for request in request_iterator:
            if request.HasField("hello"):
                self.hellos += 1
                if self.hellos <= BREAKS:
                    context.abort(grpc.StatusCode.UNAVAILABLE, "the link broke")
                self.heard.put("hello")
            elif request.HasField("chunk"):
                self.heard.put(key_from_proto(request.chunk.key))
        yield from ()

    def Fetch(  # noqa: N802
        self, request: stage_pb2.FetchRequest, context: grpc.ServicerContext
    ) -> Iterator[stage_pb2.FetchResponse]:
        yield from ()


class SharingPeer(StageServicer):
    """Opens what the first stream offers, never gives a slot back and breaks; the second stream's it cannot open."""

    def __init__(self) -> None:
        self.offers: list[stage_pb2.Memory] = []
        self.in_slots = bytearray()
        self.slots = 0
        self.on_the_stream: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def Deliver(  # noqa: N802
        self, request_iterator: Iterator[stage_pb2.DeliverRequest], context: grpc.ServicerContext
    ) -> Iterator[stage_pb2.DeliverResponse]:
        shared: SharedSlots | None = None
        for request in request_iterator:
            if request.HasField("hello"):
                self.offers.append(request.hello.memory)
                if len(self.offers) == 1:
                    shared = SharedSlots(request.hello.memory)
                    yield stage_pb2.DeliverResponse(incarnation=1, opened=True)
            elif len(self.offers) == 2:
                self.on_the_stream.put(request.chunk.payload)
            elif shared is not None:
                self._read_slot(shared, request)
            if self.slots == SLOTS and len(self.offers) == 1:
                context.abort(grpc.StatusCode.UNAVAILABLE, "the link broke")

    def _read_slot(self, shared: SharedSlots, request: stage_pb2.DeliverRequest) -> None:
        if request.chunk.HasField("slot"):
            assert request.chunk.payload == b""
            self.in_slots += shared.read(request.chunk.slot)
            self.slots += 1

    def Fetch(  # noqa: N802
        self, request: stage_pb2.FetchRequest, context: grpc.ServicerContext
    ) -> Iterator[stage_pb2.FetchResponse]:
        yield from ()


class Giver:
    """Has a value for every key; only what is in ``kept`` waits from before."""

    def __init__(self, value: torch.Tensor | None = None) -> None:
        self.missed: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.kept: list[Key] = []
        self.on: list[str] = []  # the threads that have sent pieces, in order
        self._value = Value.single(value if value is not None else torch.ones(1))

    def greeting(self) -> stage_pb2.Hello:
        return stage_pb2.Hello(node="n0", incarnation=1)

    def outgoing(self, key: Key, peer: Member) -> tuple[Value, PlanOrder] | None:
        return self._value, (1, 1)

    def unacknowledged(self, peer: Member) -> list[Key]:
        return self.kept

    def acknowledged(self, peer: Member, keys: list[Key]) -> None: ...

    def synced(self, peer: Member, standing: Standing) -> None: ...

    def sent(self, peer: Member, count: int) -> None:
        self.on.append(threading.current_thread().name)

    def went(self, count: int, seconds: float) -> None: ...

    def peer_lost(self, peer: Member, why: str) -> None:
        self.missed.put(why)

    def broken(self, error: BaseException) -> None:
        raise error


def test_what_is_sent_after_broken_streams_arrives_whole_and_in_order() -> None:
    server = grpc.server(ThreadPoolExecutor(max_workers=8), options=server_options())
    port = server.add_insecure_port("127.0.0.1:0")
    peer, giver = BreakingPeer(), Giver()
    add_StageServicer_to_server(peer, server)
    server.start()
    sender = Sender(Member("n1", 1, f"127.0.0.1:{port}"), giver, Faults(()))
    try:
        assert peer.heard.get(timeout=PATIENCE) == "hello"
        keys = [Key(0, 0, 0, Kind.ACTIVATION, 0, m) for m in range(8)]
        for key in keys:
            sender.send(key)
        assert [peer.heard.get(timeout=PATIENCE) for _ in keys] == keys
        assert [giver.missed.get(timeout=PATIENCE) for _ in range(BREAKS)] == (
            ["the stream to it broke: the link broke"] * BREAKS
        )
    finally:
        sender.close()
        server.stop(None)


def test_large_pieces_stay_off_the_stream_and_a_peer_that_holds_slots_back_stops_nothing() -> None:
    server = grpc.server(ThreadPoolExecutor(max_workers=8), options=server_options())
    port = server.add_insecure_port("127.0.0.1:0")
    tensor = torch.arange((SLOTS + 2) * CHUNK_BYTES // 8)
    whole = tensor.numpy().tobytes()
    peer, giver = SharingPeer(), Giver(tensor)
    add_StageServicer_to_server(peer, server)
    server.start()
    sender = Sender(Member("n1", 1, f"127.0.0.1:{port}"), giver, Faults(()), one_machine=True)
    try:
        key = Key(0, 0, 0, Kind.ACTIVATION, 0, 0)
        giver.kept.append(key)
        for _ in range(REPEATS):  # the first pieces may go before the sender hears that its memory is read
            sender.send(key)
        assert giver.missed.get(timeout=PATIENCE) == "the stream to it broke: the link broke"
        again = b"".join(peer.on_the_stream.get(timeout=PATIENCE) for _ in range(SLOTS + 2))
    finally:
        sender.close()
        server.stop(None)
    assert again == whole
    assert len(peer.in_slots) == SLOTS * CHUNK_BYTES
    assert bytes(peer.in_slots) in whole * (1 + REPEATS)
    first, second = peer.offers
    assert first.secret != second.secret


def test_where_no_memory_can_be_shared_the_stream_takes_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(name: str) -> int:
        raise PermissionError("memfd_create is forbidden")

    monkeypatch.setattr(os, "memfd_create", refused)
    server = grpc.server(ThreadPoolExecutor(max_workers=8), options=server_options())
    port = server.add_insecure_port("127.0.0.1:0")
    peer, giver = BreakingPeer(), Giver(torch.zeros(CHUNK_BYTES))
    add_StageServicer_to_server(peer, server)
    server.start()
    sender = Sender(Member("n1", 1, f"127.0.0.1:{port}"), giver, Faults(()), one_machine=True)
    try:
        assert peer.heard.get(timeout=PATIENCE) == "hello"
        key = Key(0, 0, 0, Kind.ACTIVATION, 0, 0)
        sender.send(key)
        assert [peer.heard.get(timeout=PATIENCE) for _ in range(4)] == [key] * 4
    finally:
        sender.close()
        server.stop(None)


class LocalPeer:
    """Takes what comes through a socket of this machine, once it is told to."""

    def __init__(self) -> None:
        self.reads = threading.Event()
        self.heard: queue.SimpleQueue[Key] = queue.SimpleQueue()

    def __call__(self, requests: Iterator[bytes], _: Context) -> Iterator[bytes]:
        self.reads.wait()
        for request in map(decode_any, requests):
            if request.chunk is not None:
                self.heard.put(key_from_proto(request.chunk.key))
        yield from ()


@pytest.fixture
def local() -> Iterator[tuple[LocalPeer, Member]]:
    peer, address = LocalPeer(), f"10.0.0.2:{os.getpid()}"
    server = LocalServer(address, peer)
    yield peer, Member("n1", 1, address)
    peer.reads.set()
    server.close()


def test_a_small_tensor_goes_on_the_thread_that_sends_it_where_nothing_is_before_it(
    local: tuple[LocalPeer, Member],
) -> None:
    (peer, member), giver = local, Giver()
    peer.reads.set()
    sender = Sender(member, giver, Faults(()), one_machine=True)
    try:
        mine = threading.current_thread().name
        for m in range(ATTEMPTS):  # the stream may still be opening
            sender.send(key := Key(0, 0, 0, Kind.ACTIVATION, 0, m))
            assert peer.heard.get(timeout=PATIENCE) == key
            if giver.on[m:] == [mine]:
                break
        else:
            pytest.fail("the request thread has sent every one")
        later = [Key(0, 1, 0, Kind.ACTIVATION, 0, m) for m in range(8)]
        for key in later:
            sender.send(key, later=key.index % 4 == 2)
        assert [peer.heard.get(timeout=PATIENCE) for _ in later] == later
        assert giver.missed.empty()
    finally:
        sender.close()


def test_a_peer_that_reads_nothing_keeps_nobody_waiting_and_gets_all_in_order(
    local: tuple[LocalPeer, Member],
) -> None:
    (peer, member), giver = local, Giver(torch.zeros(4096))
    sender = Sender(member, giver, Faults(()), one_machine=True)
    try:
        keys = [Key(0, 0, 0, Kind.ACTIVATION, 0, m) for m in range(200)]
        for key in keys:
            sender.send(key)
        peer.reads.set()
        assert [peer.heard.get(timeout=PATIENCE) for _ in keys] == keys
        assert giver.missed.empty()
    finally:
        sender.close()


class SlotPeer:
    """Takes what comes through a socket of this machine and through shared memory."""

    def __init__(self) -> None:
        self.gives_back = True
        self.heard: queue.SimpleQueue[tuple[Key, bytes, bool]] = queue.SimpleQueue()  # whether it lay in a slot

    def __call__(self, requests: Iterator[bytes], _: Context) -> Iterator[bytes]:
        for received in map(decode_any, requests):
            if (hello := received.request).HasField("hello"):
                slots = SharedSlots(hello.hello.memory)
                yield stage_pb2.DeliverResponse(opened=True).SerializeToString()
            elif (chunk := received.chunk) is not None:
                shared = chunk.HasField("slot")
                payload = slots.read(chunk.slot) if shared else received.payload
                self.heard.put((key_from_proto(chunk.key), bytes(payload), shared))
                if shared and self.gives_back:
                    yield stage_pb2.DeliverResponse(free_slots=[chunk.slot.number]).SerializeToString()


def test_a_tensor_goes_through_shared_memory_on_the_thread_that_sends_it_while_there_are_slots() -> None:
    peer, address = SlotPeer(), f"10.0.0.3:{os.getpid()}"
    server = LocalServer(address, peer)
    tensor = torch.arange(1 << 16)
    giver, whole = Giver(tensor), tensor.numpy().tobytes()
    sender = Sender(Member("n1", 1, address), giver, Faults(()), one_machine=True)
    try:
        mine = threading.current_thread().name
        for m in range(ATTEMPTS):  # the stream may still be opening
            sender.send(key := Key(0, 0, 0, Kind.ACTIVATION, 0, m))
            found = peer.heard.get(timeout=PATIENCE)
            assert found[:2] == (key, whole)
            if giver.on[m:] == [mine]:
                break
        else:
            pytest.fail("the request thread has sent every one")
        assert found[2], "it came over the stream"
        peer.gives_back = False
        later = [Key(0, 1, 0, Kind.ACTIVATION, 0, m) for m in range(SLOTS + 2)]
        for key in later:
            sender.send(key)  # with no slot left this does not wait
        assert [peer.heard.get(timeout=PATIENCE) for _ in range(SLOTS)] == [(key, whole, True) for key in later[:SLOTS]]
        assert giver.missed.empty()
    finally:
        sender.close()
        server.close()
