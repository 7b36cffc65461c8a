"""Who attends a simulated run: nodes join on machines that are rented, and are missed when their machines are gone."""

from collections.abc import Callable, Iterable

from culm.coordinator import commands as cmd
from culm.coordinator import reports
from culm.coordinator.node_prices import NodePrice
from culm.pipeline.flow import peers_of
from culm.pipeline.machine import Machine
from culm.simulator.markets.account import Account
from culm.simulator.markets.fleet import Fleet
from culm.simulator.markets.job_profile import Cluster, Profile
from culm.simulator.markets.market_nodes import MarketNodes
from culm.simulator.markets.trace import Change
from culm.simulator.markets.virtual_coordinator import TICK, VirtualCoordinator
from culm.simulator.network import Clock

# A machine's life as the coordinator hears of it:
#
#     the trace offers it     rented, starts up      Joined, Available               (gives layers back)
#         |-----------------------|-----------------------|---- ... ----- Draining ------ ... ------ Dismiss
#                                                         |
#                                                         '---- ... ---- gone:  detect_seconds later StreamBroken, and
#                                                                        PeerLost from each peer that is there still
#
# A node that exchanges tensors with nobody is missed by no peer. A broken order stream alone fences nobody: the node
# may open it again. So the coordinator is told that a whole patience has passed in silence.

JOINS_ANEW = 5.0  # seconds until a process that was dismissed is there again


class Attendance:
    """Tells the coordinator who joins and who is missed. ``tell`` is how reports reach it."""

    def __init__(
        self,
        *,
        clock: Clock,
        account: Account,
        profile: Profile,
        cluster: Cluster,
        machines: int,
        nodes: MarketNodes,
        coordinator: VirtualCoordinator,
        tell: Callable[[reports.Report], None],
    ) -> None:
        self._clock, self._cluster = clock, cluster
        self._profile, self._account = profile, account
        self._nodes = nodes
        self._coordinator = coordinator
        self._tell = tell
        self._fleet = Fleet(clock, account, cluster, machines, self._join, self._gone)

    def change(self, change: Change) -> None:
        """What the trace has for one machine."""
        if change.kind == "add":
            self._fleet.offer(change)
        elif change.kind == "remove":
            self._fleet.take(change.node)
        elif change.node in self._coordinator.state.nodes:
            self._tell(reports.Draining(change.node, "its machine is to go", change.seconds_left))

    def hear(self) -> None:
        """A heartbeat of every node."""
        self._tell(self._nodes.heartbeats(self._clock.now, self._cluster.bytes_per_second))

    def dismiss(self, command: cmd.Dismiss) -> None:
        """A node is told to go: for good, since it has handed over, or to join anew."""
        node = self._nodes.find(command.node, command.incarnation)
        if node is None:
            return
        self._nodes.remove(command.node)
        if command.join_anew:
            self._clock.after(JOINS_ANEW, lambda: self._join(command.node, node.zone))
        else:
            self._fleet.give_back(command.node)

    def _join(self, name: str, zone: str) -> None:
        if not self._fleet.has(name) or name in self._nodes.here:
            return
        incarnation = self._nodes.add(name, zone).incarnation
        machine = Machine(zone=zone, market="spot")
        self._tell(reports.Joined(node=name, incarnation=incarnation, address=f"{name}:1", zone=zone, machine=machine))
        price = NodePrice(self._account.price_of(name), self._cluster.per_gb_between_zones)
        self._tell(reports.Priced({(name, incarnation): price}))
        self._tell(
            reports.Available(
                node=name,
                incarnation=incarnation,
                layer_costs=self._profile.parameters,
                layer_bytes=self._profile.layer_bytes,
                layer_seconds=self._profile.layer_seconds,
            )
        )
        if (
            self._profile.pipelines > 1
        ):  # the first heartbeat that tells of a link: shapes are weighed by what they send
            self._tell(self._nodes.heartbeats(self._clock.now, self._cluster.bytes_per_second, (name,)))

    def _gone(self, name: str) -> None:
        """The machine was taken. Peers are those of the plan at this moment, not at the moment of noticing."""
        node = self._nodes.remove(name)
        if node is not None:
            plan = self._coordinator.state.plan
            peers = peers_of(name, plan) if plan is not None and name in plan.members else ()
            self._clock.after(self._cluster.detect_seconds, lambda: self._missed(name, node.incarnation, peers))

    def _missed(self, name: str, incarnation: int, peers: Iterable[str]) -> None:
        self._tell(reports.StreamBroken(name, incarnation, "its machine is gone"))
        for peer in peers:
            known = self._coordinator.state.nodes.get(name)
            if known is None or known.incarnation != incarnation:
                return  # it is given up: what other peers say of it changes nothing
            reporter = self._nodes.here.get(peer)
            if reporter is not None:
                self._tell(reports.PeerLost(peer, reporter.incarnation, name, incarnation, "the stream broke"))
        if name in self._coordinator.state.nodes:
            self._look_later(name, incarnation)

    def _silent(self, name: str, incarnation: int) -> None:
        """Nobody has heard of it for a patience: the tick finds that, after heartbeats of all others.

        Where there are no others the silence counts for nothing yet: rather the coordinator is cut off.
        """
        if not self._knows(name, incarnation):
            return
        self.hear()
        self._coordinator.keep_time()
        self._tell(reports.Tick())
        if self._knows(name, incarnation):
            self._look_later(name, incarnation)

    def _knows(self, name: str, incarnation: int) -> bool:
        known = self._coordinator.state.nodes.get(name)
        return known is not None and known.incarnation == incarnation

    def _look_later(self, name: str, incarnation: int) -> None:
        patience = self._coordinator.state.settings.patience.seconds + TICK
        self._clock.after(patience, lambda: self._silent(name, incarnation))
