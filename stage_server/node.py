"""A node at work: one worker behind one lock, one compute thread, and the threads that bring and take tensors."""

import logging
import threading
import time
from collections.abc import Callable, Iterator

from pipeline.job import Job
from pipeline.keys import ACTIVATION, GRADIENT, Key
from pipeline.manifest import File
from pipeline.messages import plan_from_proto, times_to_proto
from pipeline.plan import Member, Plan, PlanOrder
from pipeline.schedule import Instruction
from pipeline.values import Value
from protos import coordinator_pb2 as pb
from protos import stage_pb2
from stage_server import reports
from stage_server.activity import Activity
from stage_server.bell import Bell
from stage_server.checkpointer import Checkpointer, Share
from stage_server.compute import Compute
from stage_server.faults import Faults, die
from stage_server.fetch import Fetcher
from stage_server.instructions import (
    Acknowledge,
    Adopted,
    AnswerHello,
    Apply,
    Effect,
    FetchLayers,
    Forfeit,
    Load,
    Reduce,
    ReportCaughtUp,
    ReportReady,
    RestoreLayers,
    Save,
    SayHello,
    Send,
    Work,
)
from stage_server.loan import Loan
from stage_server.metrics import Reading
from stage_server.orders import Orders
from stage_server.peers import Peers
from stage_server.receiver import Receiver
from stage_server.traffic import Traffic
from stage_server.worker import Worker

log = logging.getLogger("culm.node")

GIVE_WAY = 0.0005  # seconds in which others go first: a gradient before its reduction, a commit's apply before more
GIVE_WAY_TO_FIRST = 0.003  # that a commit waits on a later stage's node: all wait for the first, maybe on this machine
CHECKPOINT_PATIENCE = 10.0  # seconds that an orderly end waits for a checkpoint being written


class Node:
    """Feeds the worker, runs its work and carries out its effects. Every call may come from any thread."""

    def __init__(
        self, worker: Worker[Value], compute: Compute, faults: Faults, job: Job, forfeit: Callable[[str], None]
    ) -> None:
        self.worker = worker
        self.incarnation = worker.incarnation
        self._bell = Bell()
        self.receiver = Receiver(self, self._bell, job.resilience.seed_bytes_per_second)
        self._compute = compute
        self._faults = faults
        self._forfeit = forfeit
        self._changed = threading.Condition()
        self._peers = Peers(self, faults)
        self._orders: Orders | None = None
        self._fetcher = Fetcher(self)
        self._reader = Checkpointer(job.checkpoint.url if job.checkpoint is not None else "", self)
        self._checkpointer = self._reader if job.checkpoint is not None else None
        self._saved: pb.AttendRequest | None = None  # the last share written, for a coordinator that missed it
        self._activity = Activity(job.resilience.redundant_bytes)
        self._traffic = Traffic()
        self._ranges: dict[int, range] = {}  # of the owned stages
        self._has_sent = False  # a tensor since the last piece of work
        self._busy = False
        self._loans = 0  # loans that wait for a moment between two pieces of work
        self._stopped = False

    def attend(self, orders: Orders) -> None:
        self._orders = orders

    # ---- the compute thread -----------------------------------------------------------------------------------------

    def run(self) -> None:
        """Computes until ``stop``."""
        while True:
            with self._changed:
                if self._stopped:
                    break
                work = self._choose()
                self._busy = work is not None
                if work is None:
                    self._bell.rests()
                pause = self._pause_before(work)
            if work is None:
                self._bell.wait()
                continue
            if pause:
                time.sleep(pause)
            self._has_sent = False
            self._faults.before(work)
            result = self._compute.do(work)
            with self._changed:
                self._busy = False
                if not isinstance(work, Load):
                    self.worker.finish(work, result.value, result.reduced, result.accumulated)
                    self._carry_out()
                if isinstance(work, Save) and self._checkpointer is not None:
                    self._checkpointer.write(Share(self.worker.era, work.step, result.copies))
                if not self._activity.end(work, self.worker.version, result.kept_bytes):
                    self.worker.ahead.stop()
                if self._loans:
                    self._changed.notify_all()
            self._faults.after(work)
        self._peers.close()
        self._reader.close(CHECKPOINT_PATIENCE)
        log.info("ends after %d instructions, at step %d", self._activity.finished, self.worker.version)

    def doing(self) -> str:
        """The instruction that is running, or nothing."""
        return self._activity.running

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
            self._bell.ring()

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
            self._activity.rests(self.worker.waits_for_input)
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
        if not self.worker.eager or self._loans or self.worker.must_arrange:
            return None
        work = self.worker.next_redundant()
        return work if work is not None and self._activity.has_time_for(work) else None

    def _pause_before(self, work: Work[Value] | Load | None) -> float:
        """Seconds in which others go first for whom somebody waits."""
        if isinstance(work, Reduce) and self._has_sent:
            return GIVE_WAY
        if not isinstance(work, Apply) or work.catch_up:
            return 0.0
        return GIVE_WAY_TO_FIRST if self._activity.usual_wait(self.worker.first_input) > 2 * GIVE_WAY_TO_FIRST else 0.0

    # ---- effects: called with the lock held, and never waiting ------------------------------------------------------

    def _carry_out(self) -> None:
        for effect in self.worker.drain():
            self._effect(effect)

    def _effect(self, effect: Effect) -> None:
        if isinstance(effect, Send):
            self._has_sent = True
            self._peers.send(effect.peer, effect.key, effect.later)
        elif isinstance(effect, Acknowledge):
            self.receiver.acknowledge(effect.peer, effect.key)
        elif isinstance(effect, Forfeit):
            self._forfeit(effect.why)
        elif isinstance(effect, SayHello):
            self._peers.say_hello(effect.peer)
        elif isinstance(effect, AnswerHello):
            self.receiver.answer_hello(effect.peer, effect.order, effect.era, effect.version)
        elif isinstance(effect, Adopted):
            self._peers.connect(effect.plan, self.worker.node)
            self._note_stages(effect.plan)
        elif isinstance(effect, FetchLayers):
            assert self.worker.plan is not None
            log.info("fetching layers %s from %s at step %d", effect.layers, effect.peer, self.worker.version)
            self._fetcher.fetch(self.worker.plan.members[effect.peer], effect.layers, effect.era)
        elif isinstance(effect, RestoreLayers):
            self._restore(effect)
        elif isinstance(effect, ReportCaughtUp):
            self._report(reports.caught_up(effect))
        elif isinstance(effect, ReportReady):
            self._report(reports.ready(effect))
            self._faults.at(effect.step, "ready", effect.stage)
        else:
            self._report(reports.resumed(effect))

    def _restore(self, effect: RestoreLayers) -> None:
        log.info("reading layers %s from %s", effect.layers, effect.folder)
        self._reader.read(effect.folder, effect.step, effect.layers, effect.era)

    def _note_stages(self, plan: Plan) -> None:
        ranges = {s: plan.stages[s].layers for s in plan.owned_by(self.worker.node)}
        if ranges != self._ranges:
            self._ranges = ranges
            self._activity.forget()

    def _report(self, request: pb.AttendRequest) -> None:
        if self._orders is not None:
            self._orders.report(request)

    # ---- what senders ask (stage_server.sender.Source) --------------------------------------------------------------

    def greeting(self) -> stage_pb2.Hello:
        with self._changed:
            return stage_pb2.Hello(
                node=self.worker.node,
                incarnation=self.incarnation,
                term=self.worker.plan.term if self.worker.plan else 0,
                generation=self.worker.plan.generation if self.worker.plan else 0,
            )

    def outgoing(self, key: Key, peer: Member) -> tuple[Value, PlanOrder] | None:
        # Without the lock, which whoever has just put the value out still holds: a key's value never changes, and the
        # peer is told which plan it was sent under (rule 3).
        plan, value = self.worker.plan, self.worker.outbox.get(key)
        if plan is None or value is None or plan.members.get(peer.node) != peer:
            return None
        if self.worker.outbox.has_acknowledged(key, peer.node, peer.incarnation):
            return None
        return value, plan.order

    def unacknowledged(self, peer: Member) -> list[Key]:
        with self._changed:
            plan, outbox = self.worker.plan, self.worker.outbox
            if plan is None or plan.members.get(peer.node) != peer:
                return []
            return [key for key in outbox if peer.node in outbox.unacknowledged(key, plan)]

    def acknowledged(self, peer: Member, keys: list[Key]) -> None:
        with self._changed:
            if self.worker.acknowledged(peer.node, peer.incarnation, keys):
                self._after_event()

    def synced(self, peer: Member, order: PlanOrder, era: int, version: int) -> None:
        with self._changed:
            self.worker.synced(peer.node, order, era, version)
            self._after_event()

    def peer_lost(self, peer: Member, why: str) -> None:
        self.sender_lost(peer.node, peer.incarnation, why)

    def sent(self, peer: Member, count: int) -> None:
        self._traffic.sent(peer.node, count)

    def went(self, count: int, seconds: float) -> None:
        self._traffic.went(count, seconds)

    # ---- what the receiver brings (stage_server.receiver.Sink) ------------------------------------------------------

    def heard_hello(self, peer: str, incarnation: int, order: PlanOrder) -> None:
        with self._changed:
            self.worker.hello(peer, incarnation, order)
            self._after_event()
        if self._orders is not None:
            self._orders.leave_lower(order[0])

    def term(self) -> int:
        """The highest term seen."""
        return self.worker.term

    def receiving(self, key: Key) -> None:
        if key.kind in (ACTIVATION, GRADIENT):
            op = Instruction(key.stage, "F" if key.kind is ACTIVATION else "B", key.index)
            self._faults.at(key.step, "receive", op)

    def received(self, peer: str, count: int) -> None:
        self._traffic.received(peer, count)

    def deliver(self, peer: str, incarnation: int, order: PlanOrder, key: Key, value: Value) -> None:
        with self._changed:
            if key.step == self.worker.version:
                self._activity.arrived(key)
            self.worker.deliver(peer, incarnation, order, key, value)
            self._after_event()

    def sender_lost(self, peer: str, incarnation: int, why: str) -> None:
        lost = pb.PeerLost(node=peer, incarnation=incarnation, why=why)
        if not self._stopped:
            self._report(pb.AttendRequest(peer_lost=lost))

    def lend(self, layers: list[int], era: int) -> Iterator[tuple[int, int, Loan]]:
        for layer in layers:
            with self._changed:
                self._loans += 1
                try:
                    self._changed.wait_for(lambda: self._stopped or not (self._busy or self.worker.must_arrange))
                    version = self.worker.seeding.version_of(layer)
                    if version is None or era != self.worker.era or self._stopped:
                        raise LookupError(f"{self.worker.node} holds no copy of layer {layer} in era {era}")
                    loan = self._compute.layer(layer).lend()
                finally:
                    self._loans -= 1
                    self._bell.ring()
            yield layer, version, loan

    # ---- what a fetch brings (stage_server.fetch.Receiver) ----------------------------------------------------------

    def fetched(self, era: int, layer: int, version: int, state: Value) -> None:
        with self._changed:
            log.info("layer %d is here at version %d, at step %d", layer, version, self.worker.version)
            self.worker.fetched(era, layer, version, state)
            self._after_event()

    def saved(self, era: int, step: int, files: dict[int, tuple[File, ...]]) -> None:
        self._saved = reports.saved(era, step, files)
        self._report(self._saved)

    def checkpoint_bad(self, step: int, why: str) -> None:
        self._report(pb.AttendRequest(checkpoint_bad=pb.CheckpointBad(step=step, why=why)))

    def fetch_failed(self, era: int, peer: str, layers: list[int], why: str) -> None:
        log.warning("seeding from %s broke off: %s", peer, why)
        with self._changed:
            self.worker.fetch_failed(era, peer, layers)
            self._after_event()

    # ---- what the coordinator orders (stage_server.orders.Listener) -------------------------------------------------

    def attached(self, announce: Callable[[list[pb.AttendRequest]], None], available: pb.Available) -> None:
        """Announces this node and repeats its facts (rule 6). What it has done so far goes along: the run may be over
        before the next heartbeat.
        """
        with self._changed:
            facts = [reports.available(available, self.worker), pb.AttendRequest(heartbeat=self.heartbeat())]
            facts.extend(reports.ready(fact) for fact in self.worker.repeat_facts())
            if self._saved is not None:
                facts.append(self._saved)
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
        with self._changed:
            return Reading(
                node=self.worker.node,
                times=self._activity.times.split(time.monotonic()),
                sent_bytes=self._traffic.sent_by_peer(),
                received_bytes=self._traffic.received_by_peer(),
                version=self.worker.version,
                mailbox=len(self.worker.mailbox),
                outbox=len(self.worker.outbox),
                finished=self._activity.finished,
            )

    def order(self, order: pb.AttendResponse) -> None:
        body = order.WhichOneof("body")
        if body == "die":
            if order.die.at:
                self._faults.add(order.die.at)
            else:
                die()
        with self._changed:
            if body == "plan":
                self.worker.take_plan(plan_from_proto(order.plan))
            elif body == "commit":
                self._activity.arrived(None)
                self.worker.take_commit(reports.commit_from_proto(order.commit))
            self._after_event()
        if body == "commit":
            time.sleep(GIVE_WAY)  # this thread would go on with the interpreter that the compute thread waits for

    def _after_event(self) -> None:
        self._carry_out()
        self._bell.ring()
        if self._loans:
            self._changed.notify_all()
