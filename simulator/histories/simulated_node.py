"""A simulated node: the real worker over the tiny arithmetic, with virtual streams and virtual time for its work."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from culm.coordinator import reports
from culm.pipeline.bookmark import Bookmark, Known
from culm.pipeline.commit import Commit
from culm.pipeline.keys import Key
from culm.pipeline.plan import Plan, PlanOrder
from culm.simulator.histories.arithmetic import Number
from culm.simulator.histories.node_arithmetic import Arithmetic
from culm.simulator.histories.simulated_attendance import SimulatedAttendance
from culm.simulator.histories.simulated_compute import SimulatedCompute
from culm.simulator.histories.simulated_dataset import SimulatedReading
from culm.simulator.histories.simulated_streams import SimulatedStreams
from culm.simulator.histories.world import Node, World
from culm.stage_server.watching.durations import Durations
from culm.stage_server.watching.kinds import kind_of
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
from culm.stage_server.worker.spilling import to_spill
from culm.stage_server.worker.work import Reduce, Run, Save, Work
from culm.stage_server.worker.worker import Worker

# The worker decides, as in a real node. Around it stand the parts that a real node has as well:
#
#     order stream  <-->  attendance ---orders-->          -->  compute       arithmetic, a piece of work at a time
#                                    <--reports--  worker
#     peers' streams <--> streams    <--tensors-->         -->  world         seeding, checkpoints, time
#
# One piece of work runs at a time, for a random while. It is computed at its end, so a node that is killed meanwhile
# has not done it. But while the last backward of a block runs its layers leave, each at a moment of its own. Everything
# else takes no time: messages, plans and effects come between two pieces of work, as in a real node's loop. A frozen
# node does nothing; what reaches it waits, and happens when it thaws, in that order.
#
# With ``home_seconds`` it computes on a card: what forwards and backwards give, and layers that leave, come to the
# host's memory after up to so many seconds, in their order, and are handed on then (``culm.stage_server.handing_on``).

RUNS_AHEAD = 0.7  # how often a node that waits takes the time for a redundant forward, where it may


class SimulatedNode:
    """One incarnation of one node process."""

    def __init__(self, world: World, name: str, incarnation: int, worker: Worker[Number]) -> None:
        self.world = world
        self.name = name
        self.incarnation = incarnation
        self.worker = worker
        self.alive = True
        self.frozen = False
        self.busy = False  # a piece of work runs; Invariant: at most one
        self.deaf = False  # obeys nobody any more
        self.attendance = SimulatedAttendance(world, self)
        self.streams = SimulatedStreams(world, self)
        self.arithmetic = Arithmetic(world.pipelines, world.has_buffers, world.unevenness(name), world.ties, world.form)
        reading = SimulatedReading(world.microbatches, world.pipelines, self._known, self._bookmark_in)
        self._compute = SimulatedCompute(
            world.layers,
            world.pipelines,
            worker.at.forwards_in,
            self.arithmetic,
            reading if world.iterable else None,
            on_graph=world.neighbours is not None,
        )
        self.executed = self._compute.executed
        self.durations = Durations()
        self._spilled: dict[Key, Number] = {}  # on disk
        self._home_at = 0.0  # when all that was computed so far is in the host's memory

    def start(self) -> None:
        self.attendance.start()

    def tell(self, report: reports.Report) -> None:
        self.attendance.tell(report)

    def obey(self, order: Plan | Commit | None) -> None:
        """An order has arrived; None: go, and join anew."""
        if self.deaf:
            return
        if order is None:
            self.world.join_anew(self)
        else:
            self.attendance.obey(order)

    def hear_hello(self, sender: Node, order: PlanOrder) -> None:
        self.worker.hello(sender.name, sender.incarnation, order)
        leader = self.attendance.leader
        if leader is not None and leader.term < self.worker.term:
            self.attendance.detach()  # another leads by now (rule 12)

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
            ahead = self.worker.runner.eager or self.worker.at.audit
            if work is None and ahead and self.world.random.random() < RUNS_AHEAD:
                work = self.worker.next_redundant()
            if work is not None:
                self.busy = True
                self.durations.begin(kind_of(work), self.world.clock.now)
                seconds = self.world.duration(work) + self.world.start_up.stall(self, work)
                if isinstance(work, Run) and work.completes is not None:
                    self._leave_by_layer(work, work.completes, seconds)
                self.world.clock.after(seconds, lambda: self._finish(work))
        carry_out(self.worker.drain(), self)

    def _leave_by_layer(self, work: Run[Number], completes: Reduce[Number], seconds: float) -> None:
        """Layers are through one by one while the backward runs: some together, and some only with its end."""
        plan = self.worker.plan
        assert plan is not None
        early = plan.stages[completes.stage].layers[1:]
        moments = sorted(self.world.random.uniform(0.0, 1.2) for _ in early)
        for layer, moment in zip(reversed(early), moments, strict=True):
            if moment < 1.0:
                self.world.clock.after(moment * seconds, lambda layer=layer: self._leave(work, completes, layer))  # type: ignore[misc]

    def _leave(self, work: Run[Number], completes: Reduce[Number], layer: int) -> None:
        if not self.alive or self.deaf:
            return
        if self.frozen:
            self.world.held.setdefault(self, []).append(lambda: self._leave(work, completes, layer))
            return
        if (values := self._compute.leave(work, completes, layer)) is not None:
            self.worker.runner.summing.leaves(completes, layer)
            self._hand_on(partial(self.worker.has_left, completes, values))
        carry_out(self.worker.drain(), self)
        self.world.faults.after_layer(self)
        self.world.check(self)

    def _finish(self, work: Work[Number]) -> None:
        if not self.alive:
            return
        if self.frozen:
            self.world.held.setdefault(self, []).append(lambda: self._finish(work))
            return
        if self.deaf or self.world.start_up.goes_wrong(self, work):
            return
        self.busy = False
        self.durations.end(self.world.clock.now)
        if isinstance(work, Save):
            self.world.storage.save(self, work)
        splits = isinstance(work, Run) and self.worker.at.schedule.splits_at(work.instruction.stage)
        done = self._compute.carry_out(work, splits)
        reading = self._compute.reading
        if reading is not None and (bookmark := reading.take_bookmark()) is not None:
            self.tell(reports.Read(self.name, self.incarnation, bookmark))
        if isinstance(work, Run) and not work.redundant and self.world.home_seconds:
            self.worker.runner.note(work)
            self._hand_on(partial(self.worker.runner.hand_on, work, done.result, done.accumulated))
        else:
            self.worker.finish(work, done.result, done.values, done.accumulated, done.digest)
        if self.world.spills:
            self._spill()
        self.world.faults.after_work(self, work)
        self.go()
        self.world.check(self)

    def _known(self) -> Known:
        plan = self.worker.plan
        return Known(self.worker.at.bookmark, plan.origin) if plan is not None else Known()

    def _bookmark_in(self, folder: str) -> Bookmark | None:
        try:
            return self.world.storage.bookmark(self, folder)
        except OSError:
            return None  # a real node asks again for a while

    def _hand_on(self, action: Callable[[], None]) -> None:
        """Tells the worker of a result: at once, or when it is in the host's memory."""
        if not self.world.home_seconds:
            action()
            return
        now = self.world.clock.now
        self._home_at = max(self._home_at, now + self.world.random.uniform(0.0, self.world.home_seconds))
        self.world.clock.after(self._home_at - now, partial(self._is_home, action))

    def _is_home(self, action: Callable[[], None]) -> None:
        if not self.alive or self.deaf:
            return
        if self.frozen:
            self.world.held.setdefault(self, []).append(partial(self._is_home, action))
            return
        action()
        self.go()
        self.world.check(self)

    def _spill(self) -> None:
        """Writes to disk what can go there. Meanwhile its step may end, or its duty go to another node."""
        for key, value in to_spill(self.worker, lambda value: 1, self._spilled, 0):
            self.world.clock.after(self.world.brief(), partial(self._spill_one, key, value))

    def _spill_one(self, key: Key, value: Number) -> None:
        self._spilled[key] = same = replace(value)
        if self.alive:
            self.worker.post.exchange(key, value, same)
            self.world.check(self)

    # ---- effects ----------------------------------------------------------------------------------------------------

    def forfeit(self, effect: Forfeit) -> None:
        self.world.faults.kill(self)
        self.world.join_anew(self)

    def acknowledge(self, effect: Acknowledge) -> None:
        self.streams.answer(effect.peer, effect.key)

    def answer_hello(self, effect: AnswerHello) -> None:
        self.streams.answer(effect.peer, effect)

    def fetch_layers(self, effect: FetchLayers) -> None:
        self.world.fetch(self, effect)

    def restore_layers(self, effect: RestoreLayers) -> None:
        self.world.storage.restore(self, effect)

    def report(self, fact: ReportReady | ReportCaughtUp | ReportResumed) -> None:
        self.attendance.report(fact)

    def adopted(self, effect: Adopted) -> None:
        self.streams.adopt(effect.plan)

    def say_hello(self, effect: SayHello) -> None:
        self.streams.say_hello(effect.peer)

    def send(self, effect: Send) -> None:
        self.streams.send(effect.peer, effect.key)
