"""The leading coordinator at work: events in, ``advance``, commands out. One asyncio task at a time calls it."""

import asyncio
import logging
import math
import os
import time
from collections import deque
from dataclasses import dataclass, replace

from coordinator import commands as cmd
from coordinator import events as ev
from coordinator import state as co
from coordinator.billing import Billing
from coordinator.decisions import commit_record
from coordinator.effects import GIVE_WAY, addressee, in_turn, order_of, pause_before, plan_in
from coordinator.machine import advance, begin, validate
from coordinator.persistence import from_document, to_document
from coordinator.settings import CoordinatorSettings
from coordinator.store import LostLease, Store
from pipeline.errors import JobError
from pipeline.ledger import Ledger
from pipeline.manifest import Manifest, find_checkpoints, folder_of, newest_whole, retain, write_manifest
from pipeline.messages import machine_to_proto, plan_to_proto, times_to_proto
from pipeline.plan import Plan
from protos import coordinator_pb2 as pb

log = logging.getLogger("culm.coordinator")

FIXED_FIELDS = ("sequence", "time", "kind", "text", "step", "generation")
OFTEN = ("commit", "usage")  # kinds of events that go to the stream "metrics"
TERM_BITS = 32
RATE_STEPS = 10  # commits over which samples per second are averaged


@dataclass(eq=False)
class OrderStream:
    """The orders to one attached incarnation, each with the seconds that it waits, and those after it. None in the
    queue ends it.
    """

    node: str
    incarnation: int
    queue: "asyncio.Queue[tuple[float, pb.AttendResponse] | None]"
    takes_changes: bool = False  # of the plan before, in place of a whole plan
    plan: Plan | None = None  # the last one that was sent

    def put(self, order: pb.AttendResponse, pause: float = 0.0) -> None:
        self.queue.put_nowait((pause, order))


class Leader:
    """Holds the state, the order streams and the event log."""

    def __init__(self, settings: CoordinatorSettings, store: Store) -> None:
        self.settings = settings
        self.term = 0
        self.events: list[pb.ListEventsResponse] = []
        self.grown = asyncio.Event()  # set at the next event, and then another one
        self.failure: Exception | None = None  # a decision that raised: the process is to end with it
        self._store = store
        self._streams: dict[str, OrderStream] = {}
        self._state = begin(settings.decisions())
        self._unwritten = False  # whether a successor needs what is not yet on its way to the store
        self._heartbeats: list[tuple[float, ev.Heartbeat]] = []  # not yet decided on, with the time when each came
        self._background: set[asyncio.Task[None]] = set()
        self.ledger = Ledger()
        self._billing = Billing(settings.prices, self.ledger)
        self._windows: dict[int, list[float]] = {}  # stage -> how long it was without a hot standby, each time
        self._commit_times: deque[float] = deque(maxlen=RATE_STEPS + 1)
        self._last_commit: dict[str, str] = {}  # the fields of the last one on record
        self._validates = os.environ.get("CULM_VALIDATE") == "1"

    @property
    def state(self) -> co.State:
        return self._state

    async def lead(self) -> None:
        """Takes the lease and goes on from what the leader before persisted."""
        self.term = await self._store.acquire()
        document = await self._store.load()
        settings = self.settings.decisions()
        if document is None:
            self._state = begin(settings, self.term)
            if self.settings.job.checkpoint is None:
                log.warning("no [checkpoint] url in the job: if both copies of a stage are lost, training starts again")
            if self.settings.resume:
                self._state = await asyncio.to_thread(self._resumed)
        else:
            self._state = from_document(document, settings, self.term, time.monotonic())
            log.info("going on from step %d in term %d", self._state.committed, self.term)
            await self._read_events()

    def _resumed(self) -> co.State:
        """The state from which a run goes on by a checkpoint. Raises JobError when there is none that is whole."""
        url = self.settings.resume
        found = newest_whole(url, log.warning)
        if found is None:
            raise JobError("there is no whole checkpoint", f"--resume {url}", "see culm checkpoint ls")
        log.info("going on from the checkpoint %s", found.url)
        return replace(self._state, committed=found.step, checkpoints=((found.step, found.url),))

    async def _read_events(self) -> None:
        """The event log as the leader before left it, and the last commit if it died before that was on record."""
        entries = [*await self._store.read("events"), *await self._store.read("metrics")]
        self.events = [_event_of(entry) for entry in sorted(entries, key=lambda e: int(e["sequence"]))]
        for event in self.events:
            self._note(event)
        last = self._state.last_commit
        if last is not None and not any(e.kind == "commit" and e.fields["step"] == str(last.step) for e in self.events):
            self._record(commit_record(last))

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
            self.take(ev.StreamBroken(stream.node, stream.incarnation, why))

    async def step_down(self, term: int) -> None:
        """A node has seen a later leader (rule 12). Whoever takes the lease next has a higher term than both."""
        await self._store.raise_term(term)
        self.failure = LostLease(f"a coordinator of term {term} has led since: this one had term {self.term}")

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

    def end_streams(self, order: pb.AttendResponse | None) -> None:
        """A last order to every node, and the end."""
        for stream in self._streams.values():
            if order is not None:
                stream.put(order)
            stream.queue.put_nowait(None)
        self._streams.clear()

    def heard(self, heartbeat: ev.Heartbeat) -> None:
        """A heartbeat: kept for the next decision, whatever that is on, and told to those who look into Redis."""
        self._store.heartbeat(heartbeat.node, self.settings.heartbeat_timeout)
        self._heartbeats.append((time.monotonic(), heartbeat))

    # ---- decisions --------------------------------------------------------------------------------------------------

    def take(self, event: ev.Event) -> None:
        """Decides on an event and carries the commands out in order: as a whole, since nothing in it waits."""
        try:
            heartbeats, self._heartbeats = self._heartbeats, []
            for each in [ev.Heard(tuple(heartbeats)), event] if heartbeats else [event]:
                self._state, commands = advance(self._state, each, time.monotonic())
                if self._validates:
                    validate(self._state)
                for command in commands:
                    self._carry_out(command)
            if isinstance(event, ev.Tick | ev.Joined):
                for record in self._billing.records(self._state, time.monotonic()):
                    self._record(record)
        except Exception as error:
            self.failure = error
            log.exception("cannot decide on %s", event)
            raise

    def _carry_out(self, command: cmd.Command) -> None:
        if isinstance(command, cmd.Persist):
            self._persist()
        elif isinstance(command, cmd.Record):
            for usage in self._billing.usage(self._state) if command.kind == "done" else ():
                self._record(usage)  # the figures are those as of the end
            self._record(command)
        elif isinstance(command, cmd.WriteManifest):
            task = asyncio.create_task(self._complete_checkpoint(command))
            self._background.add(task)
            task.add_done_callback(self._background.discard)
        else:
            self._send(command)

    def _persist(self) -> None:
        """Once the orders are on their way: nodes wait for those, and tell a successor what it cannot read (rule 8)."""
        if not self._unwritten:
            # Not at once: a node that has just been sent an order may have to start on this very core.
            asyncio.get_running_loop().call_later(GIVE_WAY, self._write)
        self._unwritten = True

    def _write(self) -> None:
        if self._unwritten:
            self._store.save(to_document(self._state))
            self._unwritten = False

    async def close(self) -> None:
        """What is to outlive this coordinator is written, and the lease given back."""
        self._write()
        await self._store.close()

    def _send(self, command: cmd.Command) -> None:
        """The order goes to whom it is for: one and the same message to all who were sent the same plan last."""
        if isinstance(command, cmd.Dismiss) and not self._attends(command.node, command.incarnation):
            return  # the stream of that name is another incarnation's: its process was started again
        node, plan = addressee(command), plan_in(command)
        orders: dict[object, pb.AttendResponse | None] = {}
        names = in_turn(self._streams, self._state.plan) if node is None else [node]
        slot_seconds = self._slot_seconds() if isinstance(command, cmd.Commit) else 0.0
        for turn, stream in enumerate([self._streams[name] for name in names if name in self._streams]):
            before = stream.plan if plan is not None and stream.takes_changes else None
            same = (before.order, id(before.stages), id(before.members)) if before is not None else None
            if same not in orders:
                orders[same] = order_of(command, before)
            if (order := orders[same]) is not None:
                stream.put(order, pause_before(turn, slot_seconds))
            stream.plan = plan or stream.plan
        if isinstance(command, cmd.Commit):
            self._commit_times.append(time.monotonic())
        if isinstance(command, cmd.Dismiss):
            self._streams.pop(command.node).queue.put_nowait(None)

    async def _complete_checkpoint(self, command: cmd.WriteManifest) -> None:
        """Writes the manifest and applies retention, off the event loop: object stores take their time."""
        job = self.settings.job
        assert job.checkpoint is not None
        url, keep = job.checkpoint.url, job.checkpoint.keep
        manifest = Manifest(job.job.name, command.step, command.fingerprint, command.loss, command.files)

        def write() -> tuple[int, ...]:
            write_manifest(folder_of(url, command.step), manifest)
            retain(url, keep)
            return tuple(f.step for f in find_checkpoints(url) if f.manifest is not None)

        try:
            kept = await asyncio.to_thread(write)
        except (OSError, JobError) as error:
            log.warning("the checkpoint of step %d is not completed: %s", command.step, error)
            return
        self.take(ev.Checkpointed(command.step, kept))

    def _record(self, record: cmd.Record) -> None:
        if record.kind == "commit" and record.fields == self._last_commit:
            return  # by the leader before, which died before it had persisted that: told again by the nodes
        state = self._state
        event = pb.ListEventsResponse(
            # Higher than any of a leader before, also where its last ones were never written.
            sequence=max(self.events[-1].sequence if self.events else 0, (self.term - 1) << TERM_BITS) + 1,
            time=time.time(),
            kind=record.kind,
            text=record.text,
            step=state.committed,
            generation=state.generation,
            fields=dict(record.fields),
        )
        often = record.kind in OFTEN
        log.log(logging.DEBUG if often else logging.INFO, "%s: %s", record.kind, record.text)
        fixed = {name: getattr(event, name) for name in FIXED_FIELDS}
        entry = {**fixed, **{f"fields.{name}": value for name, value in event.fields.items()}}
        self._store.append("metrics" if often else "events", entry)
        self._note(event)
        self.events.append(event)
        self.grown.set()
        self.grown = asyncio.Event()

    def _note(self, event: pb.ListEventsResponse) -> None:
        self.ledger.take(event)
        if event.kind == "commit":
            self._last_commit = dict(event.fields)
        if event.kind == "hot":
            self._windows.setdefault(int(event.fields["stage"]), []).append(float(event.fields["exposure_ms"]) / 1e3)

    # ---- views ------------------------------------------------------------------------------------------------------

    def samples_per_second(self) -> float:
        times = self._commit_times
        if len(times) < 2 or times[-1] == times[0]:
            return 0.0
        return (len(times) - 1) * self.settings.job.samples_per_step / (times[-1] - times[0])

    def _slot_seconds(self) -> float:
        """What a microbatch's forward and backward took of the last whole step; 0.0 if that is not known."""
        times, pipeline = self._commit_times, self.settings.job.pipeline
        return (times[-1] - times[-2]) / (pipeline.microbatches + pipeline.stages - 1) if len(times) > 1 else 0.0

    def cost(self) -> pb.GetCostResponse:
        return self.ledger.figures(time.time())

    def status(self) -> pb.GetStatusResponse:
        now, wall = time.monotonic(), time.time()
        state, _ = advance(self._state, ev.Heard(tuple(self._heartbeats)), now)
        response = pb.GetStatusResponse(
            job=self.settings.job.job.name,
            phase=state.phase.value,
            detail=state.detail,
            generation=state.generation,
            term=state.term,
            era=state.era,
            step=state.committed,
            steps=state.settings.steps,
            loss=state.last_commit.loss if state.last_commit else math.nan,
            samples_per_second=self.samples_per_second(),
            checkpoint=state.checkpoints[-1][0] if state.checkpoints else 0,
            cost=self.ledger.dollars(wall),
            kill_allowed=self.settings.allow_kill,
            samples_per_step=state.settings.samples_per_step,
            tokens_per_step=state.settings.tokens_per_step,
        )
        for s in range(len(state.plan.stages) if state.plan is not None else state.settings.stages):
            since = state.exposed_since.get(s)
            over = state.phase is co.Phase.DONE  # nothing is left to be lost
            response.exposure[s] = now - since if since is not None and not over else 0.0
        for s, windows in self._windows.items():
            known = response.exposure_windows[s]
            known.count, known.longest_seconds, known.total_seconds = len(windows), max(windows), sum(windows)
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
            life = self.ledger.life_of(node.node)
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


def _event_of(entry: dict[str, str]) -> pb.ListEventsResponse:
    fields = {k.removeprefix("fields."): v for k, v in entry.items() if k.startswith("fields.")}
    return pb.ListEventsResponse(
        sequence=int(entry["sequence"]),
        time=float(entry["time"]),
        kind=entry["kind"],
        text=entry["text"],
        step=int(entry["step"]),
        generation=int(entry["generation"]),
        fields=fields,
    )


def _state_of(node: co.Node, holds: bool) -> str:
    if node.attached_since is None:
        return "detached"
    if not node.available:
        return "joining"
    if node.draining:
        return "draining"
    return "active" if holds else "spare"
