"""Nodes that attend a real coordinator and compute nothing, many on one event loop. See benchmarks.coordination."""

import asyncio
import gc
import random
import time
from typing import Any, Self

import grpc

from culm.pipeline.flow import peers_of
from culm.pipeline.plan_codec import plan_from_proto, whole
from culm.pipeline.rpc.channel import channel_options
from culm.pipeline.version import PROTOCOL_VERSION
from culm.protos import coordinator_pb2 as pb

BEAT_SECONDS = 1.0  # between two heartbeats of one node
BEATS_AT_ONCE = 20  # the heartbeats of all nodes are spread over their second in that many groups
PATIENCE = 60.0
LOSS, RATE = 0.5, 0.1  # of each microbatch, which the last stage reports; the learning rate is the step's
ATTEND = "/culm.v1.Coordinator/Attend"
# An order is the one field of AttendResponse that is set: its first byte tells which, by number and wire type.
PLAN, COMMIT = (pb.AttendResponse.DESCRIPTOR.fields_by_name[name].number << 3 | 2 for name in ("plan", "commit"))


class SimulatedNode:
    """One node's end of its Attend stream, on a connection of its own."""

    def __init__(self, herd: "Herd", name: str, address: str) -> None:
        self.name = name
        self.beats = 0
        self.here = False  # on its stream
        self.gone = False  # for good
        self._herd = herd
        options = [*channel_options(), ("grpc.use_local_subchannel_pool", 1)]
        self._channel = grpc.aio.insecure_channel(address, options=options)
        self._call: Any = None
        self._reader: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()  # gRPC takes one message at a time

    async def attend(self, layers: int) -> None:
        """Joins and has the model built."""
        encode = pb.AttendRequest.SerializeToString
        self._call = self._channel.stream_stream(ATTEND, request_serializer=encode)()
        join = pb.Join(
            node=self.name,
            incarnation=1,
            address=f"10.0.0.1:{10_000 + int(self.name[1:])}",
            pid=1,
            protocol_version=PROTOCOL_VERSION,
            takes_changes=True,
            machine=self.machine(),
            zone=self.machine().zone,
        )
        await self.say(pb.AttendRequest(join=join))
        self.here = True
        self._reader = asyncio.create_task(self._read())
        available = pb.Available(layer_parameters=[4160] * layers, fingerprint="the same on every node")
        await self.say(pb.AttendRequest(available=available))

    def machine(self) -> pb.Machine:
        return pb.Machine(provider="example", instance_type="local", market="spot")

    async def say(self, request: pb.AttendRequest) -> None:
        async with self._turn:
            await self._call.write(request)

    async def _read(self) -> None:
        try:
            while (order := await self._call.read()) is not grpc.aio.EOF:
                self._herd.hear(self, order, time.perf_counter())
            if self.here:
                self._herd.failed(f"the stream of {self.name} ended")
        except (asyncio.CancelledError, grpc.RpcError) as error:
            if self.here:
                self._herd.failed(f"the stream of {self.name} broke: {error}")

    async def beat(self) -> None:
        self.beats += 1
        await self.say(pb.AttendRequest(heartbeat=self.heartbeat()))

    def heartbeat(self) -> pb.Heartbeat:
        """As a node's in the middle of its work."""
        n = float(self.beats)
        return pb.Heartbeat(
            version=self._herd.committed,
            instruction="2B3",
            finished=30 * self.beats,
            running_seconds=0.004,
            median_seconds=0.02,
            deviation_seconds=0.001,
            samples=30,
            slowness=1.0,
            times=pb.TimeSplit(forward=0.3 * n, backward=0.6 * n, apply=0.05 * n, bubble=0.05 * n),
            sent_bytes=dict.fromkeys(self._herd.peers.get(self.name, ()), 65536 * self.beats),
        )

    def end(self) -> None:
        """The stream ends, as when the process does."""
        self.here, self.gone = False, True
        self._call.cancel()

    async def close(self) -> None:
        self.here = False
        if self._call is not None:
            self._call.cancel()
        if self._reader is not None:
            self._reader.cancel()
        await self._channel.close()


class Herd:
    """All simulated nodes of a run, as a context manager: entered, every one of them has the first plan."""

    node_type = SimulatedNode

    def __init__(self, address: str, nodes: int, layers: int, microbatches: int) -> None:
        """``microbatches``: of a step, in all pipelines."""
        self.committed = 0
        self.nodes = {f"n{i}": self.node_type(self, f"n{i}", address) for i in range(nodes)}
        self.plan = pb.Plan()
        self.peers: dict[str, tuple[str, ...]] = {}  # whom each node exchanges tensors with under the first plan
        self._layers = layers
        self._tallies = [LOSS, RATE] * microbatches
        self._seen: bytes = b""  # the last order that was decoded
        self._kind = PLAN  # of the orders that are waited for, and who is still to get one
        self._awaited: set[str] = set()
        self._last = 0.0  # when the last of them came
        self._all_here = asyncio.Event()
        self._failure = ""
        self._beating: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._await(PLAN)
        self._beating = asyncio.create_task(self._beat())
        for node in self.nodes.values():
            await node.attend(self._layers)
        await self._arrived()
        plan = plan_from_proto(self.plan)
        self.peers = {name: peers_of(name, plan) for name in self.nodes}
        # A node of its own process has few objects: what all of them together would take to collect is nobody's time.
        gc.collect()
        gc.disable()
        return self

    async def __aexit__(self, *ended: object) -> None:
        gc.enable()
        if self._beating is not None:
            self._beating.cancel()
        for node in self.nodes.values():
            await node.close()

    def failed(self, why: str) -> None:
        """Ends whatever is being waited for."""
        self._failure = self._failure or why
        self._all_here.set()

    def hear(self, node: SimulatedNode, order: bytes, at: float) -> None:
        """An order has come. The first of many alike is decoded."""
        kind = order[0]
        if kind in (PLAN, COMMIT) and order != self._seen:
            self._seen = order
            self._take(pb.AttendResponse.FromString(order))
        if kind == self._kind and node.name in self._awaited:
            self._awaited.discard(node.name)
            self._last = at
            if not self._awaited:
                self._all_here.set()

    def _take(self, order: pb.AttendResponse) -> None:
        if order.HasField("commit"):
            self.committed = max(self.committed, order.commit.step + 1)
        plan = order.plan if order.HasField("plan") else order.commit.next_plan
        if plan.generation > self.plan.generation:
            self.plan = whole(plan, self.plan)

    def _await(self, kind: int) -> None:
        """From now on orders of this kind are waited for, one at every node that is here."""
        self._kind, self._awaited = kind, {name for name, node in self.nodes.items() if not node.gone}
        self._all_here.clear()

    async def _arrived(self) -> float:
        """When the last of the awaited orders came. Raises RuntimeError if a stream ends meanwhile."""
        async with asyncio.timeout(PATIENCE):
            await self._all_here.wait()
        if self._failure:
            raise RuntimeError(self._failure)
        return self._last

    async def _beat(self) -> None:
        """A heartbeat a second from every node."""
        due = time.monotonic()
        while True:
            for group in range(BEATS_AT_ONCE):
                due += BEAT_SECONDS / BEATS_AT_ONCE
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                for node in list(self.nodes.values())[group::BEATS_AT_ONCE]:
                    if node.here:
                        await node.beat()

    async def step(self, pause: float = 0.0) -> float:
        """All holders say that they are ready, the first stage last; seconds from the last of them to the last commit.

        ``pause``: seconds of rest before the last one.
        """
        self._await(COMMIT)
        said = []
        for s, stage in reversed(list(enumerate(self.plan.stages))):
            tallies = self._tallies if s == len(self.plan.stages) - 1 else []
            norms = [1.0] * (stage.end_layer - stage.first_layer)
            said_of = pb.Ready(era=self.plan.era, step=self.committed, stage=s, first_layer=stage.first_layer)
            said_of.squared_norms.extend(norms)
            said_of.tallies.extend(tallies)
            ready = pb.AttendRequest(ready=said_of)
            said += [(node, ready) for node in (*(b.node for b in stage.standbys), *dict.fromkeys(stage.owners))]
        for node, ready in said[:-1]:
            await self.nodes[node].say(ready)
        await asyncio.sleep(pause)
        node, ready = said[-1]
        begun = time.perf_counter()
        await self.nodes[node].say(ready)
        return await self._arrived() - begun

    async def lose(self, draw: random.Random) -> float:
        """A random owner's stream ends and its peers miss it; seconds until the last node has another plan."""
        stages = list(self.plan.stages)
        s = draw.randrange(1, len(stages) - 1)
        lost = self.nodes[draw.choice(list(dict.fromkeys(stages[s].owners)))]
        peers = peers_of(lost.name, plan_from_proto(self.plan))
        report = pb.AttendRequest(peer_lost=pb.PeerLost(node=lost.name, incarnation=1, why="the stream broke"))
        lost.gone = True
        self._await(PLAN)
        begun = time.perf_counter()
        lost.end()
        for name in peers:
            await self.nodes[name].say(report)
        return await self._arrived() - begun
