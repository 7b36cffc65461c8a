"""Two processes that pass tensors: ``python -m benchmarks.transport_peers WAY MIB COUNT`` prints what it took.

Ways: ``culm``, as nodes of one machine pass them; ``stream``, as nodes of two machines; ``gloo``.
"""

import json
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import grpc
import torch
import torch.distributed as dist
from torch import multiprocessing

from culm.local.ports import free_port
from culm.pipeline.keys import Key, Kind
from culm.pipeline.plan import Member, PlanOrder
from culm.pipeline.rpc.channel import server_options
from culm.pipeline.tensors.values import Value
from culm.protos import stage_pb2
from culm.stage_server.compute.loan import Loan
from culm.stage_server.faults import Faults
from culm.stage_server.streams.receiver import Receiver
from culm.stage_server.streams.sender import Sender
from culm.stage_server.worker.effects import Standing

WARM = 8  # tensors that do not count


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Taker:
    """Takes tensors and drops them, and acknowledges each as a node does."""

    incarnation = 1

    def __init__(self, count: int) -> None:
        self._count = count
        self.warm, self.done = threading.Event(), threading.Event()
        self.receiver = Receiver(self)

    def heard_hello(self, peer: str, incarnation: int, order: PlanOrder) -> None: ...

    def receiving(self, key: Key) -> None: ...

    def received(self, peer: str, count: int) -> None: ...

    def deliver(self, peer: str, incarnation: int, order: PlanOrder, key: Key, value: Value) -> None:
        self.receiver.acknowledge(peer, key)
        if key.index + 1 == WARM:
            self.warm.set()
        if key.index + 1 == self._count:
            self.done.set()

    def sender_lost(self, peer: str, incarnation: int, why: str) -> None: ...

    def lend(self, layers: list[int], era: int) -> Iterator[tuple[int, int, Loan]]:
        yield from ()

    def broken(self, error: BaseException) -> None:
        raise error


class Giver:
    """Has the tensor for every key."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._value = Value.single(tensor)
        self.acknowledgements: set[int] = set()
        self.changed = threading.Condition()

    def greeting(self) -> stage_pb2.Hello:
        return stage_pb2.Hello(node="n0", incarnation=1)

    def outgoing(self, key: Key, peer: Member) -> tuple[Value, PlanOrder] | None:
        return self._value, (1, 1)

    def unacknowledged(self, peer: Member) -> list[Key]:
        return []

    def acknowledged(self, peer: Member, keys: list[Key]) -> None:
        with self.changed:
            self.acknowledgements |= {key.index for key in keys}
            self.changed.notify_all()

    def synced(self, peer: Member, standing: Standing) -> None: ...

    def peer_lost(self, peer: Member, why: str) -> None: ...

    def sent(self, peer: Member, count: int) -> None: ...

    def went(self, count: int, seconds: float) -> None: ...

    def broken(self, error: BaseException) -> None:
        raise error


def take(pipe: "Connection[Any, Any]", count: int) -> None:
    torch.set_num_threads(1)
    taker = Taker(count + WARM)
    server = grpc.server(ThreadPoolExecutor(max_workers=8), options=server_options())
    port = server.add_insecure_port("127.0.0.1:0")
    taker.receiver.serve(server)
    server.start()
    pipe.send(port)
    taker.warm.wait()
    began = cpu()
    taker.done.wait()
    pipe.send(cpu() - began)
    pipe.recv()
    server.stop(None)


def culm(mib: int, count: int, one_machine: bool = True) -> dict[str, float]:
    """Without ``one_machine`` as between machines: every byte goes over the stream."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=take, args=(theirs, count))
    process.start()
    giver = Giver(torch.ones(mib << 18))
    sender = Sender(Member("n1", 1, f"127.0.0.1:{ours.recv()}"), giver, Faults(()), one_machine)

    for index in range(WARM):
        sender.send(Key(0, 0, 0, Kind.ACTIVATION, 0, index))
    with giver.changed:
        giver.changed.wait_for(lambda: WARM - 1 in giver.acknowledgements)
    began, used = time.perf_counter(), cpu()
    for index in range(WARM, WARM + count):
        sender.send(Key(0, 0, 0, Kind.ACTIVATION, 0, index))
    theirs_used = ours.recv()  # once all have arrived: acknowledgements of the last ones may come later
    seconds, used = time.perf_counter() - began, cpu() - used + theirs_used
    ours.send("end")
    sender.close()
    process.join()
    return {"seconds": seconds, "cpu": used}


def gloo_rank(rank: int, mib: int, count: int, port: int, results: Any) -> None:
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=2)
    tensor = torch.ones(mib << 18)
    pass_one = (lambda: dist.send(tensor, 1)) if rank == 0 else (lambda: dist.recv(tensor, 0))
    for _ in range(WARM):
        pass_one()
    dist.barrier()
    began, used = time.perf_counter(), cpu()
    for _ in range(count):
        pass_one()
    dist.barrier()
    results.put((time.perf_counter() - began, cpu() - used))
    dist.destroy_process_group()


def gloo(mib: int, count: int) -> dict[str, float]:
    context = multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    port = free_port()
    ranks = [context.Process(target=gloo_rank, args=(rank, mib, count, port, results)) for rank in (0, 1)]
    for process in ranks:
        process.start()
    told = [results.get() for _ in ranks]
    for process in ranks:
        process.join()
    return {"seconds": max(seconds for seconds, _ in told), "cpu": sum(used for _, used in told)}


if __name__ == "__main__":
    way, mib, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    ways: dict[str, Callable[[int, int], dict[str, float]]]
    ways = {"culm": culm, "stream": partial(culm, one_machine=False), "gloo": gloo}
    print(json.dumps(ways[way](mib, count)))
