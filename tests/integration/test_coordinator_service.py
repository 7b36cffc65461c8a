"""The coordinator over real gRPC: a node that speaks the raw protocol meets the service, and so do its viewers."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest

from culm.coordinator.edges import service
from culm.coordinator.edges.coordinator_settings import CoordinatorSettings
from culm.coordinator.edges.leader import Leader
from culm.coordinator.edges.service import Service, _lead
from culm.coordinator.edges.store import MemoryStore
from culm.coordinator.state import Phase
from culm.pipeline.job import load_job, parse_job
from culm.pipeline.plan_codec import plan_to_proto
from culm.pipeline.rpc.channel import channel_options, server_options
from culm.pipeline.version import PROTOCOL_VERSION
from culm.protos import coordinator_pb2 as pb
from culm.protos.coordinator_pb2_grpc import CoordinatorStub, add_CoordinatorServicer_to_server
from tests.fake_node import FakeNode

if TYPE_CHECKING:
    from culm.protos.coordinator_pb2_grpc import CoordinatorAsyncStub  # in the stubs' types only

ROOT = Path(__file__).resolve().parents[2]
JOB = load_job(ROOT / "examples" / "digits_mlp.toml", ["pipeline.stages=2", "job.steps=2"])
DEADLINE_SECONDS = 60.0  # ends a test that hangs; no test waits for it


@dataclass
class Cluster:
    """A leader behind a real server on loopback."""

    leader: Leader
    stub: "CoordinatorAsyncStub"

    async def open(self, name: str, incarnation: int = 1, version: int = PROTOCOL_VERSION) -> FakeNode:
        node = FakeNode(name, self.stub.Attend())
        join = pb.Join(node=name, incarnation=incarnation, address=f"{name}:1", pid=77, protocol_version=version)
        await node.say(join=join)
        return node

    async def attend(self, name: str) -> FakeNode:
        """A node that has joined and built the model."""
        node = await self.open(name)
        await node.hear("welcome")
        await node.say(available=pb.Available(layer_parameters=[4, 3, 2, 1], fingerprint="code"))
        return node

    async def pair(self) -> tuple[FakeNode, FakeNode]:
        """Two nodes that have their first plan, each owner of one stage and standby of the other."""
        n0, n1 = await self.attend("n0"), await self.attend("n1")
        await n0.hear("plan")
        await n1.hear("plan")
        return n0, n1

    async def until(self, holds: Callable[[pb.GetStatusResponse], bool]) -> pb.GetStatusResponse:
        """The first status of which it holds."""
        while not holds(status := await self.stub.GetStatus(pb.GetStatusRequest())):
            pass
        return status

    async def reaches(self, node: str) -> bool:
        """Whether orders to the node still have a stream to go to."""
        try:
            await self.stub.Kill(pb.KillRequest(node=node))
        except grpc.aio.AioRpcError:
            return False
        return True

    async def events(self) -> list[pb.ListEventsResponse]:
        return [event async for event in self.stub.ListEvents(pb.ListEventsRequest(from_sequence=1))]


def run(
    scenario: Callable[[Cluster], Awaitable[None]], store: MemoryStore | None = None, allow_kill: bool = False
) -> None:
    async def limited() -> None:
        async with asyncio.timeout(DEADLINE_SECONDS), cluster(store or MemoryStore(), allow_kill) as running:
            await scenario(running)

    asyncio.run(limited())


@asynccontextmanager
async def cluster(store: MemoryStore, allow_kill: bool) -> AsyncIterator[Cluster]:
    leader = Leader(CoordinatorSettings(job=JOB, allow_kill=allow_kill), store)
    await leader.lead()
    server = grpc.aio.server(options=server_options())
    add_CoordinatorServicer_to_server(Service(leader), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=channel_options())
    try:
        yield Cluster(leader, CoordinatorStub(channel))
    finally:
        await channel.close()
        await server.stop(None)


def test_a_node_that_joins_is_welcomed_with_the_job() -> None:
    async def scenario(running: Cluster) -> None:
        node = await running.open("n0")
        welcome = (await node.hear("welcome")).welcome
        assert parse_job(welcome.job_toml) == JOB
        assert (welcome.term, welcome.heartbeat_seconds) == (1, 0.5)

    run(scenario)


def test_a_node_of_another_protocol_is_told_so_in_one_line() -> None:
    async def scenario(running: Cluster) -> None:
        node = await running.open("n0", version=PROTOCOL_VERSION + 1)
        dismiss = (await node.hear("dismiss")).dismiss
        words = f"n0 speaks protocol {PROTOCOL_VERSION + 1}, this coordinator {PROTOCOL_VERSION}"
        assert dismiss.why == f"{words}: install the same version of culm on both"
        assert not dismiss.join_anew
        assert await node.ended()
        assert running.leader.state.nodes == {}

    run(scenario)


def test_a_stream_that_does_not_begin_with_join_is_refused() -> None:
    async def scenario(running: Cluster) -> None:
        node = FakeNode("n0", running.stub.Attend())
        await node.say(heartbeat=pb.Heartbeat())
        assert await node.call.code() is grpc.StatusCode.INVALID_ARGUMENT

    run(scenario)


def test_nodes_get_a_plan_and_then_each_commit() -> None:
    async def scenario(running: Cluster) -> None:
        nodes = await running.pair()
        for step in range(2):
            for node in nodes:
                await node.ready(0, step)
                await node.ready(1, step)
            for node in nodes:
                commit = (await node.hear("commit")).commit
                assert (commit.term, commit.era, commit.step, commit.loss) == (1, 0, step, 0.375)
        assert running.leader.state.phase is Phase.DONE

    run(scenario)


def test_the_status_names_nodes_stages_and_progress() -> None:
    async def scenario(running: Cluster) -> None:
        n0, _ = await running.pair()
        await n0.say(heartbeat=pb.Heartbeat(instruction="0F1"))
        status = await running.until(lambda s: s.nodes[0].instruction == "0F1")
        assert (status.job, status.phase, status.step, status.steps) == ("digits-mlp", "running", 0, 2)
        assert [(n.id, n.pid, n.state, list(n.stages), list(n.standby_of)) for n in status.nodes] == [
            ("n0", 77, "active", [0], [1]),
            ("n1", 77, "active", [1], [0]),
        ]
        assert dict(status.exposure) == {0: 0.0, 1: 0.0}
        assert [list(stage.owners) for stage in status.plan.stages] == [["n0"], ["n1"]]

    run(scenario)


def test_events_are_numbered_and_told_with_their_reasons() -> None:
    async def scenario(running: Cluster) -> None:
        await running.pair()
        events = await running.events()
        assert [event.sequence for event in events] == list(range(1, len(events) + 1))
        kinds = [event.kind for event in events if event.kind not in ("waiting", "tariff")]
        assert kinds == ["joined", "joined", "plan"]
        assert events[-1].text == "2 stages on 2 nodes, from step 0"
        later = running.stub.ListEvents(pb.ListEventsRequest(from_sequence=len(events)))
        assert [event async for event in later] == events[-1:]

    run(scenario)


def test_one_who_follows_hears_of_events_as_they_happen() -> None:
    async def scenario(running: Cluster) -> None:
        following = running.stub.ListEvents(pb.ListEventsRequest(from_sequence=1, follow=True))
        await running.open("n0")
        first = await following.read()
        assert isinstance(first, pb.ListEventsResponse)
        assert (first.kind, first.fields["node"]) == ("joined", "n0")

    run(scenario)


def test_a_stream_that_breaks_leaves_the_node_detached_until_it_attaches_again() -> None:
    async def scenario(running: Cluster) -> None:
        n0, _ = await running.pair()
        n0.call.cancel()
        await running.until(lambda s: s.nodes[0].state == "detached")
        again = await running.open("n0")
        await again.hear("welcome")
        await running.until(lambda s: s.nodes[0].state == "active")
        assert running.leader.state.fenced == frozenset()

    run(scenario)


def test_a_broken_stream_and_a_neighbours_report_are_enough_to_promote() -> None:
    async def scenario(running: Cluster) -> None:
        n0, n1 = await running.pair()
        n0.call.cancel()
        await running.until(lambda s: s.nodes[0].state == "detached")
        await n1.say(peer_lost=pb.PeerLost(node="n0", incarnation=1, why="its stream broke"))
        plan = (await n1.hear("plan")).plan
        assert [list(stage.owners) for stage in plan.stages] == [["n1"], ["n1"]]
        assert plan.reason == "n1, the hot standby, runs stage 0 in place of n0; stage 1 lost its standby n0"

    run(scenario)


def test_killing_is_refused_unless_it_is_allowed() -> None:
    async def scenario(running: Cluster) -> None:
        await running.pair()
        with pytest.raises(grpc.aio.AioRpcError, match="--allow-kill") as refused:
            await running.stub.Kill(pb.KillRequest(node="n0"))
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED

    run(scenario)


def test_a_kill_reaches_the_node() -> None:
    async def scenario(running: Cluster) -> None:
        _, n1 = await running.pair()
        assert (await running.stub.Kill(pb.KillRequest(node="n1", at="1:1B0"))).pid == 77
        assert (await n1.hear("die")).die.at == "1:1B0"

    run(scenario, allow_kill=True)


def test_killing_an_unknown_node_names_the_known_ones() -> None:
    async def scenario(running: Cluster) -> None:
        await running.pair()
        with pytest.raises(grpc.aio.AioRpcError, match="no node 'n7' is attached; there are: n0, n1") as refused:
            await running.stub.Kill(pb.KillRequest(node="n7"))
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND

    run(scenario, allow_kill=True)


def test_a_successor_goes_on_from_the_last_commit() -> None:
    store = MemoryStore()

    async def before(running: Cluster) -> None:
        for node in await running.pair():
            await node.ready(0)
            await node.ready(1)
        await running.until(lambda s: s.step == 1)
        await running.leader.close()

    async def after(running: Cluster) -> None:
        status = await running.stub.GetStatus(pb.GetStatusRequest())
        assert (status.term, status.step, status.loss) == (2, 1, 0.375)
        assert [(n.id, n.state) for n in status.nodes] == [("n0", "detached"), ("n1", "detached")]

    run(before, store)
    run(after, store)


def test_decisions_know_what_a_node_costs_also_under_a_successor() -> None:
    store = MemoryStore()

    async def scenario(running: Cluster) -> None:
        node = FakeNode("n0", running.stub.Attend())
        machine = pb.Machine(provider="aws", instance_type="p3.2xlarge", region="us-east-1", market="spot")
        join = pb.Join(node="n0", incarnation=1, address="n0:1", protocol_version=PROTOCOL_VERSION, machine=machine)
        await node.say(join=join)
        await node.hear("welcome")
        price = running.leader.state.nodes["n0"].price
        assert (price.per_hour, price.per_gb_zones, price.region) == (0.91, 0.02, "us-east-1")
        await running.leader.close()

    run(scenario, store)
    run(scenario, store)


def test_a_commit_that_was_on_record_but_not_in_the_state_is_not_recorded_again() -> None:
    store = MemoryStore()

    async def before(running: Cluster) -> None:
        pair = await running.pair()
        await running.leader.close()
        persisted = store.document
        for node in pair:
            await node.ready(0)
            await node.ready(1)
        await running.until(lambda s: s.step == 1)
        store.save = lambda document: None  # type: ignore[method-assign]  # killed before it could
        store.document = persisted

    async def after(running: Cluster) -> None:
        assert (await running.stub.GetStatus(pb.GetStatusRequest())).step == 0
        plan, commit = running.leader.state.plan, pb.Commit(term=1, step=0, scale=1.0, loss=0.375, learning_rate=0.1)
        assert plan is not None
        node = await running.open("n0")
        await node.hear("welcome")
        available = pb.Available(layer_parameters=[4, 3, 2, 1], fingerprint="code", version=1, holds_state=True)
        available.layers.extend(range(4))
        available.plan.CopyFrom(plan_to_proto(plan))
        available.last_commit.CopyFrom(commit)
        await node.say(available=available)
        await running.until(lambda s: s.step == 1)
        events = await running.events()
        assert [event.fields["step"] for event in events if event.kind == "commit"] == ["0"]

    run(before, store)
    run(after, store)


def test_a_process_started_again_is_not_dismissed_for_the_one_before() -> None:
    async def scenario(running: Cluster) -> None:
        await running.attend("n0")
        again = await running.open("n0", incarnation=2)
        await again.hear("welcome")
        await running.until(lambda s: [n.incarnation for n in s.nodes] == [2])
        assert await running.reaches("n0")
        await again.hear("die")

    run(scenario, allow_kill=True)


def test_garbage_that_refers_to_itself_goes_while_a_coordinator_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    class Knot:
        itself: "Knot"

    async def scenario(running: Cluster) -> None:
        gone = asyncio.Event()
        knot = Knot()
        knot.itself = knot
        weakref.finalize(knot, gone.set)
        del knot
        lead = asyncio.create_task(_lead(running.leader, MemoryStore()))
        await gone.wait()
        assert not gc.isenabled()
        lead.cancel()
        await asyncio.wait({lead})
        assert gc.isenabled()

    monkeypatch.setattr(service, "GARBAGE_SECONDS", 0.0)
    run(scenario)
