"""A node at work: one worker behind one lock, one compute thread, and the threads that bring and take tensors."""

import logging
import time
from collections.abc import Callable, Iterator

from culm.pipeline.flow import CROSSES, maker_of
from culm.pipeline.job import Job
from culm.pipeline.keys import Key
from culm.pipeline.messages import times_to_proto
from culm.pipeline.patience import Patience
from culm.pipeline.plan import Member, Plan, PlanOrder
from culm.pipeline.plan_codec import commit_from_proto, plan_from_proto
from culm.pipeline.tensors.values import Value
from culm.protos import coordinator_pb2 as pb
from culm.protos import stage_pb2
from culm.stage_server.checkpoint_share import Checkpoints
from culm.stage_server.compute.compute import Compute
from culm.stage_server.compute.loan import Loan
from culm.stage_server.faults import Faults, die
from culm.stage_server.last_words import work_of
from culm.stage_server.streams import attend_messages
from culm.stage_server.streams.fetch import Fetcher
from culm.stage_server.streams.guard import Guard
from culm.stage_server.streams.incoming import NotHeld
from culm.stage_server.streams.orders import Orders
from culm.stage_server.streams.peers import Peers
from culm.stage_server.streams.receiver import Receiver
from culm.stage_server.streams.stream_bounds import RunShape
from culm.stage_server.turn import Turn
from culm.stage_server.watching.activity import Activity
from culm.stage_server.watching.node_metrics import Reading
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
    carry_out,
)
from culm.stage_server.worker.work import Install, Load, Save, Work
from culm.stage_server.worker.worker import Worker

log = logging.getLogger("culm.node")


class Node:
    """Feeds the worker, runs its work and carries out its effects. Every call may come from any thread."""

    def __init__(
        self,
        worker: Worker[Value],
        compute: Compute,
        faults: Faults,
        job: Job,
        patience: Patience,
        forfeit: Callable[[str], None],
        broken: Callable[[BaseException], None],
        run: RunShape,
    ) -> None:
        """``forfeit``: called when what is held is of no use; ``broken``: when something unexpected has raised."""
        self.worker = worker
        self.broken = broken
        self.incarnation = worker.incarnation
        self._guard = Guard(run, worker)
        self.receiver = Receiver(self, job.resilience.seed_bytes_per_second, self._guard)
        self._compute = compute
        self._faults = faults
        self._forfeit = forfeit
        self.changed = Turn(broken)
        self._peers = Peers(self, faults, patience, self._guard)
        self._orders: Orders | None = None
        self._fetcher = Fetcher(self, patience, run)
        self._checkpoints = Checkpoints(self, job, self._report)
        self._built: dict[int, str] = {}  # what was told of layers at their initial state
        self._activity = Activity(job.resilience.redundant_bytes)
        compute.loading = self._activity.loading
        self._traffic = Traffic()
        self._ranges: dict[int, range] = {}  # of the owned stages
        self._busy = False
        self._loans = 0  # loans that wait for a moment between two pieces of work
        self._stopped = False

    def attend(self, orders: Orders) -> None:
        self._orders = orders

    # ---- the compute thread -----------------------------------------------------------------------------------------

    def run(self) -> None:
        """Computes until ``stop``."""
        while True:
            with self.changed:
                work = self._wait_for_work()
                if work is None:
                    break
                self._busy = True
            self._faults.before(work)
            result = self._compute.do(work)
            if result.built:
                self._built.update(result.built)
                self._report(attend_messages.built(self._built))
            with self.changed:
                self._busy = False
                if isinstance(work, Install) and result.refused:
                    self._checkpoints.refuse(work, result.refused)
                elif not isinstance(work, Load):
                    self.worker.finish(work, result.value, result.reduced, result.accumulated)
                    self._carry_out()
                if isinstance(work, Save):
                    self._checkpoints.write(work.step, result.copies)
                if not self._activity.end(work, self.worker.version, result.kept_bytes):
                    self.worker.stop_running_ahead()
                if self._loans:
                    self.changed.notify_all()
            self._faults.after(work)
        self._peers.close()
        self._checkpoints.close()
        log.info("this node ends after %d instructions, at step %d", self._activity.finished, self.worker.version)

    def _wait_for_work(self) -> Work[Value] | Load | None:
        """What to compute next; None once the node is to stop. Gives up the lock, which it holds, while it waits."""
        while not self._stopped:
            if (work := self._choose()) is not None:
                return work
            self.changed.wait()
        return None

    def doing(self) -> str:
        """The instruction that is running, or nothing."""
        return self._activity.running

    def failed_work(self) -> pb.FailedWork | None:
        """The piece of work that has raised; None: it was none of the job's."""
        work, plan = self._activity.present, self.worker.plan
        return work_of(work, plan, self._compute.building) if work is not None and plan is not None else None

    def stop(self) -> None:
        with self.changed:
            self._stopped = True
            self.changed.notify_all()

    def _choose(self) -> Work[Value] | Load | None:
        """What to compute now; None until something happens."""
        work: Work[Value] | Load | None = None
        if not self._loans or self.worker.must_arrange:
            work = self.worker.next_work()
            self._carry_out()
        if work is None:
            self._activity.waits(self.worker.awaited, self.worker.waits_for_commit)
            work = self._load() or self._redundant()
        if work is None:
            self._activity.rests(self.worker.awaited is not None)
        else:
            self._activity.begin(work, self._ranges.values())
        return work

    def _load(self) -> Load | None:
        """What can be loaded while the node waits, so that no forward waits for it; what is not for the next one, only
        if that is expected to be over before the wait is.
        """
        if self._loans or self.worker.must_arrange:
            return None
        load = next((load for load in self.worker.next_loads() if not self._compute.has_loaded(load)), None)
        if load is None or load.step == self.worker.version:
            return load
        next_one = self.worker.waits_for_commit and load.microbatch == 0
        return load if next_one or self._activity.has_time_for(load) else None

    def _redundant(self) -> Work[Value] | None:
        """A forward for a stage that this node stands by for, if one is expected to be over before it is waited for."""
        if not self.worker.runner.eager or self._loans or self.worker.must_arrange:
            return None
        work = self.worker.next_redundant()
        return work if work is not None and self._activity.has_time_for(work) else None

    # ---- effects: called with the lock held, and never waiting ------------------------------------------------------

    def _carry_out(self) -> None:
        carry_out(self.worker.drain(), self)

    def send(self, effect: Send) -> None:
        self._peers.send(effect.peer, effect.key, effect.later)

    def acknowledge(self, effect: Acknowledge) -> None:
        self.receiver.acknowledge(effect.peer, effect.key)

    def say_hello(self, effect: SayHello) -> None:
        self._peers.say_hello(effect.peer)

    def answer_hello(self, effect: AnswerHello) -> None:
        self.receiver.answer_hello(effect.peer, effect.order, effect.era, effect.version)

    def forfeit(self, effect: Forfeit) -> None:
        self._forfeit(effect.why)

    def fetch_layers(self, effect: FetchLayers) -> None:
        assert self.worker.plan is not None
        log.info("fetching layers %s from %s at step %d", effect.layers, effect.peer, self.worker.version)
        self._fetcher.fetch(self.worker.plan.members[effect.peer], effect.layers, effect.era)

    def restore_layers(self, effect: RestoreLayers) -> None:
        self._checkpoints.read(effect)

    def report(self, fact: ReportReady | ReportCaughtUp | ReportResumed) -> None:
        self._report(attend_messages.fact(fact))
        if isinstance(fact, ReportReady):
            self._faults.at(fact.step, "ready", fact.stage)

    def adopted(self, effect: Adopted) -> None:
        self._peers.connect(effect.plan, self.worker.node)
        self._note_stages(effect.plan)

    def _note_stages(self, plan: Plan) -> None:
        ranges = {s: plan.stages[s].layers for s in plan.owned_by(self.worker.node)}
        if ranges != self._ranges:
            self._ranges = ranges
            self._activity.forget()

    def _report(self, request: pb.AttendRequest) -> None:
        if self._orders is not None:
            self._orders.report(request)

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
            if self.worker.acknowledged(peer.node, peer.incarnation, keys):
                self.after_event()

    def synced(self, peer: Member, order: PlanOrder, era: int, version: int) -> None:
        with self.changed:
            self.worker.synced(peer.node, order, era, version)
            self.after_event()

    def peer_lost(self, peer: Member, why: str) -> None:
        self.sender_lost(peer.node, peer.incarnation, why)

    def sent(self, peer: Member, count: int) -> None:
        self._traffic.sent(peer.node, count)

    def went(self, count: int, seconds: float) -> None:
        self._traffic.went(count, seconds)

    # ---- what the receiver brings (culm.stage_server.streams.receiver.Sink) ------------------------------------------

    def heard_hello(self, peer: str, incarnation: int, order: PlanOrder) -> None:
        with self.changed:
            self.worker.hello(peer, incarnation, order)
            self.after_event()
        if self._orders is not None:
            self._orders.leave_lower(order[0])

    def term(self) -> int:
        """The highest term seen."""
        return self.worker.term

    def receiving(self, key: Key) -> None:
        if key.kind in CROSSES:
            self._faults.at(key.step, "receive", maker_of(key))

    def received(self, peer: str, count: int) -> None:
        self._traffic.received(peer, count)

    def deliver(self, peer: str, incarnation: int, order: PlanOrder, key: Key, value: Value) -> None:
        with self.changed:
            if key.step == self.worker.version:
                self._activity.arrived(key)
            self.worker.deliver(peer, incarnation, order, key, value)
            self.after_event()

    def sender_lost(self, peer: str, incarnation: int, why: str) -> None:
        lost = pb.PeerLost(node=peer, incarnation=incarnation, why=why)
        if not self._stopped:
            self._report(pb.AttendRequest(peer_lost=lost))

    def lend(self, layers: list[int], era: int) -> Iterator[tuple[int, int, Loan]]:
        for layer in layers:
            present = self.worker.era
            if era != present:  # computing does not pause for what is not here
                raise NotHeld(f"{self.worker.node} is in era {present}, not {era}")
            with self.changed:  # what is raised in here ends the node
                self._loans += 1
                try:
                    self.changed.wait_for(lambda: self._stopped or not (self._busy or self.worker.must_arrange))
                    version = self.worker.holdings.version_of(layer)
                    held = version is not None and era == self.worker.era and not self._stopped
                    loan = self._compute.layer(layer).lend() if held else None
                finally:
                    self._loans -= 1
                    self.changed.notify_all()
            if version is None or loan is None:
                raise NotHeld(f"{self.worker.node} holds no copy of layer {layer} in era {era}")
            yield layer, version, loan

    # ---- what a fetch brings (culm.stage_server.streams.fetch.Receiver) ----------------------------------------------

    def fetched(self, era: int, layer: int, version: int, state: Value) -> None:
        with self.changed:
            log.info("received layer %d at version %d, while at step %d", layer, version, self.worker.version)
            self.worker.fetched(era, layer, version, state)
            self.after_event()

    def fetch_failed(self, era: int, peer: str, layers: list[int], why: str) -> None:
        log.warning("seeding from %s broke off: %s", peer, why)
        with self.changed:
            self.worker.fetch_failed(era, peer, layers)
            self.after_event()

    # ---- what the coordinator orders (culm.stage_server.streams.orders.Listener) -------------------------------------

    def attached(self, announce: Callable[[list[pb.AttendRequest]], None], available: pb.Available) -> None:
        """Announces this node and repeats its facts (rule 6). What it has done so far goes along: the run may be over
        before the next heartbeat.
        """
        with self.changed:
            facts = [attend_messages.available(available, self.worker), pb.AttendRequest(heartbeat=self.heartbeat())]
            if self._built:
                facts.append(attend_messages.built(self._built))
            facts.extend(attend_messages.ready(fact) for fact in self.worker.repeat_facts())
            facts.extend(attend_messages.caught_up(fact) for fact in self.worker.repeat_settled())
            facts.extend(self._checkpoints.facts())
            announce(facts)

    def heartbeat(self) -> pb.Heartbeat:
        beat = self._activity.heartbeat()
        beat.version = self.worker.version
        beat.times.CopyFrom(times_to_proto(self._activity.times.split(time.monotonic())))
        beat.sent_bytes.update(self._traffic.sent_by_peer())
        beat.bytes_per_second = self._traffic.bytes_per_second()
        return beat

    def reading(self) -> Reading:
        """For Prometheus."""
        with self.changed:
            return Reading(
                node=self.worker.node,
                times=self._activity.times.split(time.monotonic()),
                sent_bytes=self._traffic.sent_by_peer(),
                received_bytes=self._traffic.received_by_peer(),
                version=self.worker.version,
                mailbox=len(self.worker.post.mailbox),
                outbox=len(self.worker.post.outbox),
                finished=self._activity.finished,
            )

    def order(self, order: pb.AttendResponse) -> None:
        """Raises Unfit for what no coordinator of this run orders; nothing has changed then (rule 18)."""
        self._guard.order(order)
        body = order.WhichOneof("body")
        if body == "die":
            self._die(order.die.at)
        with self.changed:
            if body == "plan":
                self.worker.take_plan(plan_from_proto(order.plan))
            elif body == "commit":
                self._activity.arrived(None)
                self.worker.take_commit(commit_from_proto(order.commit))
            self.after_event()

    def _die(self, at: str) -> None:
        if not at:
            die()
        try:
            self._faults.add(at)
        except ValueError as error:  # an order that cannot be obeyed changes nothing
            log.error("ignored an order to die, its place is unknown: %s", error)

    def after_event(self) -> None:
        self._carry_out()
        self.changed.notify_all()
