"""Orders go to whom they are for, and to those first who wait for nothing else."""

import asyncio

from culm.coordinator.edges.order_stream import APART, MOST_GATES, OrderStream, gates
from culm.coordinator.edges.translation import by_stage
from culm.pipeline.plan import Plan, StagePlan, Standby
from culm.protos import coordinator_pb2 as pb


def test_owners_are_told_in_the_order_of_their_stages_and_the_others_after_them() -> None:
    stages = (
        StagePlan(0, 1, ("c",), (Standby("spare", True),)),
        StagePlan(1, 2, ("b",), ()),
        StagePlan(2, 3, ("c",), ()),
        StagePlan(3, 4, ("a",), ()),
    )
    plan = Plan(term=1, generation=1, era=1, step=0, stages=stages, members={})
    places = by_stage(["spare", "a", "b", "c", "other"], plan)
    assert list(places.items()) == [("c", 0), ("b", 1), ("a", 3), ("spare", 4), ("other", 4)]


def test_without_a_plan_they_are_told_in_the_order_in_which_they_came() -> None:
    assert list(by_stage(["b", "a"], None).items()) == [("b", 0), ("a", 0)]


def test_orders_are_written_as_their_gates_open_and_stay_in_order() -> None:
    streams = {node: OrderStream(node=node, incarnation=1, queue=asyncio.Queue()) for node in ("n2", "n1", "n0")}
    written: list[tuple[str, int]] = []

    async def write(stream: OrderStream) -> None:
        async for order in stream.orders():
            written.append((stream.node, order.commit.step))

    async def scenario() -> None:
        writing = [asyncio.create_task(write(stream)) for stream in streams.values()]
        await asyncio.sleep(0)  # all wait for an order
        opened = gates(3)
        for place, (node, stream) in reversed(list(enumerate(reversed(streams.items())))):
            assert node == f"n{place}"
            stream.put(pb.AttendResponse(commit=pb.Commit(step=3)), opened[place])
            stream.put(pb.AttendResponse(commit=pb.Commit(step=4)))
            stream.queue.put_nowait(None)
        await asyncio.gather(*writing)

    asyncio.run(scenario())
    assert written == [(node, step) for node in ("n0", "n1", "n2") for step in (3, 4)]


def test_a_later_stages_gate_opens_after_a_pause_and_not_in_the_loops_next_iteration() -> None:
    async def open_at(*moments: float) -> list[list[bool]]:
        clock = [0.0]
        asyncio.get_running_loop().time = lambda: clock[0]  # type: ignore[method-assign]
        opened, found = gates(3), []
        for clock[0] in moments:
            for _ in range(3):  # iterations
                await asyncio.sleep(0)
            found.append([gate.is_set() for gate in opened])
        return found

    found = asyncio.run(open_at(0.0, 1.5 * APART, 3.0 * APART))
    assert found == [[True, False, False], [True, True, False], [True, True, True]]


def test_late_stages_share_a_gate_so_that_a_commit_takes_no_longer_in_a_long_pipeline() -> None:
    async def scenario() -> list[asyncio.Event]:
        return gates(1000)

    found = asyncio.run(scenario())
    assert len(found) == 1000
    assert len(set(found)) == MOST_GATES
    assert found[MOST_GATES - 1] is found[-1]
