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
# What is written to many streams in one turn of the event loop gRPC sends in any order. With four to eight nodes on two
# cores the owner of the first stage, with which a step begins, heard of a commit up to 2.7 ms after the first to hear.
# So an order may go *later*: a turn of the event loop after those that do not.


@dataclass(eq=False, kw_only=True)
class OrderStream:
    """Of one incarnation. None in the queue ends it."""

    node: str
    incarnation: int
    # Each with whether it goes later. Invariant: the Welcome is first, orders follow in the order of decisions, and
    # nothing counts after a None.
    queue: "asyncio.Queue[tuple[pb.AttendResponse, bool] | None]"
    takes_changes: bool = False  # of the plan before, in place of a whole plan
    # The last one in the queue. Invariant: the node has it when it reads the next order, which may be a change of it.
    plan: Plan | None = None
    wrong: str = ""  # what the node said that does not fit: the call ends with it
    cut: Callable[[], object] | None = None  # ends the call of a node that does not read; None: the call is ending
    over: bool = False  # the call has ended: nothing that is still being read counts

    def put(self, order: pb.AttendResponse, later: bool = False) -> None:
        """Never waits. ``later``: after what goes into other streams in this turn of the event loop."""
        if self.queue.qsize() >= MOST_ORDERS and self.cut is not None:
            log.warning(
                "%s does not read its orders: %d wait, so its stream ends and it has to attach again",
                self.node,
                MOST_ORDERS,
            )
            self.cut()
            self.cut = None
            return
        self.queue.put_nowait((order, later))

    async def orders(self) -> AsyncIterator[pb.AttendResponse]:
        """In their order, until a None."""
        while (next_one := await self.queue.get()) is not None:
            order, later = next_one
            if later:
                await asyncio.sleep(0)
            yield order
