"""The orders to one attached node, in their order, on their way to its stream."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from culm.pipeline.plan import Plan
from culm.protos import coordinator_pb2 as pb

log = logging.getLogger("culm.coordinator")

# Orders that may wait for a node which does not read them. There is an order a commit, so the node would be a thousand
# commits behind, for good. When it attaches again it is told where the run stands.
MOST_ORDERS = 1000

# The leader puts orders in, and never waits. The Attend call takes them out and writes them (``attend_call``). When the
# node does not read, gRPC holds the call back: orders pile up here.
#
# A step begins with the first stage, and a commit wakes all nodes. Where some of them share a machine, the first
# stage's owner would wait for a processor, up to 3 ms: behind nodes that have no input yet, and behind this process.
# So a commit goes out stage by stage, the first stage first. Each stage has a gate. An order waits in its stream until
# its gate is open, and later orders wait behind it. Between two gates this process sleeps. To yield is not enough: the
# system need not run whoever waits.

MOST_GATES = 8  # later stages share the last gate: a microbatch takes long to reach them
# Seconds between two gates: a microbatch takes about as long from one stage to the next. The leader writes its state as
# long after a decision, so that the first stage has its order before.
APART = 0.001


def gates(stages: int) -> list[asyncio.Event]:
    """A gate for each stage. The first is open; the event loop opens the others one by one, APART."""
    loop = asyncio.get_running_loop()
    found = [asyncio.Event() for _ in range(min(stages, MOST_GATES))]

    def open_one(place: int) -> None:
        found[place].set()
        if place + 1 < len(found):
            loop.call_later(APART, open_one, place + 1)

    open_one(0)
    return [*found, *found[-1:] * (stages - len(found))]


@dataclass(eq=False, kw_only=True)
class OrderStream:
    """Of one incarnation. None in the queue ends it."""

    node: str
    incarnation: int
    # Each with its gate, if it has one. Invariant: the Welcome is first, orders follow in the order of decisions, and
    # nothing counts after a None.
    queue: "asyncio.Queue[tuple[pb.AttendResponse, asyncio.Event | None] | None]"
    takes_changes: bool = False  # of the plan before, in place of a whole plan
    # The last one in the queue. Invariant: the node has it when it reads the next order, which may be a change of it.
    plan: Plan | None = None
    wrong: str = ""  # what the node said that does not fit: the call ends with it
    cut: Callable[[], object] | None = None  # ends the call of a node that does not read; None: the call is ending
    over: bool = False  # the call has ended: nothing that is still being read counts

    def put(self, order: pb.AttendResponse, gate: asyncio.Event | None = None) -> None:
        """Never waits. ``gate``: the order is not written before it is open."""
        if self.queue.qsize() >= MOST_ORDERS and self.cut is not None:
            log.warning(
                "%s does not read its orders: %d wait, so its stream ends and it has to attach again",
                self.node,
                MOST_ORDERS,
            )
            self.cut()
            self.cut = None
            return
        self.queue.put_nowait((order, gate))

    async def orders(self) -> AsyncIterator[pb.AttendResponse]:
        """In their order, until a None."""
        while (next_one := await self.queue.get()) is not None:
            order, gate = next_one
            if gate is not None:
                await gate.wait()
            yield order
