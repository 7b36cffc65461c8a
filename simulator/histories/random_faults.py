"""What goes wrong in a simulated cluster: with nodes, streams, coordinators, Redis, links and machines."""

from collections.abc import Sequence

from culm.coordinator import reports
from culm.coordinator import state as co
from culm.simulator.histories.arithmetic import Number
from culm.simulator.histories.fault_counts import Counts, Kill
from culm.simulator.histories.operator import Operator
from culm.simulator.histories.start_up import LAST_WORDS
from culm.simulator.histories.world import COORDINATOR, Node, World
from culm.stage_server.worker.work import Reduce, Run, Sum, Work

# The moments of faults are drawn before the history begins, what happens then when it happens. One comes hundredths,
# tenths or whole seconds after the one before: faults meet within a step, follow one another, or come alone.
#
# What a fault is like in the world:
#
#     kill                 SIGKILL: streams break, and what was just sent may still arrive; started again after a while
#     freeze               SIGSTOP: streams stay, nothing is said; SIGCONT before or after it is declared lost, or never
#     cut                  one connection is reset
#     partition            a node, or the coordinator, is cut off from everybody
#     cut_link             two nodes do not reach each other, the coordinator reaches both
#     crash_coordinator    SIGKILL; another process leads after a while
#     second_coordinator   the lease runs out though its holder lives: two lead, each with some nodes
#     redis_outage         writes wait
#     _power_cut           everything ends at once, and Redis comes back older
#     _forget              Redis comes back empty, older, or with another term, around restarts of coordinators
#     _change, _warn       notices of preemption, true and perhaps false; machines that join
#     _storage             ``simulated_storage``


class Faults:
    """Random ones, and ``kills`` at named instructions."""

    def __init__(self, world: World, counts: Counts, kills: Sequence[Kill]) -> None:
        self._world = world
        self._counts = counts
        self._kills = list(kills)
        self._reducers = counts.reducers
        self.operator = Operator(world)
        self._joined_later = 0
        self._cut_off: set[str] = set()  # nodes that reach nobody, or COORDINATOR
        self._cut_links: set[frozenset[str]] = set()

    def schedule(self) -> None:
        """Chooses the moments."""
        counts = self._counts
        happenings = (
            (counts.disturb, self._disturb),
            (counts.changes, self._change),
            (counts.links, self._link),
            (counts.outages, self._outage),
            (counts.warnings, self._warn),
            (counts.storage, self._storage),
            (counts.leaves, self._leave),
            (counts.disks, self._disk),
            (counts.forgets, self._forget),
            (counts.power_cuts, self._power_cut),
            (counts.stops, self._world.ending.stop_coordinator),
        )
        for count, happening in happenings:
            moment = 0.05
            for _ in range(count):
                moment += self._world.random.choice([0.03, 0.3, 3.0]) * self._world.random.random()
                self._world.clock.at(moment, happening)
        self.operator.schedule(counts.pauses, counts.saves)

    def cut_off(self, one: str, other: str) -> bool:
        """Whether these two, nodes or a node and the coordinator, do not reach each other now."""
        return one in self._cut_off or other in self._cut_off or frozenset((one, other)) in self._cut_links

    def after_work(self, node: Node, work: Work[Number]) -> None:
        """Faults at named instructions, and of reducers."""
        if self._reducers and isinstance(work, Reduce | Sum) and self._world.random.random() < 0.1:
            self._reducers -= 1
            self.kill(node)
        for kill in list(self._kills):
            if isinstance(work, Run) and (kill.node, kill.step, kill.instruction) == (
                node.name,
                work.step,
                work.instruction,
            ):
                self._kills.remove(kill)
                if kill.freeze:
                    self.freeze(node, for_good=True)
                else:
                    self.kill(node)

    def after_layer(self, node: Node) -> None:
        """A layer has left while the backward of its stage runs on."""
        if self._reducers and self._world.random.random() < 0.1:
            self._reducers -= 1
            self.kill(node)

    def kill(self, node: Node) -> None:
        """SIGKILL: part of what it sent still arrives; its neighbours and the coordinator see broken streams."""
        if not node.alive:
            return
        node.alive = False
        node.frozen = False
        keep = self._world.brief()
        node.streams.cut_all(keep)
        leader = node.attendance.end(keep)
        for other in self._world.nodes.values():
            if other.alive and other is not node and _are_peers(other, node):
                self._miss(other, node)
        if leader is not None:
            self._world.clock.after(keep + self._world.brief(), lambda: leader.broke(node))
        if self._world.respawn:
            self._world.clock.after(self._world.random.uniform(0.1, 5.0), lambda: self._world.boot_if_gone(node))

    def kill_zone(self, zone: str) -> None:
        """Every node of the zone is killed at the same moment."""
        for node in list(self._world.nodes.values()):
            if self._world.zones.get(node.name) == zone:
                self.kill(node)

    def _miss(self, other: Node, node: Node) -> None:
        lost = reports.PeerLost(other.name, other.incarnation, node.name, node.incarnation, "the stream broke")
        self._world.clock.after(
            self._world.brief(), lambda: other.tell(lost) if other.alive and not other.frozen else None
        )

    def freeze(self, node: Node, for_good: bool = False) -> None:
        """SIGSTOP, and perhaps SIGCONT later: long after, it wakes up as one that was declared lost."""
        if not node.alive or node.frozen:
            return
        node.frozen = True
        if not for_good:
            self._world.clock.after(
                self._world.random.choice([0.5, 1.5, 2.5, 6.0]), lambda: node.thaw() if node.alive else None
            )
        elif self._world.respawn:
            self._world.clock.after(8.0, lambda: self.kill(node) if node.alive and node.frozen else None)

    def cut(self, node: Node) -> None:
        """One stream of the node breaks though both ends live: it is opened again."""
        peer = next((p for p in node.streams.peers if node.streams.cut(p)), None)
        if peer is not None:
            self._miss(node, self._world.nodes[peer])
            self._world.clock.after(0.05, lambda: node.streams.reopen(peer))

    def partition(self, name: str, seconds: float) -> None:
        """Nobody reaches this node (or the coordinator) for a while; both sides notice broken streams in the end."""
        self._cut_off.add(name)
        node = self._world.nodes.get(name)
        for other in self._world.nodes.values() if node is None else [node]:
            if other.alive and not other.frozen:
                other.attendance.detach()
        if node is not None:
            node.streams.cut_all(0.0)
            for other in self._world.nodes.values():
                if other.alive and other is not node and _are_peers(other, node):
                    other.streams.cut(name)
                    self._miss(other, node)
        self._world.clock.after(seconds, lambda: self._heal(name))

    def _heal(self, name: str) -> None:
        self._cut_off.discard(name)
        node = self._world.nodes.get(name)
        for other in self._world.nodes.values():
            if node is not None and other is not node:
                self._world.clock.after(0.05 + self._world.brief(), lambda other=other: other.streams.reopen(name))  # type: ignore[misc]
                self._world.clock.after(0.05 + self._world.brief(), lambda other=other: node.streams.reopen(other.name))  # type: ignore[misc]

    def cut_link(self, one: str, other: str, seconds: float | None) -> None:
        """Two nodes do not reach each other, though everybody else reaches both. None: for good."""
        link = frozenset((one, other))
        self._cut_links.add(link)
        for name, peer in ((one, other), (other, one)):
            self._world.nodes[name].streams.cut(peer)
        self._complain(one, other)

        def heal() -> None:
            self._cut_links.discard(link)
            self._world.ending.disturbed()
            self._world.nodes[one].streams.reopen(other)
            self._world.nodes[other].streams.reopen(one)

        if seconds is not None:
            self._world.clock.after(seconds, heal)

    def _complain(self, one: str, other: str) -> None:
        """Nodes try to open their streams again, and report each failure."""
        if frozenset((one, other)) not in self._cut_links:
            return
        for name, peer in ((one, other), (other, one)):
            node = self._world.nodes[name]
            if node.alive and not node.frozen and peer in node.streams.peers:
                missed = reports.PeerLost(name, node.incarnation, peer, node.streams.peers[peer], "it is not reached")
                node.tell(missed)
        self._world.clock.after(0.5, lambda: self._complain(one, other))

    def crash_coordinator(self) -> None:
        """SIGKILL; another one leads after a while."""
        self._world.leader.end()
        self._world.clock.after(self._world.random.choice([0.1, 1.0, 5.0]), self._world.lead)

    def second_coordinator(self) -> None:
        """Another one takes the lease, since Redis does not hear from the first; that one may never notice."""
        before = self._world.leader
        before.cut_from_redis = True

        def healed() -> None:
            before.cut_from_redis = False
            before.redis_is_back()

        self._world.clock.after(self._world.random.choice([0.3, 3.0, 60.0]), healed)
        self._world.redis.away = False
        self._world.lead()
        for node in list(self._world.nodes.values()):
            if node.alive and not node.frozen and self._world.random.random() < 0.5:
                node.attendance.detach()

    def redis_outage(self, seconds: float) -> None:
        def back() -> None:
            self._world.redis.away = False
            for leader in self._world.leaders:
                leader.redis_is_back()

        self._world.redis.away = True
        self._world.clock.after(seconds, back)

    def _outage(self) -> None:
        if self._world.state.phase is co.Phase.DONE:
            return
        what = self._world.random.random()
        if what < 0.35 and self._world.leader.alive:
            self.crash_coordinator()
        elif what < 0.45 and self._world.leader.alive:
            self.second_coordinator()
        elif what < 0.65:
            self.redis_outage(self._world.random.choice([0.1, 1.0, 10.0]))
        elif what < 0.75:
            self.partition(COORDINATOR, self._world.random.choice([0.3, 2.5, 6.0]))
        else:
            self.partition(
                self._world.random.choice(list(self._world.nodes)), self._world.random.choice([0.3, 2.5, 6.0])
            )

    def _forget(self) -> None:
        """Redis loses what it was given; coordinators start again before, meanwhile or after it, and nodes join."""
        world, draw = self._world, self._world.random
        if world.state.phase is co.Phase.DONE:
            return

        def lose_memory() -> None:
            what = draw.random()
            self.operator.forgot()
            if what < 0.4:
                world.redis.empty()
            elif what < 0.7:
                world.redis.go_back(draw.choice([0.05, 0.5, 3.0, 1000.0]))
            elif what < 0.85:
                world.redis.go_back(1.0)
            else:
                world.redis.change_term(world.redis.term + draw.choice([-3, -2, -1, 1, 20]))

        when = draw.random()
        if when < 0.2:
            lose_memory()  # the leader lives on
        elif when < 0.4:
            lose_memory()
            world.clock.after(draw.choice([0.0, 0.02, 0.3]), self._crash_if_alive)
        else:
            self._crash_if_alive(0.1)
            world.clock.after(draw.choice([0.0, 0.05]), lose_memory)
        for _ in range(draw.choice([0, 0, 1, 2, 3])):
            world.clock.after(draw.uniform(0.0, 1.0), self._join)

    def _power_cut(self) -> None:
        """Every process ends. Redis comes back from a dump that it made long before."""
        world, draw = self._world, self._world.random
        if world.state.phase is co.Phase.DONE or world.storage.shows_another_run():  # whose they are a user has to say
            return
        self._crash_if_alive(0.1)
        for node in list(world.nodes.values()):
            self.kill(node)
        self.operator.forgot()
        world.redis.go_back(draw.choice([0.1, 0.3, 1.0, 3.0, 1000.0]))  # the last one: to nothing

    def _crash_if_alive(self, least: float = 0.0) -> None:
        if self._world.leader.alive:
            self._world.leader.end()
            wait = self._world.random.choice([0.1, 1.0, 5.0])
            self._world.clock.after(max(least, wait), self._world.lead)

    def _join(self) -> None:
        self._joined_later += 1
        self._world.boot(f"late{self._joined_later}")

    def _change(self) -> None:
        """A node is given notice, or another one joins."""
        if self._world.random.random() < 0.3:
            self._join()
            return
        live = [n for n in self._world.nodes.values() if n.alive and not n.frozen and n.attendance.leader is not None]
        if live:
            node = self._world.random.choice(live)
            node.tell(
                reports.Draining(node.name, "its machine is to go", self._world.random.choice([None, 2.0, 120.0]))
            )

    def _warn(self) -> None:
        """A node's machine may have to go, or not."""
        node = self._world.random.choice(list(self._world.nodes.values()))
        if node.alive and not node.frozen and node.attendance.leader is not None:
            node.tell(reports.Warned(node.name, "its cloud recommends a rebalance"))

    def _link(self) -> None:
        """A link between two nodes breaks."""
        if self._world.state.phase is co.Phase.DONE or len(self._world.nodes) < 2:
            return
        one, other = self._world.random.sample(sorted(self._world.nodes), 2)
        seconds = None if self._counts.for_good else self._world.random.choice([0.3, 3.0, 8.0, 30.0])
        self.cut_link(one, other, seconds)

    def _storage(self) -> None:
        """The storage of the checkpoints fails for a while, for all or for one node; or a file is torn."""
        storage, random = self._world.storage, self._world.random
        seconds = random.choice([0.3, 3.0, 20.0])
        what = random.choice(["away", "away", "full", "slow", "gone", "unseen", "torn"])
        if what == "torn":
            storage.tear()
            return
        node = random.choice(sorted(self._world.nodes))
        storage.fault(what, node)
        self._world.clock.after(seconds, lambda: storage.mend(what, node))

    def _leave(self) -> None:
        """A node ends without handing over, and says why: with its last words, or with those of a failure."""
        draw = self._world.random
        if draw.random() < 0.6:
            self._crash_if_alive()

        def end() -> None:
            live = [n for n in self._world.nodes.values() if n.alive and not n.frozen and n.attendance.leader]
            if not live or self._world.state.phase is co.Phase.DONE:
                return
            node = draw.choice(live)
            failed: reports.Report = reports.NodeFailed(node.name, node.incarnation, "its disk is full")
            left: reports.Report = reports.Left(node.name, node.incarnation, "it was told to")
            node.busy = True  # it does nothing any more
            node.tell(draw.choice([failed, left]))
            self._world.clock.after(LAST_WORDS, lambda: self.kill(node))

        self._world.clock.after(draw.choice([0.1, 1.0, 5.0]) + draw.uniform(0.0, 0.5), end)

    def _disk(self) -> None:
        """Through one node's disk, or mount, files look other than they are."""
        storage, random = self._world.storage, self._world.random
        node, seconds = random.choice(sorted(self._world.nodes)), random.choice([3.0, 20.0, 100.0])
        storage.fault("rots", node)
        self._world.clock.after(seconds, lambda: storage.mend("rots", node))

    def _disturb(self) -> None:
        if self._world.state.phase is co.Phase.DONE:
            return
        live = [n for n in self._world.nodes.values() if n.alive and not n.frozen]
        if not live:
            return
        node = self._world.random.choice(live)
        what = self._world.random.random()
        if what < 0.65:
            self.kill(node)
        elif what < 0.85:
            self.freeze(node)
        else:
            self.cut(node)


def _are_peers(one: Node, other: Node) -> bool:
    """Whether either of them sends to the other."""
    return one.name in other.streams.peers or other.name in one.streams.peers
