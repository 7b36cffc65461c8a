"""What GetStatus answers: the run as it stands at this moment, with the figures of the event log."""

# Only the times of commits are kept here. Each answer is made from the state that decisions go by, so a viewer sees
# what the coordinator believes at that moment.

import math
from collections import deque

from culm.coordinator import ending, limits, pausing, stopping_early, watchdog
from culm.coordinator.edges.coordinator_settings import CoordinatorSettings
from culm.coordinator.edges.event_log import EventLog
from culm.coordinator.state import Node, Phase, Settings, State
from culm.pipeline.identity_parts import samples_per_epoch
from culm.pipeline.messages import machine_to_proto, resources_to_proto, times_to_proto
from culm.pipeline.plan_codec import pause_to_proto, plan_to_proto
from culm.protos import coordinator_pb2 as pb

# Commits over which samples per second are averaged: enough to smooth a single slow step, and few enough that the
# number soon follows a lost node.
RATE_STEPS = 10


class RunStatus:
    """Answers for one leader, of one term after another. Times in seconds: ``now`` of a clock that never goes back."""

    def __init__(self, settings: CoordinatorSettings) -> None:
        self._settings = settings
        # Invariant: of one era, and without a pause in between. Neither a pause nor a wait for nodes is a slow step.
        self._commit_times: deque[float] = deque(maxlen=RATE_STEPS + 1)
        self._era = 0

    def committed(self, state: State, now: float) -> None:
        """A commit was published. ``state``: as it is after the commit, with a pause that comes with it."""
        if state.era != self._era or state.phase is Phase.PAUSED:
            self._commit_times.clear()
            self._era = state.era
        if state.phase is not Phase.PAUSED:
            self._commit_times.append(now)

    def _samples_per_second(self, phase: Phase, now: float) -> float:
        times = self._commit_times
        if len(times) < 2 or times[-1] == times[0] or phase not in (Phase.RUNNING, Phase.DONE):
            return 0.0
        took, open_for = times[-1] - times[0], now - times[-1]
        # A step that takes longer than two counts as it stands: a run that hangs must not show the speed it had.
        if phase is not Phase.DONE and open_for > 2 * took / (len(times) - 1):
            took += open_for
        return (len(times) - 1) * self._settings.job.samples_per_step / took

    def response(self, state: State, log: EventLog, now: float, wall: float) -> pb.GetStatusResponse:
        """The whole answer. ``wall``: unix time by the event log, as its figures."""
        early, bounds = state.ending.early_stop, state.settings.tensor_work
        response = pb.GetStatusResponse(
            job=self._settings.job.job.name,
            phase=state.phase.value,
            detail=pausing.in_words(state, now, log.ledger.dollars_per_hour())
            or ending.in_words(state, now, log.ledger.dollars_per_hour()),
            generation=state.generation,
            term=state.term,
            era=state.era,
            step=min(state.committed, state.steps),
            steps=state.steps,
            stopped_early=stopping_early.in_words(state.settings, early) if early is not None else "",
            loss=state.last_commit.loss if state.last_commit else math.nan,
            samples_per_second=self._samples_per_second(state.phase, now),
            checkpoint=state.checkpoints[-1].step if state.checkpoints else 0,
            checkpoint_fault=state.storage.fault,
            checkpoint_fault_step=state.storage.fault_step,
            last_layers_saved=len(state.saved[state.steps].files) if state.steps in state.saved else 0,
            checkpoint_folder=state.checkpoints[-1].folder if state.checkpoints else "",
            checkpoint_sha256=state.checkpoints[-1].sha256 if state.checkpoints else "",
            kept_seconds=ending.seconds_left(state, now),
            cost=log.dollars(wall),
            kill_allowed=self._settings.allow_kill,
            samples_per_step=state.settings.samples_per_step,
            tokens_per_step=state.settings.tokens_per_step,
            samples_per_epoch=samples_per_epoch(state.agreement.nodes.parts),
            stalled_seconds=now - state.watch.at if state.watch.stalled and state.watch.at is not None else 0.0,
            pause=pause_to_proto(state.pause) if state.pause is not None else None,
            budget=limits.limits_of(state).budget,
            stop_at=limits.limits_of(state).stop_at,
            unpriced=state.spending.unpriced if state.spending is not None else (),
            coordinator=state.settings.coordinator,
            workers_wanted=state.tensor_work.wanted(bounds) if bounds is not None else 0,
            workers_reason=state.tensor_work.reason,
            saving=state.saving is not None,
            saving_step=(state.saving.step or 0) if state.saving is not None else 0,
            graph=_graph(state.settings),
            audits=_audits_of(state),
            awaited=watchdog.waited_for(state, now) if state.watch.stalled and state.plan is not None else "",
        )
        for s in range(len(state.plan.stages) if state.plan is not None else state.settings.stages):
            since = state.exposed_since.get(s)
            over = bool(state.ending.released)  # the nodes were let go: no copy is left to be lost
            response.exposure[s] = now - since if since is not None and not over else 0.0
        for s, windows in log.windows.items():
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
            life = log.ledger.life_of(node.node)
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
                resources=resources_to_proto(node.resources) if node.resources is not None else None,
            )
        return response


def _graph(settings: Settings) -> pb.GraphStatus | None:
    if not settings.whole_pipelines:
        return None
    known = settings.staleness
    return pb.GraphStatus(
        chunks=settings.pipelines, staleness=known.most, refresh=known.refresh, fresh_from=known.fresh_from
    )


def _audits_of(state: State) -> pb.AuditFigures | None:
    if not state.settings.audit:
        return None
    told = state.checks
    return pb.AuditFigures(
        share=state.settings.audit,
        forwards=told.forwards,
        compared=told.compared,
        differed=told.differed,
        found=told.found,
    )


def _state_of(node: Node, holds: bool) -> str:
    if node.attached_since is None:
        return "detached"
    if not node.available:
        return "joining"
    if node.draining:
        return "draining"
    return "active" if holds else "spare"
