"""The leading coordinator at work: reports in, ``advance``, commands out. One asyncio task at a time calls it."""

import asyncio
import logging
import os
import secrets
import time
from dataclasses import replace

from culm.coordinator import commands as cmd
from culm.coordinator import reports
from culm.coordinator import state as co
from culm.coordinator.best import noted
from culm.coordinator.decide import advance, begin, validate
from culm.coordinator.decisions import events_of
from culm.coordinator.edges.archive import Archive, in_a_line
from culm.coordinator.edges.background import Background
from culm.coordinator.edges.billing import Billing
from culm.coordinator.edges.coordinator_settings import CoordinatorSettings
from culm.coordinator.edges.event_log import EventLog
from culm.coordinator.edges.order_stream import APART, OrderStream
from culm.coordinator.edges.origins import (
    going_on,
    left_behind,
    newer_in_words,
    numbers_of,
    origin_of,
    refuse_nothing,
    refuse_other_job,
    resumable,
    to_resume,
    with_best_before,
)
from culm.coordinator.edges.persistence import Document, from_document, to_document
from culm.coordinator.edges.publisher import Publisher
from culm.coordinator.edges.run_status import RunStatus
from culm.coordinator.edges.spending import SpendingLook, refuse_no_time
from culm.coordinator.edges.store import Store
from culm.pipeline.checkpoints.manifest import Found
from culm.pipeline.checkpoints.storage import probe, refusal
from culm.pipeline.errors import JobError
from culm.pipeline.job import job_to_toml
from culm.pipeline.money import kinds
from culm.pipeline.money.codec import Reader
from culm.pipeline.text import shown_url
from culm.protos import coordinator_pb2 as pb

log = logging.getLogger("culm.coordinator")

# The storage of checkpoints has so long to take a first file. A run waits for it once, before it begins.
PROBE_SECONDS = 30.0

# One term, from its lease to its end:
#
#     acquire    the store issues a term, above every one that the store, its state or the nodes know (rule 15)
#     load       what the leader before persisted; where that is nothing, what checkpoints and nodes tell
#     decide     a report comes in, ``advance`` gives commands; no await in between
#     publish    each order goes into the queues of its nodes' streams, in the order of decisions (``publisher``)
#     record     each event goes into the log, and into the store's queue
#     persist    the newest state goes into the store's queue, once the first stage's order is on its way
#     end        LeadAnew: every stream ends, and a higher term is acquired. LostLease: the process ends
#
# One asyncio task at a time calls the leader, and ``take`` awaits nothing. So a report is decided and carried out as a
# whole, and orders reach every stream in the order of decisions. What has to wait (Redis, storage) goes on in the
# background. The storage's answers come back as reports.
#
# Publishing comes before persisting, though decisions often name Persist first: so no node waits for Redis, and an
# outage of it stops no step. The price is paid at a takeover: Redis may be older than what nodes obey. So a successor
# decides nothing until every holder has attached, or has had the patience to. It takes newer plans and commits from the
# nodes (rule 8). Fenced incarnations and drains of an operator are lost with a write. Events are queued with the
# decision: Redis may tell of a commit that its state lacks. ``event_log`` counts it once.
#
# What each thing does that fails:
#
#     Redis is away          the leader goes on; writes wait in the store's queue (``redis_store``)
#     a node is away         StreamBroken is a report; orders to it are dropped, it is told anew when it attaches
#     the storage is away    ``archive`` asks again; a run that would begin over unseen checkpoints does not begin
#     a decision raises      ``fail``: the process ends at its next tick, and its nodes wait for a successor (rule 17)
#     the figures raise      they are set aside: what the run has cost decides nothing


class Leader:
    """Holds the state, the publisher and the event log, of one term after another: see ``lead``."""

    def __init__(self, settings: CoordinatorSettings, store: Store) -> None:
        self.settings = settings
        # 0 before the first lease. Invariant: each ``lead`` ends with a higher one, which the state has too.
        self.term = 0
        self.begun = 0.0  # when the run's first leader began, in unix seconds
        self.log = EventLog(store, 0, time.time)
        # Set when this term is over. Invariant: while it is set nothing is decided and no node can attach.
        self.outranked: cmd.LeadAnew | None = None
        self.failure: BaseException | None = None  # the first unexpected exception, with which the process ends
        self.background = Background(self.fail)
        self._store = store
        self._job = job_to_toml(settings.job)  # persisted with the state: a successor compares its own job (rule 23)
        self.publisher = Publisher()
        # Invariant: only ``lead`` and ``take`` change it. Whoever awaits something may find another one afterwards.
        self._state = begin(settings.decisions())
        self._unwritten = False  # whether a decision named Persist, and its state is not in the store's queue yet
        # Not yet decided on, with the time when each came. A thousand nodes send two thousand heartbeats a second: one
        # decision takes them all, before any other: no node is lost for silence that has just been heard.
        self._heartbeats: list[tuple[float, reports.Heartbeat]] = []
        self._archive = Archive(settings.job, self.take, self.background, settings.allowed, settings.new_run)
        self._billing = Billing(settings.prices)
        self._figures = Reader("the run's cost")
        self._spending = SpendingLook()
        self._status = RunStatus(settings)
        self._validates = os.environ.get("CULM_VALIDATE") == "1"

    @property
    def state(self) -> co.State:
        return self._state

    @property
    def run_id(self) -> str:
        """The same for every coordinator of the run, and no other run's."""
        return f"{self.settings.job.job.name}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime(self.begun))}"

    def standing(self) -> dict[str, int]:
        """Where the run stands, for the log; from any thread."""
        now = self._state
        return {"step": min(now.committed, now.steps), "generation": now.generation, "term": self.term}

    async def lead(self) -> None:
        """Takes the lease and goes on from what the leader before persisted, and then from what the nodes tell.

        Again whenever nodes know of a term that is not below this one: the store had lost it (rule 15).
        """
        above = self.outranked.above if self.outranked is not None else 0
        self._archive.lead(first=not above)
        self.publisher.end()
        term = await self._store.acquire(above)
        document = await self._store.load()
        self.begun = float((document or {}).get("begun") or self.begun or time.time())
        # The number tells this leader's plans from those of another one that was issued the same term, by a Redis that
        # had lost its memory in between (rule 15).
        settings, number = self.settings.decisions(), secrets.randbits(63)
        grown_before = self.log.grown
        self.log = EventLog(self._store, term, time.time)
        grown_before.set()  # followers of the log before look again, and find this one
        found = self._state_of(document, settings, term, number)
        if found is None:
            refuse_no_time(settings, new=document is None and not above and self.settings.new_run, now=time.time())
            # Of a run that begins now no node or checkpoint can know more than the store, so nothing is waited for.
            begun_before = above > 0 or document is not None or not self.settings.new_run
            self._state = begin(settings, term, number, time.monotonic() if begun_before else None)
            if self.settings.job.checkpoint is None:
                log.warning(
                    "no [checkpoint] url in the job: a run that loses every copy of a stage starts again from step 0"
                )
            elif not above:
                await self._archive.threads.call(probe, self.settings.job.checkpoint.url, PROBE_SECONDS)
            self._state = await self._archive.threads.call(self._from_checkpoints, begun_before, above > 0)
        else:
            self._state = found
            log.info("took the run over at step %d, in term %d", found.committed, term)
        last = self._state.last_commit
        self.log.begin_after(events_of(settings, last) if last is not None else ())
        self.background.begin(self.log.read_before())
        # A write that the term before still owed is of a state that this one has replaced. Were it left standing, no
        # decision of this term would ask for another.
        self.term, self.outranked, self._unwritten = term, None, False
        if self._state.took_over_at is not None:  # nodes have their time from now on: storage may have taken all of it
            self._state = replace(self._state, took_over_at=time.monotonic())

    def _state_of(self, document: Document | None, settings: co.Settings, term: int, number: int) -> co.State | None:
        """What a leader before persisted; None if nothing, or nothing that this version can read.

        Of a state that cannot be read the nodes and the checkpoints know what counts, as where the store lost it.
        """
        if document is None:
            return None
        try:
            # Else no node has built the model yet. A run that is over, or waits after a rollback, has no plan, and its
            # weights are those of its own job all the same.
            if document["layer_costs"]:
                refuse_other_job(document["job"], self.settings)
            return from_document(document, settings, term, time.monotonic(), number)
        except (AttributeError, KeyError, ValueError, TypeError, IndexError) as error:
            why = f"{type(error).__name__}: {error}"
            log.warning(
                "could not read the state that the coordinator before persisted (%s): "
                "the run goes on from what its nodes and checkpoints say",
                why,
            )
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
                    mend = "make the storage answer: the run does not begin anew over checkpoints that may be there"
                    where = f"checkpoint url {shown_url(own.url)}"
                    raise refusal(error, f"it cannot be read ({in_a_line(error)})", where, mend) from error
        state = self._state
        try:
            state = self._resumed() if self.settings.resume else state
        except JobError as error:
            if not ours and not nodes_know:
                raise
            log.warning("%s: the run goes on from what it has itself instead", error)
            state = replace(state, resumed=True)  # all the same: it never begins at step 0
        return going_on(state, ours, self.settings.job, self.settings.allow)

    def _resumed(self) -> co.State:
        """The state from which a run goes on by a checkpoint. Raises JobError when there is none that is whole."""
        url = self.settings.resume
        try:
            whole = with_best_before(to_resume(url), self.settings.job)
        except OSError as error:
            mend = "check the address, the network and your credentials"
            raise refusal(error, f"it cannot be read ({in_a_line(error)})", f"--resume {url}", mend) from error
        refuse_nothing(url, whole)
        newest = whole[-1]
        assert newest.manifest is not None
        agreed = resumable(newest, newest.manifest, self.settings)
        origins = [origin_of(found, self.settings.job) for found in whole]
        log.info("going on from the checkpoint %s", newest.url)
        if newer := newer_in_words(self.settings.job, url):
            log.warning("%s", newer)
        state = replace(
            self._state,
            committed=newest.step,
            origin=origins[-1],
            resumed=True,
            checkpoints=tuple(origins),
            agreement=agreed,
        )
        return noted(state, {found.step: numbers_of(found, self.settings.job) for found in whole})

    # ---- nodes ------------------------------------------------------------------------------------------------------

    def detach(self, stream: OrderStream, why: str) -> None:
        """The stream ended without a word. One that was replaced says nothing about the node.

        Both halves of a stream call this; the first call counts, so a break is reported once.
        """
        if self.publisher.detach(stream):
            self.take(reports.StreamBroken(stream.node, stream.incarnation, why))

    def heard(self, heartbeat: reports.Heartbeat) -> None:
        """Keeps a heartbeat for the next decision, whatever that is on, and shows it in Redis to anybody who looks."""
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
            if self._unwritten:
                asyncio.get_running_loop().call_later(APART, self._write)
            if isinstance(report, reports.Tick | reports.Joined):
                self._bill()
                if spent := self._spending.due(self._state, self.log, time.monotonic(), time.time()):
                    self.take(spent)
        except Exception as error:
            self.fail(error)
            log.exception("a decision raised, so this coordinator ends; the report was %s", report)
            raise

    def _bill(self, done: bool = False) -> None:
        """Puts on record what the figures need. Nothing that goes wrong with them is a decision's fault."""
        try:
            state, ledger, now = self._state, self.log.ledger, time.monotonic()
            if done or self._billing.due(state, now):
                for record in self._billing.usage(state) if done else self._billing.records(state, ledger, now):
                    self._record(record)
                if not done and (news := self._billing.news(self._state, ledger)):
                    self._state, _ = advance(self._state, reports.Priced(news), now)
        except Exception as error:
            self._figures.set_aside("what the nodes say of their work", error)

    def _carry_out(self, command: cmd.Command) -> None:
        if isinstance(command, cmd.LeadAnew):
            log.warning(
                "%s: this coordinator takes a higher term, and its nodes are heard before it decides", command.why
            )
            self.outranked = command
        elif isinstance(command, cmd.Persist):
            # ``_write`` takes the state as it is a moment later: nodes wait for orders, and nobody for the store. So of
            # several decisions in that moment the last one is written.
            self._unwritten = True
        elif isinstance(command, cmd.Record):
            if isinstance(command.event, kinds.Done):
                self._bill(done=True)  # the figures are those as of the end
            self._record(command)
        elif isinstance(command, cmd.ForStorage):
            self._archive.carry_out(command)
        else:
            self.publisher.publish(command, self._state)
            if isinstance(command, cmd.Commit):
                self._status.committed(self._state, time.monotonic())

    def _write(self) -> None:
        if self._unwritten and self.outranked is None:
            try:
                self._store.save({**to_document(self._state), "job": self._job, "begun": self.begun})
            except Exception as error:  # the event loop that calls this would only log it
                self.fail(error)
                raise
            self._unwritten = False

    async def close(self) -> None:
        """What is to outlive this coordinator is written, and the lease given back."""
        self._write()
        self.log.sum_up()
        await self._store.close()

    def _record(self, record: cmd.Record) -> None:
        state = self._state
        self.log.record(record.event, record.text, min(state.committed, state.steps), state.generation)

    def untracked(self, tracker: str, why: str) -> None:
        """A tracker cannot be written to."""
        text = f"nothing is written to {tracker} for now: {why}; it is tried again as long as the run goes on"
        self._record(cmd.Record(kinds.Untracked(tracker=tracker, why=why), text))

    # ---- views ------------------------------------------------------------------------------------------------------

    def cost(self) -> pb.GetCostResponse:
        return self.log.figures(self.log.now())

    def status(self) -> pb.GetStatusResponse:
        now = time.monotonic()
        state, _ = advance(self._state, reports.Heard(tuple(self._heartbeats)), now)
        return self._status.response(state, self.log, now, self.log.now())
