"""What GetCost answers: the ledger's figures, and what the next machine would change of what they foresee."""

import asyncio
import logging
import time

from culm.coordinator import next_machine
from culm.coordinator.edges.leader import Leader
from culm.coordinator.next_machine import Change
from culm.coordinator.state import State
from culm.pipeline.money.lives import HOUR
from culm.protos import coordinator_pb2 as pb

log = logging.getLogger("culm.coordinator")

# For so long an answer serves under one plan: dashboards ask several times a second.
FRESH_SECONDS = 10.0

Changes = tuple[Change | None, Change | None]


class Outlook:
    """Of one leader. Shapes are compared on a thread, since with a thousand nodes that takes a fifth of a second."""

    def __init__(self, leader: Leader) -> None:
        self._leader = leader
        self._lock = asyncio.Lock()
        self._found: Changes = (None, None)
        self._of: tuple[object, ...] = ()  # what the changes were found for
        self._at = 0.0

    async def cost(self) -> pb.GetCostResponse:
        """The whole answer, as of when it is given."""
        changes = await self._changes()
        cost, ledger = self._leader.cost(), self._leader.log.ledger
        for change, field in zip(changes, ("one_more", "one_less"), strict=True):
            if change is not None and not cost.done:
                life = ledger.life_of(change.node)
                getattr(cost, field).CopyFrom(told(change, cost, priced=life is not None and life.priced))
        return cost

    async def _changes(self) -> Changes:
        async with self._lock:  # those that ask meanwhile have the same answer
            state, now = self._leader.state, time.monotonic()
            of = (state.term, state.generation, state.phase, *state.nodes)
            if of != self._of or now > self._at + FRESH_SECONDS:
                self._found = await asyncio.to_thread(_found, state, now)
                self._of, self._at = of, now
            return self._found


def _found(state: State, now: float) -> Changes:
    try:
        return next_machine.changes(state, now)
    except Exception:  # nothing is decided by it, and the figures are of use without
        log.exception("could not find what the next machine would change; culm cost leaves it out")
        return None, None


def told(change: Change, cost: pb.GetCostResponse, priced: bool) -> pb.NodeChange:
    """With what it comes to until the end. ``priced``: whether the price of such a node is known."""
    ratio = change.after / change.before
    found = pb.NodeChange(node=change.node, step_ratio=ratio, dollars_per_hour=change.dollars_per_hour, why=change.why)
    foreseen = cost.forecast
    if foreseen.HasField("seconds"):
        as_it_is = foreseen.seconds.expected * change.before
        found.seconds = as_it_is * (ratio - 1.0)
        if foreseen.HasField("dollars") and priced:
            hour = cost.dollars_per_hour
            then = (as_it_is + found.seconds) * (hour + change.dollars_per_hour)
            found.dollars = (then - as_it_is * hour) / HOUR
    return found
