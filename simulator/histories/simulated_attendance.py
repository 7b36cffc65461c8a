"""A simulated node's attendance: its order stream to a coordinator, what it reports there, and whom it obeys."""

from culm.coordinator import reports
from culm.pipeline.commit import Commit
from culm.pipeline.layer_bytes import LayerBytes
from culm.pipeline.plan import Plan
from culm.simulator.histories.simulated_storage import THIS_RUN
from culm.simulator.histories.world import Leader, Node, World
from culm.stage_server.worker.effects import ReportCaughtUp, ReportReady, ReportResumed

# An order stream is two channels: reports go up, orders come down. Each keeps its order.
#
#     not attending --attach--> attending --detach, or the leader goes--> not attending
#         ^   |                                                               |
#         '---+------------- after a moment, to any living leader ------------'
#
# On attaching a node joins, says where it stands, and repeats its facts (rule 6), each time as of that moment. It does
# not know which leader is the newest: rules 12 and 15 say whom it obeys, and are held against every order here.

REATTACH_SECONDS = (0.05, 0.5)  # until a node without a leader looks for one again: between these
BEAT_SECONDS = 0.5


class SimulatedAttendance:
    """Of one incarnation."""

    def __init__(self, world: World, node: Node) -> None:
        self._world = world
        self._node = node
        self.leader: Leader | None = None  # whom it attends
        self._up, self._down = world.channel(), world.channel()
        self._obeyed = ObeyedLeaders(node.name)

    # ---- the stream -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._attach()
        self._beat()

    def _attach(self) -> None:
        """Opens an order stream to whoever leads, announces itself and repeats its facts; else tries again."""
        world, node = self._world, self._node
        if not node.alive or self.leader is not None:
            return
        leader = world.reachable_leader(node)
        if leader is None or node.frozen:
            self._attach_later()
            return
        self.leader = leader
        down = world.channel()
        self._up, self._down = world.channel(), down
        self._up.send(lambda: leader.attach(node, down))
        zone = world.zones.get(node.name, "")
        self.tell(
            reports.Joined(
                node=node.name,
                incarnation=node.incarnation,
                address=f"{node.name}:1",
                zone=zone,
                term=node.worker.term,
            )
        )
        if world.start_up.starts(node):
            self._up.send(self.announce)

    def _attach_later(self) -> None:
        self._world.clock.after(self._world.random.uniform(*REATTACH_SECONDS), self._attach)

    def detach(self) -> None:
        """The order stream breaks: what is on its way is lost, either way. The leader notices after a moment, and sends
        orders in vain until then; the node tries again.
        """
        leader = self.end()
        if leader is not None:
            self._world.clock.after(self._world.brief(), lambda: leader.broke(self._node))
        self._attach_later()

    def detached(self) -> None:
        """The leader went."""
        if self.leader is not None:
            self.end()
            self._attach_later()

    def end(self, keep: float = 0.0) -> Leader | None:
        """Whom it attended until now. What would arrive within ``keep`` seconds still does."""
        leader, self.leader = self.leader, None
        self._up.cut(keep)
        self._down.cut(keep)
        return leader

    # ---- reports ----------------------------------------------------------------------------------------------------

    def tell(self, report: reports.Report) -> None:
        leader = self.leader
        if leader is not None:
            self._up.send(lambda: leader.take(report))

    def announce(self) -> None:
        """What the node says once it is welcome, and when it is asked: as of this moment."""
        node, worker = self._node, self._node.worker
        if not node.alive or self.leader is None:
            return
        plan = worker.plan
        available = reports.Available(
            node=node.name,
            incarnation=node.incarnation,
            layer_costs=self._world.parameters,
            layer_seconds=self._world.layer_seconds(node.incarnation),
            layer_bytes=(LayerBytes(state=12, gradient=4, boundary=1),) * self._world.layers,
            memory_bytes=self._world.memory_of.get(node.name, self._world.memory_bytes),
            era=worker.era,
            version=worker.version,
            holds_state=worker.holds_state,
            plan=plan,
            last_commit=worker.last_commit,
            layers=frozenset(worker.holdings.kept()),
            identity=THIS_RUN,
        )
        self.tell(available)
        for fact in worker.facts.repeated():
            self.report(fact)
        for settled in worker.facts.repeated_settled():
            self.report(settled)
        if (written := self._world.storage.written(node)) is not None:
            self.tell(written)

    def _beat(self) -> None:
        if not self._node.alive:
            return
        if not self._node.frozen:
            self.tell(self._world.start_up.beat(self._node))
        self._world.clock.after(BEAT_SECONDS + self._world.start_up.beat_delay(), self._beat)

    def report(self, fact: ReportReady | ReportCaughtUp | ReportResumed) -> None:
        """As a message of this node."""
        name, incarnation = self._node.name, self._node.incarnation
        if isinstance(fact, ReportReady):
            self.tell(
                reports.Ready(
                    node=name,
                    incarnation=incarnation,
                    era=fact.era,
                    step=fact.step,
                    stage=fact.stage,
                    first_layer=fact.first_layer,
                    squared_norms=fact.squared_norms,
                    tallies=fact.tallies,
                    redone=fact.redone,
                    states=fact.states,
                    audited=fact.audited,
                    taken=fact.taken,
                    order=fact.order,
                )
            )
        elif isinstance(fact, ReportCaughtUp):
            self.tell(
                reports.CaughtUp(
                    node=name,
                    incarnation=incarnation,
                    era=fact.era,
                    first_layer=fact.first_layer,
                    end_layer=fact.end_layer,
                    version=fact.version,
                    order=fact.order,
                )
            )
        else:
            self.tell(reports.Resumed(name, incarnation, fact.generation, fact.stage))

    # ---- orders -----------------------------------------------------------------------------------------------------

    def obey(self, order: Plan | Commit) -> None:
        """The worker takes it or refuses it. Raises AssertionError if it takes one that it must not."""
        worker = self._node.worker
        before = (worker.plan, worker.committed)
        if isinstance(order, Plan):
            worker.take_plan(order)
        else:
            worker.take_commit(order)
        self._obeyed.check(order, worker.plan, (worker.plan, worker.committed) != before)


class ObeyedLeaders:
    """Whom one node has obeyed, so that rules 12 and 15 can be held against every order."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._term = 0  # the highest of any order
        self._led_by: dict[int, int] = {}  # term -> the leader whose plans were obeyed

    def check(self, order: Plan | Commit, plan: Plan | None, obeyed: bool) -> None:
        """``plan``: the one that is obeyed now; ``obeyed``: the order has changed something."""
        if plan is not None:
            known = self._led_by.setdefault(plan.term, plan.leader)
            assert known == plan.leader, f"{self._name} obeyed two leaders of the same term {plan.term} (rule 15)"
        assert not obeyed or order.term >= self._term, f"{self._name} obeyed {order.term} after {self._term} (rule 12)"
        self._term = max(self._term, order.term)
