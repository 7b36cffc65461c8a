"""A sender over a stream that breaks though its peer lives: nothing that is sent afterwards is lost."""

import queue
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import torch

from pipeline.channel import server_options
from pipeline.keys import Key, Kind
from pipeline.messages import key_from_proto
from pipeline.plan import Member, PlanOrder
from pipeline.values import Value
from protos import stage_pb2
from protos.stage_pb2_grpc import StageServicer, add_StageServicer_to_server
from stage_server.faults import Faults
from stage_server.sender import Sender

PATIENCE = 30.0
BREAKS = 3


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


class Giver:
    """Has a value for every key; nothing waits from before."""

    def __init__(self) -> None:
        self.missed: queue.SimpleQueue[str] = queue.SimpleQueue()

    def greeting(self) -> stage_pb2.Hello:
        return stage_pb2.Hello(node="n0", incarnation=1)

    def outgoing(self, key: Key, peer: Member) -> tuple[Value, PlanOrder] | None:
        return Value((("x", torch.ones(1)),)), (1, 1)

    def unacknowledged(self, peer: Member) -> list[Key]:
        return []

    def acknowledged(self, peer: Member, keys: list[Key]) -> None: ...

    def synced(self, peer: Member, order: PlanOrder, era: int, version: int) -> None: ...

    def sent(self, peer: Member, count: int) -> None: ...

    def went(self, count: int, seconds: float) -> None: ...

    def peer_lost(self, peer: Member, why: str) -> None:
        self.missed.put(why)


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
