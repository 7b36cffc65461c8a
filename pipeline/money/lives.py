"""What the nodes cost: a life for each incarnation, from its joining to its end. Dollars and unix seconds."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from culm.pipeline.machine import Machine
from culm.pipeline.money.kinds import Joined, Priced

# A life is paid by the hour from the event "joined" to the event that ends it: "lost", "left" or "dismissed". Machines
# cost before and after that too; the log does not know it, and it counts nowhere.
#
#     joined         price (first)        price (another)         lost
#       |---------------|---------------------|---------------------|
#       |   the first price, from joining on  |  the other price    |    after: nothing
#     since: joined                         since: now            ended
#     settled: 0                            settled: what was
#                                           spent by then
#
# ``settled`` is what the life had cost by ``since``. It moves only when another price comes, so what was paid at an old
# price is never counted at the new one. Asking for dollars changes nothing: live and replayed figures are the same.
#
# The log of a leader that died may lack the end of a life. The next joining under the name ends it then: one name has
# one process, and a machine is paid once.

HOUR = 3600.0
# Of nodes that are gone: the figures of each. What the others had cost is kept as one sum.
LIVES_KEPT = 1_000


@dataclass(eq=False, kw_only=True)
class Life:
    """One incarnation of a node, from joining to its end."""

    node: str
    incarnation: int
    machine: Machine
    joined: float
    since: float  # Invariant: joined <= since
    ended: float | None = None  # Invariant: joined <= ended
    per_hour: float = 0.0  # from ``since`` on
    on_demand: float = 0.0  # an hour of the same machine on demand; 0: not known
    per_gb: Mapping[str, float] = field(default_factory=dict)  # to another zone, to another region
    source: str = ""
    priced: bool = False
    settled: float = 0.0  # what it had cost by ``since``
    seconds: dict[str, float] = field(default_factory=dict)  # by use, as last reported
    sent: dict[str, int] = field(default_factory=dict)  # bytes by peer, as last reported
    gigabyte_seconds: float = 0.0  # of its tensor workers, as last reported
    workers_per_hour: float = 0.0  # what these cost lately, and until when
    workers_until: float = 0.0

    def dollars(self, now: float) -> float:
        """What it has cost by ``now``; after its end, in all."""
        until = now if self.ended is None else self.ended
        return self.settled + self.per_hour * max(0.0, until - self.since) / HOUR

    def settle(self, now: float) -> None:
        """Another price comes: what was spent so far stays as it is."""
        self.settled, self.since = self.dollars(now), max(self.since, now)


@dataclass(eq=False, kw_only=True)
class Lives:
    """The lives of a run, and what those that ended have cost."""

    known: list[Life] = field(default_factory=list)  # in the order of joining
    # Invariant: every life of these three is in ``known`` as well.
    by_incarnation: dict[tuple[str, int], Life] = field(default_factory=dict)
    newest: dict[str, Life] = field(default_factory=dict)  # by node, whether it has ended or not
    open: dict[str, Life] = field(default_factory=dict)  # by node; Invariant: none of them has ended
    ended_dollars: float = 0.0  # of all that ended, those left out too
    left_out_dollars: float = 0.0  # of those that ``known`` lacks
    left_out_on_demand: list[float] = field(default_factory=lambda: [0.0, 0.0])  # their prices: the sum, and the count

    def join(self, at: float, event: Joined) -> None:
        """A life begins. The one before of the same name has ended."""
        machine = Machine(event.provider, event.instance_type, event.region, event.zone, event.market)
        life = Life(node=event.node, incarnation=event.incarnation, machine=machine, joined=at, since=at)
        self.known.append(life)
        self.by_incarnation[event.node, event.incarnation] = life
        self.newest[event.node] = self.open[event.node] = life

    def end(self, at: float, node: str) -> bool:
        """Whether a node took part under this name; its life is over now."""
        life = self.open.pop(node, None)
        if life is None:
            return False
        life.ended = max(at, life.joined)
        self.ended_dollars += life.dollars(at)
        self._leave_out()
        return True

    def _leave_out(self) -> None:
        """Bounds how many lives that ended are kept: of too many the older half of the bound goes."""
        gone = [life for life in self.known if life.ended is not None]
        if len(gone) <= LIVES_KEPT:
            return
        for life in gone[: LIVES_KEPT // 2]:
            self.known.remove(life)
            self.by_incarnation.pop((life.node, life.incarnation), None)
            if self.newest.get(life.node) is life:
                del self.newest[life.node]
            if life.on_demand > 0:
                self.left_out_on_demand[0] += life.on_demand
                self.left_out_on_demand[1] += 1
            self.left_out_dollars += life.dollars(life.ended or 0.0)

    def price(self, at: float, event: Priced) -> None:
        """A price of an incarnation that is gone counts for nobody."""
        life = self.open.get(event.node)
        if life is None or life.incarnation != event.incarnation:
            return
        if life.priced:
            life.settle(at)
        life.priced = True
        life.per_hour, life.on_demand = event.per_hour, event.on_demand_per_hour
        life.per_gb = {"zones": event.per_gb_zones, "regions": event.per_gb_regions}
        life.source = event.source

    def crossed(self, life: Life, peer: str) -> str:
        """What bytes from the node to the peer cross: "zones", "regions" or, for all that is known, nothing."""
        known = self.newest.get(peer)
        if known is None:
            return ""
        own, other = life.machine, known.machine
        if own.region and other.region and own.region != other.region:
            return "regions"
        return "zones" if own.zone and other.zone and own.zone != other.zone else ""

    def open_dollars(self, now: float) -> float:
        """What the nodes that take part have cost by now."""
        return sum(life.dollars(now) for life in self.open.values())

    def per_hour(self) -> float:
        """Dollars an hour of the nodes that take part, and of their tensor workers."""
        return sum(life.per_hour + life.workers_per_hour for life in self.open.values())

    def on_demand(self) -> float | None:
        """The mean price an hour of the run's machines on demand; None where no price is known."""
        prices = [life.on_demand for life in self.known if life.on_demand > 0]
        total, count = self.left_out_on_demand
        if not prices and not count:
            return None
        return (total + sum(prices)) / (count + len(prices))
