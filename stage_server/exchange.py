"""What a node exchanges with others: it carries out what the worker wants sent, and hands the worker what comes."""

# The worker decides and knows no threads. Here every thread that brings something takes the node's lock, tells the
# worker, and carries out what the worker wants before it gives the lock up:
#
#     "receive", one for each stream    Hellos and whole tensors of peers          ``heard_hello``, ``deliver``
#     ``Sender._run``, one for each     acknowledgements, answers to Hellos        ``acknowledged``, ``synced``
#     "fetch", one for each fetch       layers of holders                          ``fetched``, ``fetch_failed``
#     "restore"                         layers of the era's checkpoint             ``fetched``
#     the compute thread                what an instruction gave                   ``Node.run``, then ``carry_out``
#     "hand on"                         the same, where a card copies it out       ``HandingOn``, then ``after_event``
#     "orders"                          plans and commits                          ``Node.order``, then ``after_event``
#
# So effects are carried out in the order in which the worker gave them, whoever caused them. No effect waits: tensors
# and answers go into queues, fetches and restores begin on threads of their own. The lock is held for moments, and
# never while anything is computed or read. What is sent meanwhile is a copy of a megabyte at most, to a peer of this
# machine that has room for it (``Sender.send``).
#
# Two things are asked without the lock. ``outgoing`` is called when a tensor's turn has come, often while the thread
# that put it out still holds the lock. ``Guard`` looks at the headers of tensors that come.

import logging
from collections.abc import Callable, Iterator

from culm.pipeline.job import Job
from culm.pipeline.keys import Key
from culm.pipeline.patience import Patience
from culm.pipeline.plan import Member, Plan, PlanOrder
from culm.pipeline.tensors.values import Value
from culm.protos import coordinator_pb2 as pb
from culm.protos import stage_pb2
from culm.stage_server.attendance import Attendance
from culm.stage_server.checkpoint_share import Checkpoints
from culm.stage_server.compute.loan import Loan
from culm.stage_server.faults import Faults
from culm.stage_server.lending import Lending
from culm.stage_server.streams import attend_messages
from culm.stage_server.streams.fetch import Fetcher
from culm.stage_server.streams.guard import Guard
from culm.stage_server.streams.peers import Peers
from culm.stage_server.streams.receiver import Receiver
from culm.stage_server.turn import Turn
from culm.stage_server.watching.activity import Activity
from culm.stage_server.watching.traffic import Traffic
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
    Standing,
    carry_out,
)
from culm.stage_server.worker.worker import Worker

log = logging.getLogger("culm.node")


class Exchange:
    """Between the worker and the threads that bring and take tensors. Every call may come from any thread."""

    def __init__(
        self,
        *,
        worker: Worker[Value],
        changed: Turn,
        attendance: Attendance,
        lending: Lending,
        activity: Activity,
        traffic: Traffic,
        guard: Guard,
        faults: Faults,
        job: Job,
        patience: Patience,
        forfeit: Callable[[str], None],
        broken: Callable[[BaseException], None],
    ) -> None:
        """``forfeit``: called when what is held is of no use; ``broken``: when something unexpected has raised."""
        self.worker = worker
        self.changed = changed
        self.broken = broken
        self.incarnation = worker.at.incarnation
        self.receiver = Receiver(self, job.resilience.seed_bytes_per_second, guard)
        self.checkpoints = Checkpoints(self, job, attendance.report)
        # Invariant: the layers of each stage that this node owns under the plan that was adopted last.
        self.owned: dict[int, range] = {}
        self._held: frozenset[int] = frozenset()
        self._peers = Peers(self, faults, patience, guard)
        self._fetcher = Fetcher(self, patience, guard.run)
        self._attendance = attendance
        self._lending = lending
        self._activity = activity
        self._traffic = traffic
        self._faults = faults
        self._forfeit = forfeit

    def close(self) -> None:
        self._peers.close()
        self.checkpoints.close()

    def after_event(self) -> None:
        """Something was told to the worker. Called with the lock held; the compute thread may have work now."""
        self.carry_out()
        self.changed.notify_all()

    # ---- effects: called with the lock held, and never waiting ------------------------------------------------------

    def carry_out(self) -> None:
        if self.worker.effects:
            carry_out(self.worker.drain(), self)

    def send(self, effect: Send) -> None:
        self._peers.send(effect.peer, effect.key, effect.later)

    def acknowledge(self, effect: Acknowledge) -> None:
        self.receiver.acknowledge(effect.peer, effect.key)

    def say_hello(self, effect: SayHello) -> None:
        self._peers.say_hello(effect.peer)

    def answer_hello(self, effect: AnswerHello) -> None:
        self.receiver.answer_hello(effect.peer, effect.standing)

    def forfeit(self, effect: Forfeit) -> None:
        self._forfeit(effect.why)

    def fetch_layers(self, effect: FetchLayers) -> None:
        assert self.worker.plan is not None
        holder = self.worker.plan.members.get(effect.peer)
        if holder is None:  # gone by the plan after the one that asked it: that plan asks another
            return
        log.info("fetching layers %s from %s, while at step %d", effect.layers, effect.peer, self.worker.version)
        self._fetcher.fetch(holder, effect.layers, effect.era, effect.at_once)

    def restore_layers(self, effect: RestoreLayers) -> None:
        self.checkpoints.read(effect)

    def report(self, fact: ReportReady | ReportCaughtUp | ReportResumed) -> None:
        self._attendance.report(attend_messages.fact(fact))
        if isinstance(fact, ReportReady):
            self._activity.told_ready(fact.step, fact.stage)
            self._faults.at(fact.step, "ready", fact.stage)

    def adopted(self, effect: Adopted) -> None:
        self._peers.connect(effect.plan, self.worker.node)
        self._note_stages(effect.plan)

    def _note_stages(self, plan: Plan) -> None:
        owned = {s: plan.stages[s].layers for s in plan.owned_by(self.worker.node)}
        held = plan.layers_of(self.worker.node)
        if (owned, held) != (self.owned, self._held):  # what was learnt of durations and waits is of other layers
            self.owned, self._held = owned, held
            self._activity.forget()

    # ---- what senders ask (culm.stage_server.streams.sender.Source) --------------------------------------------------

    def greeting(self) -> stage_pb2.Hello:
        with self.changed:
            return stage_pb2.Hello(
                node=self.worker.node,
                incarnation=self.incarnation,
                term=self.worker.plan.term if self.worker.plan else 0,
                generation=self.worker.plan.generation if self.worker.plan else 0,
            )

    def outgoing(self, key: Key, peer: Member) -> tuple[Value, PlanOrder] | None:
        # Without the lock, which whoever has just put the value out still holds: a key's value never changes, and the
        # peer is told which plan it was sent under (rule 3).
        plan, value = self.worker.plan, self.worker.post.outbox.get(key)
        if plan is None or value is None or plan.members.get(peer.node) != peer:
            return None
        if self.worker.post.outbox.has_acknowledged(key, peer.node, peer.incarnation):
            return None
        return value, plan.order

    def unacknowledged(self, peer: Member) -> list[Key]:
        with self.changed:
            plan, outbox = self.worker.plan, self.worker.post.outbox
            if plan is None or plan.members.get(peer.node) != peer:
                return []
            return [key for key in outbox if peer.node in outbox.unacknowledged(key, plan)]

    def acknowledged(self, peer: Member, keys: list[Key]) -> None:
        with self.changed:
            # In a calm step acknowledgements change nothing that there is to do: then no thread is woken.
            if self.worker.acknowledged(peer.node, peer.incarnation, keys):
                self.after_event()

    def synced(self, peer: Member, standing: Standing) -> None:
        with self.changed:
            self.worker.synced(peer.node, standing)
            self.after_event()

    def peer_lost(self, peer: Member, why: str) -> None:
        self.sender_lost(peer.node, peer.incarnation, why)

    def sent(self, peer: Member, count: int) -> None:
        self._traffic.sent(peer.node, count)

    def went(self, count: int, seconds: float) -> None:
        self._traffic.went(count, seconds)

    # ---- what the receiver brings (culm.stage_server.streams.incoming.Sink) ------------------------------------------

    def heard_hello(self, peer: str, incarnation: int, order: PlanOrder) -> None:
        with self.changed:
            self.worker.hello(peer, incarnation, order)
            self.after_event()
        self._attendance.leave_lower(order[0])

    def receiving(self, key: Key) -> None:
        self._faults.passes("receive", key)

    def received(self, peer: str, count: int) -> None:
        self._traffic.received(peer, count)

    def deliver(self, peer: str, incarnation: int, order: PlanOrder, key: Key, value: Value) -> None:
        with self.changed:
            self._activity.arrived(key, self.worker.version)
            self.worker.deliver(peer, incarnation, order, key, value)
            self.after_event()

    def sender_lost(self, peer: str, incarnation: int, why: str) -> None:
        if not self.changed.stopped:  # a node that ends closes its own streams: that is no evidence against a peer
            lost = pb.PeerLost(node=peer, incarnation=incarnation, why=why)
            self._attendance.report(pb.AttendRequest(peer_lost=lost))

    def lend(self, layers: list[int], era: int) -> Iterator[tuple[int, int, Loan]]:
        return self._lending.lend(layers, era)

    # ---- what a fetch brings (culm.stage_server.streams.fetch.FetchListener) -----------------------------------------

    def fetched(self, era: int, layer: int, version: int, state: Value, source: str) -> None:
        with self.changed:
            log.info("received layer %d at version %d, while at step %d", layer, version, self.worker.version)
            self.worker.fetched(era, layer, version, state, source)
            self.after_event()

    def fetch_failed(self, era: int, peer: str, layers: list[int], why: str) -> None:
        log.warning("could not fetch layers %s from %s, trying another holder if there is one: %s", layers, peer, why)
        with self.changed:
            self.worker.fetch_failed(era, peer, layers)
            self.after_event()
