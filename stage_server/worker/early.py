"""What came before this node can take it: for a plan that it does not have yet, or for steps that it is behind."""

from collections.abc import Iterator
from typing import Generic, NamedTuple

from culm.pipeline.keys import Key
from culm.pipeline.plan import PlanOrder
from culm.stage_server.worker.work import V


class Arrival(NamedTuple, Generic[V]):
    """A tensor from a peer that obeys the plan of this order; without a key: its Hello."""

    peer: str
    incarnation: int
    order: PlanOrder
    key: Key | None = None
    value: V | None = None


# What brings an arrival back to ``Post.arrive``, where it may wait again:
#
#     it was sent under a newer plan    that plan; a Hello waits as well, since its answer counts under that plan only
#     it is more than one step ahead    the commits in between; a node that is being seeded may be steps behind
#
# Two bounds keep the memory small: ``count`` lets a stream refuse more than a peer can have to send, and of later steps
# only the newest two stay.


class Early(Generic[V]):
    """Waits unacknowledged (rule 3): whoever sent it still has it.

    So whatever is dropped from here is not lost: it is sent again once this node has said hello under the new plan.
    """

    def __init__(self) -> None:
        # In the order in which they came: it is that of the streams, by which a missing gradient shows (rule 11).
        self._arrivals: list[Arrival[V]] = []

    def add(self, arrival: Arrival[V]) -> None:
        """Of a peer's Hellos the newest counts, and of a tensor that comes again the first (rule 4).

        A stream that was given up may still bring an older Hello after that of the next one.
        """
        if arrival.key is None:
            if any(x.key is None and x.peer == arrival.peer and x[1:3] > arrival[1:3] for x in self._arrivals):
                return
            self._arrivals = [x for x in self._arrivals if x.key is not None or x.peer != arrival.peer]
        elif self._repeats(arrival):
            return
        self._arrivals.append(arrival)

    def _repeats(self, arrival: Arrival[V]) -> bool:
        return any(x.key == arrival.key and x[:3] == arrival[:3] for x in self._arrivals)

    def count(self, peer: str) -> int:
        """Tensors of this peer."""
        # Over a copy: streams ask from threads of their own, without the node's lock.
        return sum(x.key is not None and x.peer == peer for x in tuple(self._arrivals))

    def add_of_later_step(self, arrival: Arrival[V], key: Key) -> None:
        """Of the steps that the senders are ahead all but the newest two have ended: the others are dropped."""
        if self._repeats(arrival):
            return
        # One sender may have applied a commit that another has not heard of yet. More than that they cannot be apart.
        self._arrivals.append(arrival)
        oldest = max(x.step for x in self.keys() if x.era == key.era) - 1
        self._arrivals = [x for x in self._arrivals if x.key is None or x.key.era != key.era or x.key.step >= oldest]

    def keys(self) -> Iterator[Key]:
        return (arrival.key for arrival in self._arrivals if arrival.key is not None)

    def waiting(self) -> tuple[Arrival[V], ...]:
        """What is here, in the order in which it came."""
        return tuple(self._arrivals)

    def take(self) -> list[Arrival[V]]:
        """All of it, to be looked at anew."""
        arrivals, self._arrivals = self._arrivals, []
        return arrivals
