"""A simulated node: the real worker over the tiny arithmetic, with virtual streams and virtual time for its work."""

from culm.coordinator import reports
from culm.pipeline.commit import Commit
from culm.pipeline.flow import peers_of
from culm.pipeline.instruction import Instruction
from culm.pipeline.keys import Key, Kind
from culm.pipeline.plan import Plan, PlanOrder
from culm.simulator.histories.arithmetic import Arithmetic, Number
from culm.simulator.histories.world import Leader, Node, World
from culm.simulator.network import Channel
from culm.stage_server.worker.effects import (
    Acknowledge,
    Adopted,
    AnswerHello,
    FetchLayers,
    Forfeit,
    ReportCaughtUp,
    ReportReady,
    ReportResumed,
    RestoreLayers,
    SayHello,
    Send,
    carry_out,
)
from culm.stage_server.worker.work import Apply, Arrange, Install, Reduce, Resume, Run, Save, Work
from culm.stage_server.worker.worker import Worker

RUNS_AHEAD = 0.7  # how often a node that waits takes the time for a redundant forward, where it may


class SimulatedNode:
    """One incarnation of one node process."""

    def __init__(self, world: World, name: str, incarnation: int, worker: Worker[Number]) -> None:
        self.world = world
        self.name = name
        self.incarnation = incarnation
        self.worker = worker
        self.arithmetic = Arithmetic()
        self.alive = True
        self.frozen = False
        self.executed: list[tuple[int, Instruction]] = []
        self.busy = False
        self.deaf = False  # obeys nobody any more
        self._term = 0  # the highest of any order
        self._led_by: dict[int, int] = {}  # term -> the leader whose plans were obeyed
        self._streams: dict[str, tuple[int, Channel]] = {}  # peer -> (its incarnation, channel to it)
        self.peers: dict[str, int] = {}
        self.leader: Leader | None = None  # whom it attends
        self.up = world.channel()

    # ---- life -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.attach()
        self._beat()

    def attach(self) -> None:
        """Opens an order stream to whoever leads, announces itself and repeats its facts (rule 6); else tries again."""
        if not self.alive or self.leader is not None:
            return
        leader = self.world.reachable_leader(self)
        if leader is None or self.frozen:
            self.world.clock.after(self.world.random.uniform(0.05, 0.5), self.attach)
            return
        self.leader = leader
        self.up, down = self.world.channel(), self.world.channel()
        self.up.send(lambda: leader.attach(self, down))
        zone = self.world.zones.get(self.name, "")
        self.tell(
            reports.Joined(
                node=self.name, incarnation=self.incarnation, address=f"{self.name}:1", zone=zone, term=self.worker.term
            )
        )
        if self.world.start_up.starts(self):
            self.up.send(self.announce)

    def announce(self) -> None:
        """What the node says once it is welcome, and when it is asked: as of this moment."""
        worker, leader = self.worker, self.leader
        if not self.alive or leader is None:
            return
        plan = worker.plan
        available = reports.Available(
            node=self.name,
            incarnation=self.incarnation,
            layer_costs=tuple(1.0 for _ in range(self.world.layers)),
            era=worker.era,
            version=worker.version,
            holds_state=plan is not None and bool(plan.layers_of(self.name)),
            plan=plan,
            last_commit=worker.last_commit,
            layers=frozenset(worker.holdings.kept()),
        )
        self.tell(available)
        for fact in worker.repeat_facts():
            self.tell(self._ready(fact))
        for settled in worker.repeat_settled():
            self.tell(self._caught_up(settled))

    def detach(self) -> None:
        """The order stream breaks; the leader notices after a moment, and the node tries again."""
        leader, self.leader = self.leader, None
        self.up.cut()
        if leader is not None:
            self.world.clock.after(self.world.brief(), lambda: leader.broke(self))
        self.world.clock.after(self.world.random.uniform(0.05, 0.5), self.attach)

    def detached(self) -> None:
        """The leader went."""
        if self.leader is not None:
            self.leader = None
            self.up.cut()
            self.world.clock.after(self.world.random.uniform(0.05, 0.5), self.attach)

    def obey(self, order: Plan | Commit | None) -> None:
        """An order has arrived; None: go, and join anew."""
        if self.deaf:
            return
        if order is None:
            self.world.join_anew(self)
            return
        before = (self.worker.plan, self.worker.committed)
        if isinstance(order, Plan):
            self.worker.take_plan(order)
        else:
            self.worker.take_commit(order)
        obeyed = (self.worker.plan, self.worker.committed) != before
        if self.worker.plan is not None:
            plan = self.worker.plan
            known = self._led_by.setdefault(plan.term, plan.leader)
            assert known == plan.leader, f"{self.name} obeyed two leaders of the same term {plan.term} (rule 15)"
        assert not obeyed or order.term >= self._term, f"{self.name} obeyed {order.term} after {self._term} (rule 12)"
        self._term = max(self._term, order.term)

    def _beat(self) -> None:
        if not self.alive:
            return
        if not self.frozen:
            self.tell(self.world.start_up.beat(self))
        self.world.clock.after(0.5 + self.world.start_up.beat_delay(), self._beat)

    def tell(self, report: reports.Report) -> None:
        leader = self.leader
        if leader is not None:
            self.up.send(lambda: leader.take(report))

    def thaw(self) -> None:
        self.frozen = False
        held, self.world.held[self] = self.world.held.get(self, []), []
        for action in held:
            action()
        self.go()

    # ---- work -------------------------------------------------------------------------------------------------------

    def go(self) -> None:
        """Starts the next piece of work if nothing is being computed, and carries out what is due."""
        if not self.alive or self.frozen:
            return
        if not self.busy:
            work = self.worker.next_work()
            if work is None and self.worker.runner.eager and self.world.random.random() < RUNS_AHEAD:
                work = self.worker.next_redundant()
            if work is not None:
                self.busy = True
                seconds = self.world.duration(work) + self.world.start_up.stall(self, work)
                self.world.clock.after(seconds, lambda: self._finish(work))
        self._carry_out()

    def _finish(self, work: Work[Number]) -> None:
        if not self.alive:
            return
        if self.frozen:
            self.world.held.setdefault(self, []).append(lambda: self._finish(work))
            return
        if self.deaf or self.world.start_up.goes_wrong(self, work):
            return
        self.busy = False
        result, reduced = self._compute(work)
        self.worker.finish(work, result, reduced, self._accumulated(work))
        self.world.faults.after_work(self, work)
        self.go()
        self.world.check(self)

    def _compute(self, work: Work[Number]) -> tuple[Number | None, tuple[tuple[int, Number], ...]]:
        arithmetic = self.arithmetic
        if isinstance(work, Arrange):
            stages = [(duty.stage, layers.start, layers.stop) for duty, layers in work.duties]
            arithmetic.arrange(work.layers, stages, work.anew, [duty.stage for duty in work.fresh])
        elif isinstance(work, Apply):
            for layer, value in work.gradients:
                arithmetic.apply(layer, value.number, work.scale, work.step)
        elif isinstance(work, Save):
            self.world.storage.save(self, work)
        elif isinstance(work, Install):
            arithmetic.install(work.layer, work.version, work.state.number)
        elif isinstance(work, Resume):
            if work.duty.stage in arithmetic.ranges:
                arithmetic.resume(work.duty.stage, work.step, work.accumulated)
        elif isinstance(work, Reduce):
            if work.duty.stage not in arithmetic.ranges:
                return None, ()
            last = arithmetic.ranges[work.duty.stage][1] == self.world.layers
            return None, arithmetic.reduce(work.duty.stage, last, self.world.microbatches)
        else:
            return self._pass(work), ()
        return None, ()

    def _accumulated(self, work: Work[Number]) -> Number | None:
        if not isinstance(work, Run) or not work.ships or work.instruction.stage not in self.arithmetic.ranges:
            return None
        last = self.arithmetic.ranges[work.instruction.stage][1] == self.world.layers
        return self.arithmetic.accumulated(work.instruction.stage, work.ships if last else 0)

    def _pass(self, work: Run[Number]) -> Number | None:
        stage, m = work.instruction.stage, work.instruction.microbatch
        operand = work.operand.number if work.operand is not None else None
        if stage not in self.arithmetic.ranges:
            return None
        if not work.redundant:
            self.executed.append((work.step, work.instruction))
        if work.instruction.op == "W":
            self.arithmetic.accumulate(stage, m)
            return None
        if work.instruction.op == "F":
            last = self.arithmetic.ranges[stage][1] == self.world.layers
            return Number(self.arithmetic.forward(stage, work.step, m, operand, last))
        splits = self.worker.at.schedule.splits_at(stage)
        return Number(self.arithmetic.backward(stage, work.step, m, operand, splits, work.accumulates))

    # ---- effects ----------------------------------------------------------------------------------------------------

    def _carry_out(self) -> None:
        carry_out(self.worker.drain(), self)

    def forfeit(self, effect: Forfeit) -> None:
        self.world.faults.kill(self)
        self.world.join_anew(self)

    def acknowledge(self, effect: Acknowledge) -> None:
        self._back(effect.peer, effect.key)

    def answer_hello(self, effect: AnswerHello) -> None:
        self._back(effect.peer, effect)

    def fetch_layers(self, effect: FetchLayers) -> None:
        self.world.fetch(self, effect)

    def restore_layers(self, effect: RestoreLayers) -> None:
        self.world.storage.restore(self, effect)

    def report(self, fact: ReportReady | ReportCaughtUp | ReportResumed) -> None:
        if isinstance(fact, ReportReady):
            self.tell(self._ready(fact))
        elif isinstance(fact, ReportCaughtUp):
            self.tell(self._caught_up(fact))
        else:
            self.tell(reports.Resumed(self.name, self.incarnation, fact.generation, fact.stage))

    def _caught_up(self, fact: ReportCaughtUp) -> reports.CaughtUp:
        return reports.CaughtUp(
            node=self.name,
            incarnation=self.incarnation,
            era=fact.era,
            first_layer=fact.first_layer,
            end_layer=fact.end_layer,
            version=fact.version,
            order=fact.order,
        )

    def _ready(self, fact: ReportReady) -> reports.Ready:
        return reports.Ready(
            node=self.name,
            incarnation=self.incarnation,
            era=fact.era,
            step=fact.step,
            stage=fact.stage,
            first_layer=fact.first_layer,
            squared_norms=fact.squared_norms,
            losses=fact.losses,
            redone=fact.redone,
        )

    def _cut_off_from(self, peer: str) -> bool:
        return self.world.faults.cut_off(self.name, peer)

    def adopted(self, effect: Adopted) -> None:
        plan = effect.plan
        self.peers = {p: plan.members[p].incarnation for p in peers_of(self.name, plan)}
        for peer, (incarnation, channel) in list(self._streams.items()):
            if self.peers.get(peer) != incarnation:
                channel.cut(keep=self.world.brief())
                del self._streams[peer]

    def _stream(self, peer: str) -> Channel:
        incarnation = self.peers[peer]
        if peer not in self._streams:
            self._streams[peer] = (incarnation, self.world.channel())
        return self._streams[peer][1]

    def say_hello(self, effect: SayHello) -> None:
        self._hello(effect.peer)

    def _hello(self, peer: str) -> None:
        if peer in self.peers and self.worker.plan is not None and not self._cut_off_from(peer):
            to, order = (peer, self.peers[peer]), self.worker.plan.order
            self._stream(peer).send(lambda: self.world.receive(to, lambda n: n.hear_hello(self, order)))

    def hear_hello(self, sender: Node, order: PlanOrder) -> None:
        self.worker.hello(sender.name, sender.incarnation, order)
        if self.leader is not None and self.leader.term < self.worker.term:
            self.detach()  # another leads by now (rule 12)

    def send(self, effect: Send) -> None:
        self._send(effect.peer, effect.key)

    def _send(self, peer: str, key: Key) -> None:
        value = self.worker.post.outbox.get(key)
        plan = self.worker.plan
        assert peer in self.peers, f"{self.name} sends {key} to {peer}, to whom it has no stream"
        if value is None or plan is None or self._cut_off_from(peer):
            return
        to, order = (peer, self.peers[peer]), plan.order
        seconds = self.world.bulk_seconds if key.kind is Kind.REDUCED else 0.0
        self._stream(peer).send(
            lambda: self.world.receive(to, lambda n: n.worker.deliver(self.name, self.incarnation, order, key, value)),
            seconds,
        )

    def _back(self, peer: str, answer: Key | AnswerHello) -> None:
        """An answer on the stream that the peer opened to this node."""
        sender = self.world.nodes.get(peer)
        if sender is None or self._cut_off_from(peer):
            return
        to = (peer, sender.incarnation)

        def arrive(node: Node) -> None:
            if isinstance(answer, AnswerHello):
                node.worker.synced(self.name, answer.order, answer.era, answer.version)
            else:
                node.worker.acknowledged(self.name, self.incarnation, [answer])

        self.world.back_channel(self.name, peer).send(lambda: self.world.receive(to, arrive))

    def reopen(self, peer: str) -> None:
        """The stream to the peer broke and is opened again: hello, then all that is not acknowledged."""
        if not self.alive or self.worker.plan is None or peer not in self.peers:
            return
        self._streams.pop(peer, None)
        self._hello(peer)
        for key in self.worker.post.outbox:
            if peer in self.worker.post.outbox.unacknowledged(key, self.worker.plan):
                self._send(peer, key)

    def break_streams(self, keep: float) -> None:
        for _, channel in self._streams.values():
            channel.cut(keep)

    def cut_stream(self, peer: str) -> bool:
        if peer not in self._streams:
            return False
        self._streams[peer][1].cut()
        return True
