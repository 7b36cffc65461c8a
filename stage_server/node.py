"""A node at work: one worker behind one lock, one compute thread, and the threads that bring and take tensors."""

# What a node is made of, each with its own concept:
#
#     the worker       decides what to compute and what to send (``worker/``); it knows no thread and no torch
#     compute          all torch state; the compute thread alone calls it (``compute/``)
#     the exchange     hands the worker what comes, and carries out what it wants sent
#     the attendance   what the coordinator is told of this node
#     the bubble       what is done while the worker has no work
#     the lending      lets other nodes read layers between two pieces of work
#     the handing on   takes results that a card is still copying out to the worker
#     the spiller      has tensors that nobody needs at present lie on disk, where memory is short
#
# One lock, ``Turn``, guards the worker and all of these but compute. The compute thread has it between two pieces of
# work and gives it up for the work itself:
#
#     lock held     the worker's next piece of work, or one to fill the bubble, is chosen; else it waits
#     unlocked      the work is done, for milliseconds up to seconds
#     lock held     its result goes to the worker; what that wants sent is carried out
#
# So a tensor that comes during an instruction is taken at once, and a plan is adopted between two instructions. Who
# tells the worker something notifies the lock's condition, and the compute thread looks again.
#
# A piece of work that the worker has given out ends, whatever happens meanwhile. The worker drops its result where the
# work is this node's no longer (``Worker.finish``).

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

import grpc

from culm.pipeline import flow
from culm.pipeline.bookmark import Known
from culm.pipeline.job import Job
from culm.pipeline.patience import Patience
from culm.pipeline.plan_codec import commit_from_proto, plan_from_proto
from culm.pipeline.resources import TensorWorkers
from culm.pipeline.tensors.values import Value
from culm.protos import coordinator_pb2 as pb
from culm.stage_server.attendance import Attendance
from culm.stage_server.bubble import Bubble
from culm.stage_server.compute.compute import Compute, Result
from culm.stage_server.compute.device import PASSED, Event
from culm.stage_server.compute.layer import Values
from culm.stage_server.exchange import Exchange
from culm.stage_server.faults import Faults, die
from culm.stage_server.handing_on import HandingOn
from culm.stage_server.last_words import work_of
from culm.stage_server.lending import Lending
from culm.stage_server.spiller import ALL, Allowance, Spiller
from culm.stage_server.streams import attend_messages
from culm.stage_server.streams.guard import Guard
from culm.stage_server.streams.receiver import Receiver
from culm.stage_server.streams.stream_bounds import RunShape
from culm.stage_server.streams.timetables import Timetables
from culm.stage_server.turn import Turn
from culm.stage_server.watching.activity import Activity
from culm.stage_server.watching.spans import Kept
from culm.stage_server.watching.traffic import Traffic
from culm.stage_server.worker.work import Install, Load, Reduce, Run, Save, Work
from culm.stage_server.worker.worker import Worker

log = logging.getLogger("culm.node")

# Seconds that a node whose part of the step is done leaves its processor to others before it sums up: the stage before
# has just been sent what it waits for, maybe on this machine, and the step ends with the first stage.
GIVE_WAY = 0.0005


class Node:
    """Runs the worker's work and obeys the coordinator. ``run`` is the compute thread; all else comes from any."""

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
        allowance: Allowance = ALL,
    ) -> None:
        """``forfeit``: called when what is held is of no use; ``broken``: when something unexpected has raised;
        ``allowance``: for tensors that are kept until the commit.
        """
        self._worker = worker
        self._compute = compute
        self._faults = faults
        self._changed = Turn(broken)
        self._guard = Guard(run, worker)
        self._activity = Activity(job.resilience.redundant_bytes)
        compute.loading = self._activity.loading
        compute.known = self._known
        compute.leaving = self._leave
        traffic = Traffic()
        self._spiller = Spiller(worker, self._changed, allowance)
        self.attendance = Attendance(worker, self._changed, self._activity, traffic, self._spiller)
        self._bubble = Bubble(worker, compute, self._activity)
        self._lending = Lending(worker, compute, self._changed)
        self._exchange = Exchange(
            worker=worker,
            changed=self._changed,
            attendance=self.attendance,
            lending=self._lending,
            activity=self._activity,
            traffic=traffic,
            guard=self._guard,
            faults=faults,
            job=job,
            patience=patience,
            forfeit=forfeit,
            broken=broken,
        )

        # What an instruction has raised that waited for tensor workers, and which one that was.
        self._raised: BaseException | None = None
        self._raised_at: Run[Value] | None = None
        self._handing_on = HandingOn(worker, self._changed, self._exchange.after_event)

    @property
    def receiver(self) -> Receiver:
        return self._exchange.receiver

    def serve(self, server: grpc.Server) -> None:
        """Has the server call this node for the Stage service."""
        self._exchange.receiver.serve(server)
        Timetables(self._worker.node, self._worker.at.schedule, self._guard.run.end, self._kept).serve(server)

    def _kept(self) -> Kept:
        with self._changed:
            return self._activity.kept(self._worker.version)

    def term(self) -> int:
        """The highest term seen."""
        return self._worker.term

    def standing(self) -> dict[str, int]:
        """Where this node stands, for the log: without the lock, so the numbers may be those of two moments."""
        at = self._worker.at
        return {"step": at.version, "generation": at.plan.generation if at.plan is not None else 0, "term": at.term}

    # ---- the compute thread -----------------------------------------------------------------------------------------

    def run(self) -> None:
        """Computes until ``stop``. Raises what a piece of work has raised."""
        try:
            self._compute_on()
        finally:
            self._compute.close()  # processes that load samples end here, also where this one starts again
        self._handing_on.close()
        self._spiller.close()
        self._exchange.close()
        log.info("this node ends after %d instructions, at step %d", self._activity.finished, self._worker.version)

    def _compute_on(self) -> None:
        while True:
            with self._changed:
                work = self._wait_for_work()
                if work is None:
                    break  # outside of the lock what was raised is raised again
                self._lending.computing = True
            if isinstance(work, Reduce) and work.leaves and not flow.takes_samples(work.stage):
                time.sleep(GIVE_WAY)
            self._faults.before(work)
            result = self._compute.do(work)
            self._activity.computed()
            if (bookmark := self._compute.take_bookmark()) is not None:  # before a Ready of the step
                self.attendance.report(attend_messages.read(bookmark))
            if result.built:  # before the worker hears of it: a Ready over these layers may follow at once (rule 23)
                self.attendance.report_built(result.built)
            with self._changed:
                self._lending.computing = False
                if isinstance(work, Install) and result.refused:
                    self._exchange.checkpoints.refuse(work, result.refused)
                elif isinstance(work, Run) and result.later is not None:
                    self._worker.runner.goes_on(work)
                    result.later.add_done_callback(partial(self._came, work))
                elif isinstance(work, Run) and result.copied is not PASSED:
                    self._handing_on.follow(work, result)
                elif not isinstance(work, Load):
                    self._worker.finish(work, result.value, result.values, result.accumulated, result.digest)
                    self._exchange.carry_out()
                if isinstance(work, Run):
                    self._spiller.look(*work.operands, result.value)
                if isinstance(work, Save):
                    self._exchange.checkpoints.write(work, result.lent)
                if not self._activity.end(work, self._worker.at.version, result.kept_bytes):
                    self._worker.runner.duties.stopped = True  # memory is short
                if self._lending.waiting:
                    self._changed.notify_all()
            self._faults.after(work)
            del work, result  # what they hold may be large, and there may be no other work for long
        if self._raised is not None:
            raise self._raised

    def _came(self, work: Run[Value], later: "Future[Result]") -> None:
        """What an instruction has given that waited for tensor workers. On its own thread, or on the compute thread."""
        with self._changed:
            if self._changed.stopped or later.cancelled():
                return
            if (error := later.exception()) is not None:
                self._raised, self._raised_at = error, work
                self._changed.notify_all()
                return
            result = later.result()
            self._worker.finish(work, result.value)
            self._exchange.after_event()

    def _known(self) -> Known:
        """Without the lock: both are replaced whole."""
        plan = self._worker.plan
        return Known(self._worker.at.bookmark, plan.origin) if plan is not None else Known()

    def _leave(self, work: Reduce[Value], layer: int, values: Values, copied: Event) -> None:
        """A layer's gradient goes on its way while the backward that completed it runs on. On the compute thread."""
        with self._changed:
            if copied is not PASSED:
                self._handing_on.follow_layer(work, layer, values, copied)
                return
            self._worker.runner.summing.leaves(work, layer)
            self._worker.has_left(work, values)
            self._exchange.carry_out()

    def _wait_for_work(self) -> Work[Value] | Load | None:
        """What to compute next; None once the node is to stop. Gives up the lock, which it holds, while it waits."""
        while not self._changed.stopped and self._raised is None:
            if (work := self._choose()) is not None:
                return work
            self._changed.wait()
        return None

    def _choose(self) -> Work[Value] | Load | None:
        """What to compute now; None until something happens."""
        work: Work[Value] | Load | None = None
        # A loan goes first: as long as a standby is being seeded its stage is exposed. But as long as layers are still
        # to be arranged no loan can begin, and waiting for one here would wait for ever.
        if not self._lending.waiting or self._worker.must_arrange:
            work = self._worker.next_work()
            self._exchange.carry_out()
        self._bubble.load_ahead()
        if work is None:
            awaited = self._worker.awaited
            for_commit = awaited is None and self._worker.waits_for_commit
            self._activity.waits(awaited, for_commit)
            if not (self._lending.waiting or self._worker.must_arrange):
                work = self._bubble.load() or self._bubble.redundant()
            if work is None:
                self._activity.rests(awaited, for_commit, self._worker.at.version)
        if work is not None:
            self._activity.begin(work, self._exchange.owned.values(), self._worker.at.version)
        return work

    def stop(self) -> None:
        with self._changed:
            self._changed.stopped = True
            self._changed.notify_all()

    def tensor_workers(self) -> TensorWorkers | None:
        """Who does tensor work for this node; None: the job trains on no graph."""
        aside = self._compute.aside
        return aside.desk.facts() if aside is not None and aside.desk is not None else None

    def doing(self) -> str:
        """The instruction that is running, or nothing."""
        return str(self._raised_at.instruction) if self._raised_at is not None else self._activity.running

    def failed_work(self) -> pb.FailedWork | None:
        """The piece of work that has raised; None: it was none of the job's."""
        work, plan = self._raised_at or self._activity.present, self._worker.plan
        return work_of(work, plan, self._compute.building) if work is not None and plan is not None else None

    def finish_checkpoint(self) -> None:
        """Where every step is trained: waits until this node's share of the last checkpoint is written."""
        if self._worker.version >= self._worker.at.steps:
            self._exchange.checkpoints.finish()

    # ---- what the coordinator orders (culm.stage_server.streams.orders.Listener) -------------------------------------

    def attached(self, announce: Callable[[list[pb.AttendRequest]], None], available: pb.Available) -> None:
        """Announces this node and repeats its facts (rule 6). With the lock held, so that no new fact falls between."""
        with self._changed:
            announce([*self.attendance.facts(available), *self._exchange.checkpoints.facts()])

    def order(self, order: pb.AttendResponse) -> None:
        """Raises Unfit for what no coordinator of this run orders; nothing has changed then (rule 18)."""
        self._guard.order(order)
        body = order.WhichOneof("body")
        if body == "die":
            self._die(order.die.at)
        with self._changed:
            if body == "plan":
                self._worker.take_plan(plan_from_proto(order.plan))
            elif body == "commit":
                self._activity.heard_commit(order.commit.step)
                self._worker.take_commit(commit_from_proto(order.commit))
            self._exchange.after_event()
        # The compute thread has been woken. It gets the interpreter now: this thread would keep it for 0.3 ms more,
        # until gRPC has asked for the next order.
        time.sleep(0)

    def _die(self, at: str) -> None:
        if not at:
            die()
        try:
            self._faults.add(at)
        except ValueError as error:  # an order that cannot be obeyed changes nothing
            log.error("this node does not die as it was ordered to: %s", error)
