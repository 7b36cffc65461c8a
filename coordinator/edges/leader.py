"""The leading coordinator at work: reports in, ``advance``, commands out. One asyncio task at a time calls it."""

import asyncio
import logging
import math
import os
import secrets
import time
from collections import deque
from dataclasses import replace

from culm.coordinator import commands as cmd
from culm.coordinator import ending, reports, watchdog
from culm.coordinator import state as co
from culm.coordinator.decide import advance, begin, validate
from culm.coordinator.edges.archive import Archive, in_a_line
from culm.coordinator.edges.background import Background
from culm.coordinator.edges.billing import Billing
from culm.coordinator.edges.coordinator_settings import CoordinatorSettings
from culm.coordinator.edges.event_log import EventLog
from culm.coordinator.edges.order_stream import OrderStream
from culm.coordinator.edges.origins import going_on, left_behind, refuse_other_job, resumable
from culm.coordinator.edges.persistence import Document, from_document, to_document
from culm.coordinator.edges.store import Store
from culm.coordinator.edges.translation import addressee, in_turn, order_of, plan_in
from culm.pipeline.checkpoints.manifest import Found, newest_whole
from culm.pipeline.checkpoints.storage import probe
from culm.pipeline.errors import JobError
from culm.pipeline.job import job_to_toml
from culm.pipeline.messages import machine_to_proto, times_to_proto
from culm.pipeline.money import kinds
from culm.pipeline.money.codec import Reader
from culm.pipeline.plan_codec import plan_to_proto
from culm.pipeline.text import shown_url
from culm.protos import coordinator_pb2 as pb

log = logging.getLogger("culm.coordinator")

PROBE_SECONDS = 30.0  # that the storage of checkpoints has to take a first file
RATE_STEPS = 10  # commits over which samples per second are averaged


# One asyncio task at a time calls the leader, and ``take`` awaits nothing. So a report is decided and carried out as a
# whole, and orders reach every stream in the order of decisions. What has to wait, Redis, storage, prices, goes on in
# the background and comes back as a report.
#
# Carried out means queued: orders in their streams' queues, writes in the store's. A node may obey an order before the
# state behind it is in Redis. A successor learns it from the node then (rule 8), so nobody waits for Redis.


class Leader:
    """Holds the state, the order streams and the event log, of one term after another: see ``lead``."""

    def __init__(self, settings: CoordinatorSettings, store: Store) -> None:
        self.settings = settings
        self.term = 0
        self.log = EventLog(store, 0, time.time)
        self.outranked: cmd.LeadAnew | None = None  # this term is over: nothing is decided before the next
        self.failure: BaseException | None = None  # what nobody expected: the process is to end with it
        self.background = Background(self.fail)
        self._store = store
        self._job = job_to_toml(settings.job)  # as a successor compares it with its own
        self._streams: dict[str, OrderStream] = {}
        self._state = begin(settings.decisions())
        self._unwritten = False  # whether a successor needs what is not yet on its way to the store
        # Not yet decided on, with the time when each came. A thousand nodes beat a thousand times a second: one
        # decision takes them all, and it comes before any other so that nobody is lost for silence who has just been
        # heard.
        self._heartbeats: list[tuple[float, reports.Heartbeat]] = []
        self._archive = Archive(settings.job, self.take, self.background)
        self._billing = Billing(settings.prices)
        self._figures = Reader("the run's cost")
        self._commit_times: deque[float] = deque(maxlen=RATE_STEPS + 1)
        self._validates = os.environ.get("CULM_VALIDATE") == "1"

    @property
    def state(self) -> co.State:
        return self._state

    async def lead(self) -> None:
        """Takes the lease and goes on from what the leader before persisted, and then from what the nodes tell.

        Again whenever nodes know of a term that is not below this one: the store had lost it (rule 15).
        """
        above = self.outranked.above if self.outranked is not None else 0
        self.end_streams()
        term = await self._store.acquire(above)
        document = await self._store.load()
        settings, number = self.settings.decisions(), secrets.randbits(63)
        log_of_before = self.log.grown
        self.log = EventLog(self._store, term, time.time)
        log_of_before.set()
        found = self._state_of(document, settings, term, number)
        if found is None:
            # Nobody can know more than the store of a run that begins now.
            begun_before = above > 0 or document is not None or not self.settings.new_run
            self._state = begin(settings, term, number, time.monotonic() if begun_before else None)
            if self.settings.job.checkpoint is None:
                log.warning("no [checkpoint] url in the job: if both copies of a stage are lost, training starts again")
            elif not above:
                await asyncio.to_thread(probe, self.settings.job.checkpoint.url, PROBE_SECONDS)
            self._state = await asyncio.to_thread(self._from_checkpoints, begun_before, above > 0)
        else:
            self._state = found
            log.info("going on from step %d in term %d", found.committed, term)
        last = self._state.last_commit
        if last is not None:
            self.log.last_commit = kinds.Committed(step=last.step, loss=last.loss, scale=last.scale)
        self.background.begin(self.log.read_before(self.log.last_commit))
        self.term, self.outranked = term, None

    def _state_of(self, document: Document | None, settings: co.Settings, term: int, number: int) -> co.State | None:
        """What a leader before persisted; None if nothing, or nothing that this version can read.

        Of a state that cannot be read the nodes and the checkpoints know what counts, as where the store lost it.
        """
        if document is None:
            return None
        try:
            if document["plan"] is not None:  # else nobody has computed anything yet
                refuse_other_job(document["job"], self.settings)
            return from_document(document, settings, term, time.monotonic(), number)
        except (KeyError, ValueError, TypeError, IndexError) as error:
            why = f"{type(error).__name__}: {error}"
            log.warning("could not read the persisted state (%s): going by what nodes and checkpoints say", why)
            return None

    def _from_checkpoints(self, begun_before: bool, nodes_know: bool) -> co.State:
        """The state of a run of which the store knows nothing, by the newer of its own checkpoints and --resume's."""
        ours: list[Found] = []
        own = self.settings.job.checkpoint
        if begun_before and own is not None and own.url.rstrip("/") != self.settings.resume.rstrip("/"):
            try:
                ours = left_behind(self.settings)
            except OSError as error:
                if not nodes_know:
                    mend = "see that the storage answers; nothing is begun anew over what may be there"
                    where = f"checkpoint url {shown_url(own.url)}"
                    raise JobError(f"it cannot be read ({in_a_line(error)})", where, mend) from error
        state = self._state
        try:
            state = self._resumed() if self.settings.resume else state
        except JobError as error:
            if not ours:
                raise
            log.warning("%s", error)
        return going_on(state, ours, self.settings.allow)

    def _resumed(self) -> co.State:
        """The state from which a run goes on by a checkpoint. Raises JobError when there is none that is whole."""
        url = self.settings.resume
        try:
            found = newest_whole(url, log.warning)
        except OSError as error:
            mend = "check the address, the network and your credentials"
            raise JobError(f"it cannot be read ({in_a_line(error)})", f"--resume {url}", mend) from error
        if found is None:
            raise JobError("there is no whole checkpoint", f"--resume {url}", "see culm checkpoint ls")
        assert found.manifest is not None
        agreed = resumable(found.manifest, found.url, self.settings)
        log.info("going on from the checkpoint %s", found.url)
        origin = found.origin
        return replace(
            self._state, committed=origin.step, origin=origin, resumed=True, checkpoints=(origin,), agreement=agreed
        )

    # ---- nodes ------------------------------------------------------------------------------------------------------

    def attach(self, stream: OrderStream) -> bool:
        """The node's orders go to this stream from now on; an older one ends. False: a newer incarnation attends."""
        before = self._streams.get(stream.node)
        if before is not None and before.incarnation > stream.incarnation:
            return False
        if before is not None:
            before.queue.put_nowait(None)
        self._streams[stream.node] = stream
        return True

    def detach(self, stream: OrderStream, why: str) -> None:
        """The stream ended without a word. One that was replaced says nothing about the node."""
        if self._streams.get(stream.node) is stream:
            del self._streams[stream.node]
            self.take(reports.StreamBroken(stream.node, stream.incarnation, why))

    def send(self, node: str, order: pb.AttendResponse) -> bool:
        """Queues an order; False if the node is not attached."""
        stream = self._streams.get(node)
        if stream is None:
            return False
        stream.put(order)
        return True

    def _attends(self, node: str, incarnation: int) -> bool:
        stream = self._streams.get(node)
        return stream is not None and stream.incarnation == incarnation

    def end_streams(self) -> None:
        """Ends every node's order stream: nodes wait for the next coordinator."""
        for stream in self._streams.values():
            stream.queue.put_nowait(None)
        self._streams.clear()

    def heard(self, heartbeat: reports.Heartbeat) -> None:
        """A heartbeat: kept for the next decision, whatever that is on, and told to those who look into Redis."""
        self._store.heartbeat(heartbeat.node, self.settings.patience.seconds)
        self._heartbeats.append((time.monotonic(), heartbeat))

    # ---- decisions --------------------------------------------------------------------------------------------------

    def fail(self, error: BaseException) -> None:
        """The process ends with the first of these, at the next tick."""
        self.failure = self.failure or error

    def take(self, report: reports.Report) -> None:
        """Decides on a report and carries the commands out in order: as a whole, since nothing in it waits."""
        if self.outranked is not None:
            return
        try:
            heartbeats, self._heartbeats = self._heartbeats, []
            for each in [reports.Heard(tuple(heartbeats)), report] if heartbeats else [report]:
                self._state, commands = advance(self._state, each, time.monotonic())
                if self._validates:
                    validate(self._state)
                for command in commands:
                    self._carry_out(command)
            if isinstance(report, reports.Tick | reports.Joined):
                self._bill()
        except Exception as error:
            self.fail(error)
            log.exception("a decision raised, on the report %s", report)
            raise

    def _bill(self, done: bool = False) -> None:
        """Puts on record what the figures need. Nothing that goes wrong with them is a decision's fault."""
        try:
            state, ledger = self._state, self.log.ledger
            records = self._billing.usage(state) if done else self._billing.records(state, ledger, time.monotonic())
            for record in records:
                self._record(record)
        except Exception as error:
            self._figures.set_aside("what the nodes say of their work", error)

    def _carry_out(self, command: cmd.Command) -> None:
        if isinstance(command, cmd.LeadAnew):
            log.warning("%s: this one takes a higher term, and hears from every node first", command.why)
            self.outranked = command
        elif isinstance(command, cmd.Persist):
            self._persist()
        elif isinstance(command, cmd.Record):
            if isinstance(command.event, kinds.Done):
                self._bill(done=True)  # the figures are those as of the end
            self._record(command)
        elif isinstance(command, cmd.WriteManifest | cmd.Retain | cmd.Examine):
            self._archive.carry_out(command)
        else:
            self._send(command)

    def _persist(self) -> None:
        """Once the orders are on their way: nodes wait for those, and tell a successor what it cannot read (rule 8)."""
        if not self._unwritten:
            asyncio.get_running_loop().call_soon(self._write)
        self._unwritten = True

    def _write(self) -> None:
        if self._unwritten and self.outranked is None:
            try:
                self._store.save({**to_document(self._state), "job": self._job})
            except Exception as error:  # the event loop that calls this would only log it
                self.fail(error)
                raise
            self._unwritten = False

    async def close(self) -> None:
        """What is to outlive this coordinator is written, and the lease given back."""
        self._write()
        self.log.sum_up()
        await self._store.close()

    def _send(self, command: cmd.Command) -> None:
        """The order goes to whom it is for: one and the same message to all who were sent the same plan last."""
        if isinstance(command, cmd.Dismiss) and not self._attends(command.node, command.incarnation):
            return  # the stream of that name is another incarnation's: its process was started again
        node, plan = addressee(command), plan_in(command)
        orders: dict[object, pb.AttendResponse | None] = {}
        names = in_turn(self._streams, self._state.plan) if node is None else [node]
        for stream in [self._streams[name] for name in names if name in self._streams]:
            before = stream.plan if plan is not None and stream.takes_changes else None
            same = (before.order, id(before.stages), id(before.members)) if before is not None else None
            if same not in orders:
                orders[same] = order_of(command, before)
            if (order := orders[same]) is not None:
                stream.put(order)
            stream.plan = plan or stream.plan
        if isinstance(command, cmd.Commit):
            self._commit_times.append(time.monotonic())
        if isinstance(command, cmd.Dismiss):
            self._streams.pop(command.node).queue.put_nowait(None)

    def _record(self, record: cmd.Record) -> None:
        state = self._state
        self.log.record(record.event, record.text, state.committed, state.generation)

    # ---- views ------------------------------------------------------------------------------------------------------

    def samples_per_second(self) -> float:
        times = self._commit_times
        if len(times) < 2 or times[-1] == times[0]:
            return 0.0
        took, open_for = times[-1] - times[0], time.monotonic() - times[-1]
        # A step that takes longer than two counts as it stands: a run that hangs must not show the speed it had.
        if self._state.phase is not co.Phase.DONE and open_for > 2 * took / (len(times) - 1):
            took += open_for
        return (len(times) - 1) * self.settings.job.samples_per_step / took

    def cost(self) -> pb.GetCostResponse:
        return self.log.ledger.figures(time.time())

    def status(self) -> pb.GetStatusResponse:
        now, wall = time.monotonic(), time.time()
        state, _ = advance(self._state, reports.Heard(tuple(self._heartbeats)), now)
        response = pb.GetStatusResponse(
            job=self.settings.job.job.name,
            phase=state.phase.value,
            detail=ending.in_words(state, now, self.log.ledger.dollars_per_hour()),
            generation=state.generation,
            term=state.term,
            era=state.era,
            step=state.committed,
            steps=state.settings.steps,
            loss=state.last_commit.loss if state.last_commit else math.nan,
            samples_per_second=self.samples_per_second(),
            checkpoint=state.checkpoints[-1].step if state.checkpoints else 0,
            checkpoint_fault=state.storage.fault,
            checkpoint_folder=state.checkpoints[-1].folder if state.checkpoints else "",
            kept_seconds=ending.seconds_left(state, now),
            cost=self.log.ledger.dollars(wall),
            kill_allowed=self.settings.allow_kill,
            samples_per_step=state.settings.samples_per_step,
            tokens_per_step=state.settings.tokens_per_step,
            stalled_seconds=now - state.watch.at if state.watch.stalled and state.watch.at is not None else 0.0,
            awaited=watchdog.waited_for(state, now) if state.watch.stalled and state.plan is not None else "",
        )
        for s in range(len(state.plan.stages) if state.plan is not None else state.settings.stages):
            since = state.exposed_since.get(s)
            over = bool(state.ending.released)  # nothing is left to be lost
            response.exposure[s] = now - since if since is not None and not over else 0.0
        for s, windows in self.log.windows.items():
            known = response.exposure_windows[s]
            known.count, known.longest_seconds, known.total_seconds = windows.count, windows.longest, windows.total
        if state.plan is not None:
            response.plan.CopyFrom(plan_to_proto(state.plan))
        owned: dict[str, list[int]] = {}
        standing_by: dict[str, list[int]] = {}
        for s, stage in enumerate(state.plan.stages if state.plan is not None else ()):
            for name in dict.fromkeys(stage.owners):
                owned.setdefault(name, []).append(s)
            for standby in stage.standbys:
                standing_by.setdefault(standby.node, []).append(s)
        for node in state.nodes.values():
            life = self.log.ledger.life_of(node.node)
            response.nodes.add(
                id=node.node,
                address=node.address,
                pid=node.pid,
                zone=node.zone,
                state=_state_of(node, node.node in owned or node.node in standing_by),
                stages=owned.get(node.node),
                standby_of=standing_by.get(node.node),
                incarnation=node.incarnation,
                instruction=node.instruction,
                version=node.version,
                finished=node.finished,
                times=times_to_proto(node.times),
                sent_bytes=node.sent_bytes,
                machine=machine_to_proto(node.machine),
                price_per_hour=life.per_hour if life is not None else 0.0,
                spent=life.dollars(wall) if life is not None else 0.0,
            )
        return response


def _state_of(node: co.Node, holds: bool) -> str:
    if node.attached_since is None:
        return "detached"
    if not node.available:
        return "joining"
    if node.draining:
        return "draining"
    return "active" if holds else "spare"
