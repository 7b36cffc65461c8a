"""The orders to one attached node, in their order, on their way to its stream."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from culm.pipeline.plan import Plan
from culm.protos import coordinator_pb2 as pb

log = logging.getLogger("culm.coordinator")

# That wait for a node which does not read them. There is an order a commit, so the oldest is that many commits old, and
# the node would be behind for good; attaching anew it is told where the run stands.
MOST_ORDERS = 1000


@dataclass(eq=False, kw_only=True)
class OrderStream:
    """Of one incarnation. None in the queue ends it."""

    node: str
    incarnation: int
    queue: "asyncio.Queue[pb.AttendResponse | None]"
    takes_changes: bool = False  # of the plan before, in place of a whole plan
    plan: Plan | None = None  # the last one that was sent, which the next may be a change of
    wrong: str = ""  # what the node said that does not fit
    cut: Callable[[], object] | None = None  # ends the stream of a node that does not read
    over: bool = False  # nothing that is still being read counts

    def put(self, order: pb.AttendResponse) -> None:
        if self.queue.qsize() >= MOST_ORDERS and self.cut is not None:
            log.warning("%s takes no orders: %d wait for it, and its stream is ended", self.node, MOST_ORDERS)
            self.cut()
            self.cut = None
            return
        self.queue.put_nowait(order)
