"""A sender and a receiver of one machine: everything arrives in order, and an end is told, by gRPC and by a socket."""

import queue
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
import torch

from culm.pipeline.keys import Key, Kind
from culm.pipeline.plan import Member, PlanOrder
from culm.pipeline.rpc.channel import server_options
from culm.pipeline.tensors.values import Value
from culm.protos import stage_pb2
from culm.stage_server.compute.loan import Loan
from culm.stage_server.faults import Faults
from culm.stage_server.one_machine.local_streams import listen
from culm.stage_server.one_machine.slots import LEAST
from culm.stage_server.streams.receiver import Receiver
from culm.stage_server.streams.sender import Sender
from culm.stage_server.worker.effects import Standing

PATIENCE = 30.0
ORDER = (1, 1)


class Taker:
    """Takes what comes and acknowledges it, as a node does."""

    incarnation = 7

    def __init__(self) -> None:
        self.heard: queue.SimpleQueue[Key | str] = queue.SimpleQueue()
        self.values: dict[Key, Value] = {}
        self.receiver = Receiver(self)

    def heard_hello(self, peer: str, incarnation: int, order: PlanOrder) -> None:
        self.heard.put("hello")
        self.receiver.answer_hello(peer, Standing(order=order, era=0, committed=0))

    def receiving(self, key: Key) -> None: ...

    def received(self, peer: str, count: int) -> None: ...

    def deliver(self, peer: str, incarnation: int, order: PlanOrder, key: Key, value: Value) -> None:
        self.values[key] = value
        self.heard.put(key)
        self.receiver.acknowledge(peer, key)

    def sender_lost(self, peer: str, incarnation: int, why: str) -> None:
        self.heard.put(f"lost {peer}")

    def lend(self, layers: list[int], era: int) -> Iterator[tuple[int, int, Loan]]:
        yield from ()

    def broken(self, error: BaseException) -> None:
        raise error


class Giver:
    """Has a tensor for every key: its index, as often as there are bytes in a slot, or twice."""

    def __init__(self) -> None:
        self.acknowledged_keys: queue.SimpleQueue[Key] = queue.SimpleQueue()
        self.heard: queue.SimpleQueue[str] = queue.SimpleQueue()

    @staticmethod
    def value(key: Key) -> torch.Tensor:
        return torch.full((2 if key.index % 2 else LEAST,), float(key.index))

    def greeting(self) -> stage_pb2.Hello:
        return stage_pb2.Hello(node="n0", incarnation=1, term=1, generation=1)

    def outgoing(self, key: Key, peer: Member) -> tuple[Value, PlanOrder] | None:
        return Value.single(self.value(key)), ORDER

    def unacknowledged(self, peer: Member) -> list[Key]:
        return []

    def acknowledged(self, peer: Member, keys: list[Key]) -> None:
        for key in keys:
            self.acknowledged_keys.put(key)

    def synced(self, peer: Member, standing: Standing) -> None:
        self.heard.put("synced")

    def sent(self, peer: Member, count: int) -> None: ...

    def went(self, count: int, seconds: float) -> None: ...

    def peer_lost(self, peer: Member, why: str) -> None:
        self.heard.put("lost")

    def broken(self, error: BaseException) -> None:
        raise error


Ends = tuple[Taker, Giver, Sender, Callable[[], object]]


@pytest.fixture
def taker() -> Taker:
    return Taker()


@pytest.fixture(params=["gRPC", "socket"])
def server(taker: Taker, request: pytest.FixtureRequest) -> Iterator[tuple[str, Callable[[], object]]]:
    """The address, and what ends every stream there at once. Over a socket nothing listens on the port."""
    server = grpc.server(ThreadPoolExecutor(max_workers=8), options=server_options())
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    taker.receiver.serve(server)
    if request.param == "socket":
        local = listen(address, taker.receiver.serve_locally)
        assert local is not None
        yield address, local.close
        local.close()
    else:
        server.start()
        yield address, lambda: server.stop(None)
    server.stop(None)


@pytest.fixture
def ends(taker: Taker, server: tuple[str, Callable[[], object]]) -> Iterator[Ends]:
    giver = Giver()
    sender = Sender(Member("n1", 7, server[0]), giver, Faults(()), one_machine=True)
    assert taker.heard.get(timeout=PATIENCE) == "hello"
    assert giver.heard.get(timeout=PATIENCE) == "synced"
    yield taker, giver, sender, server[1]
    sender.close()


def keys(first: int, end: int) -> list[Key]:
    return [Key(0, 0, 0, Kind.ACTIVATION, 0, m) for m in range(first, end)]


def test_large_and_small_arrive_in_order_and_are_acknowledged_in_order(ends: Ends) -> None:
    taker, giver, sender, _ = ends
    wanted = keys(0, 200)
    for key in wanted:
        sender.send(key)
        if key.index % 50 == 20:
            sender.say_hello()
    heard = [taker.heard.get(timeout=PATIENCE) for _ in range(204)]
    assert [key for key in heard if isinstance(key, Key)] == wanted
    assert [heard[i - 1] for i, word in enumerate(heard) if word == "hello"] == [wanted[i] for i in (20, 70, 120, 170)]
    assert [giver.acknowledged_keys.get(timeout=PATIENCE) for _ in wanted] == wanted
    assert all(torch.equal(taker.values[key].tensor(), giver.value(key)) for key in wanted)
    assert giver.heard.get(timeout=PATIENCE) == "synced"


def test_what_another_thread_acknowledges_is_told_though_nothing_comes(ends: Ends) -> None:
    taker, giver, sender, _ = ends
    first, later = keys(0, 2)
    sender.send(first)
    assert giver.acknowledged_keys.get(timeout=PATIENCE) == first
    taker.receiver.acknowledge("n0", later)
    assert giver.acknowledged_keys.get(timeout=PATIENCE) == later


def test_a_stream_that_is_ended_on_purpose_loses_nobody(ends: Ends) -> None:
    taker, giver, sender, _ = ends
    (key,) = keys(0, 1)
    sender.send(key)
    sender.close()
    assert taker.heard.get(timeout=PATIENCE) == key
    assert giver.acknowledged_keys.get(timeout=PATIENCE) == key
    sender.join(PATIENCE)
    assert taker.heard.empty()
    assert giver.heard.empty()


def test_when_the_stream_breaks_both_ends_are_told(ends: Ends) -> None:
    taker, giver, sender, stop = ends
    (key,) = keys(0, 1)
    sender.send(key)
    assert taker.heard.get(timeout=PATIENCE) == key
    stop()
    assert taker.heard.get(timeout=PATIENCE) == "lost n0"
    assert giver.heard.get(timeout=PATIENCE) == "lost"
