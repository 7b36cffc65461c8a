"""Culm over a trace: the real coordinator decides, the real schedule tells how long steps take."""

from collections.abc import Sequence

from culm.coordinator import commands as cmd
from culm.coordinator import reports
from culm.coordinator import state as co
from culm.coordinator.decide import advance
from culm.pipeline.checkpoints.manifest import File, folder_of
from culm.pipeline.money.kinds import Lost, RolledBack
from culm.pipeline.origin import Origin
from culm.pipeline.plan import Plan
from culm.simulator.markets.account import Account, Row, Use
from culm.simulator.markets.calm_steps import calm_steps
from culm.simulator.markets.job_profile import Cluster, Profile
from culm.simulator.markets.market_attendance import Attendance
from culm.simulator.markets.market_nodes import MarketNodes
from culm.simulator.markets.run_setup import Choice, StepTimes
from culm.simulator.markets.seeding_time import Moving, Part
from culm.simulator.markets.step_under_way import StepUnderWay
from culm.simulator.markets.trace import Change
from culm.simulator.markets.virtual_coordinator import Decide, VirtualCoordinator
from culm.simulator.network import Clock

# The clock is virtual. Nodes are not played message by message, as in ``culm.simulator.histories``: what a node would
# report, and when, follows from what it holds and from how long state takes to reach it. A run is a heap of moments;
# between two of them time is spent and paid for, and nothing else.
#
#     moment                        what is told, or decided                     what follows
#     ------                        ------------------------                     ------------
#     a machine comes, goes         Joined, StreamBroken, PeerLost, ...          perhaps a plan
#     a plan without a commit       the first of an era, or a promotion          the step begins, or ends later
#     state has arrived             CaughtUp                                     the next commits wait for that node
#     the step's end                Ready of every holder                        a commit, perhaps with a plan
#     a commit                      the step is booked                           calm steps pass, the next one begins
#     a checkpoint is written       Saved                                        a manifest, which is whole at once
#     a rollback                    the steps since the checkpoint are lost      an era begins after a load
#
# A plan may make void what is on the heap: the end of a step that now ends later, the beginning of an era that is over.
# ``_version`` fences those: a moment remembers it, and does nothing under another one.
#
# Left ideal: all links are alike, a node applies a commit in no time, no node is frozen or cut off, checkpoints are
# never torn, the coordinator and its store never fail. docs/simulator.md says what is assumed of the rest.


class CulmRun:
    """One run over one trace."""

    def __init__(
        self, changes: Sequence[Change], profile: Profile, cluster: Cluster, choice: Choice, decide: Decide = advance
    ) -> None:
        self.profile, self.cluster, self.choice = profile, cluster, choice
        self.account = Account()
        self._clock = Clock()
        self._coordinator = VirtualCoordinator(_settings(profile, cluster, choice), self._clock, decide)
        self._nodes = MarketNodes()
        self._attendance = Attendance(
            clock=self._clock,
            account=self.account,
            profile=profile,
            cluster=cluster,
            machines=choice.machines or profile.most_stages + 2,
            nodes=self._nodes,
            coordinator=self._coordinator,
            tell=self._tell,
        )
        self._step = StepUnderWay(StepTimes(profile, cluster, choice), cluster, profile.samples_per_step)
        self._moving = Moving(profile, cluster)
        self._version = 0  # what was planned before something changed does not count
        self._waits_for = Use.WAITING  # while no step runs
        self._spent_by: dict[int, dict[Use, float]] = {}  # steps in a checkpoint -> what had been spent on them
        # Whether the last commit changed nothing else, and nothing moved since: only then calm steps are passed over.
        self._settled = False
        self.nodes_lost = 0  # that the coordinator has declared lost; the account has machines that were taken
        self._until = float("inf")  # when the run is looked at
        for change in changes:
            self._clock.at(change.at, lambda change=change: self._changed(change))  # type: ignore[misc]

    @property
    def decisions(self) -> int:
        """Reports that were decided on."""
        return self._coordinator.decisions

    def calm_seconds(self) -> float:
        """What a step takes while nothing happens: the median of all."""
        return self._step.calm_seconds()

    # ---- the run ----------------------------------------------------------------------------------------------------

    def run(self, seconds: float | None = None, name: str = "") -> Row:
        """Until so many seconds, or the job's steps, are done or nothing can happen any more."""
        self._until = seconds if seconds is not None else float("inf")
        while not self._is_done() and (seconds is None or self._clock.next_at <= seconds):
            if not self._clock.step():
                break
        if seconds is not None and not self._is_done():
            self._clock.now = max(seconds, self._clock.now)
        self._pass()
        self._step.give_up(self.account, Use.USEFUL)  # what there is of a step counts as if it were to end
        self._moving.check()
        self._coordinator.check(self.account.steps)
        return self.account.row(name or f"culm, {self.choice.redundancy}")

    def _is_done(self) -> bool:
        return self._coordinator.state.phase is co.Phase.DONE

    def _pass(self) -> None:
        """Books the time up to now, but for that of a step: it is known at its end what it was spent on."""
        state = self._coordinator.state
        if state.exposed_since and state.phase is co.Phase.RUNNING:
            self.account.exposed_seconds += self._clock.now - self.account.now
        self.account.pass_to(self._clock.now, self._waits_for if self._step.run is None else None)

    def _changed(self, change: Change) -> None:
        self._pass()
        self._attendance.change(change)

    def _tell(self, report: reports.Report) -> None:
        """Has a report decided on, and carries out what is ordered. The next step begins after all of it."""
        self._pass()
        committed = False
        for command in self._coordinator.take(report):
            if isinstance(command, cmd.Publish):
                self._adopt(command.plan)
            elif isinstance(command, cmd.Commit):
                committed, self._settled = True, command.next_plan is None
                self._step.book(self.account)
                if command.next_plan is not None:
                    self._move_state(command.next_plan)
            elif isinstance(command, cmd.Dismiss):
                self._attendance.dismiss(command)
            elif isinstance(command, cmd.WriteManifest):
                folder = folder_of(self._coordinator.state.settings.checkpoint_url, command.step)
                self._tell(reports.Checkpointed(Origin(command.step, folder)))
            elif isinstance(command, cmd.Record):
                self.nodes_lost += isinstance(command.event, Lost)
                if isinstance(command.event, RolledBack):
                    self._rolled_back()
        if committed:
            self._committed()

    # ---- plans ------------------------------------------------------------------------------------------------------

    def _adopt(self, plan: Plan) -> None:
        """A plan that waits for no commit: the first of an era, or after a node is lost."""
        if self._step.run is None:
            self._version += 1
            version, seconds = self._version, 0.0
            if plan.origin.folder:
                seconds = self.profile.state_bytes / len(plan.stages) / self.cluster.storage_bytes_per_second
                self._waits_for = Use.ROLLBACK
            self._nodes.restore(plan)
            self._clock.after(seconds, lambda: self._begin_era(version))
        else:
            self._step.adopt(plan, self._clock.now)
            self._plan_end()
        self._move_state(plan)

    def _begin_era(self, version: int) -> None:
        state = self._coordinator.state
        if version == self._version and state.phase is co.Phase.RUNNING:
            self._pass()
            self.account.begin()
            self._spent_by.setdefault(state.committed, dict(self.account.spent))
            self._begin_step()

    def _rolled_back(self) -> None:
        account, committed = self.account, self._coordinator.state.committed
        account.fatal += 1
        self._step.give_up(account, Use.ROLLBACK)
        account.lose_steps(account.steps - committed, self.profile.samples_per_step)
        account.roll_back(self._spent_by[committed])
        self._version += 1
        self._moving.give_up()
        self._waits_for = Use.WAITING

    def _move_state(self, plan: Plan) -> None:
        """State begins to move to whoever is to hold what it does not hold yet; what is given up is dropped."""
        self._settled = False
        self._nodes.keep(plan)
        for part, at in self._moving.adopt(plan, self._nodes.held(), self._clock.now):
            incarnation = self._nodes.here[part.node].incarnation
            self._clock.at(at, lambda part=part, i=incarnation: self._seeded(part, i))  # type: ignore[misc]

    def _seeded(self, part: Part, incarnation: int) -> None:
        node = self._nodes.find(part.node, incarnation)
        if node is None or not self._moving.arrive(part, self._clock.now):
            return
        self._nodes.seeded(part)
        self._settled = False
        self._tell(
            reports.CaughtUp(
                node=part.node,
                incarnation=incarnation,
                era=self._coordinator.state.era,
                first_layer=part.first_layer,
                end_layer=part.end_layer,
            )
        )

    # ---- steps ------------------------------------------------------------------------------------------------------

    def _begin_step(self) -> None:
        plan = self._coordinator.state.plan
        assert plan is not None
        self._step.begin(plan, self._clock.now, self._moving.goes_on(self._clock.now))
        if self._settled and self.choice.passes_over:
            self._pass_over()
        if self.profile.compares_bytes:
            self._coordinator.time_step(self._step.planned_seconds())
        self._plan_end()

    def _pass_over(self) -> None:
        """Takes all steps at once in which nothing can happen."""
        assert self._step.run is not None
        seconds, until = self._step.planned_seconds(), min(self._clock.next_at, self._until)
        count = calm_steps(self._coordinator.state, self.choice, self._clock.now, until, seconds)
        if count == 0:
            return
        if self.choice.redundancy == "auto":
            self._nodes.spend(self._step.run, count)
        self._coordinator.pass_over(count)
        if self.profile.compares_bytes:
            self._coordinator.time_step(seconds, count)
        self._clock.now += count * seconds
        self._pass()
        self._step.book_calm(self.account, count)

    def _plan_end(self) -> None:
        self._version += 1
        version = self._version
        self._clock.at(max(self._step.ends_at(), self._clock.now), lambda: self._ended(version))

    def _ended(self, version: int) -> None:
        """Every holder is ready. A lost node or a rollback that the first reports bring about makes the others void."""
        plan = self._coordinator.state.plan
        if version != self._version or self._step.run is None or plan is None:
            return
        if self.choice.redundancy == "auto":
            self._nodes.spend(self._step.run, 1)
            self._attendance.hear()
        state = self._coordinator.state
        parts = self._nodes.held_parts(plan)
        if self.choice.passes_over:
            self._coordinator.note(parts[:-1])
            parts = parts[-1:]
        for report in [self._nodes.ready(part, plan, state.committed, state.era) for part in parts]:
            self._tell(report)
            if version != self._version:
                return  # it was the last one

    def _committed(self) -> None:
        if self._is_done():
            self._step.end()
            return
        if self.choice.checkpoint_steps and self._coordinator.state.committed % self.choice.checkpoint_steps == 0:
            self._save()
        self._begin_step()

    # ---- checkpoints ------------------------------------------------------------------------------------------------

    def _save(self) -> None:
        """A checkpoint is begun, of the state as it is; it is whole when the slowest node has written its part."""
        state = self._coordinator.state
        assert state.plan is not None
        step, era = state.committed, state.era
        self._spent_by[step] = dict(self.account.spent)
        # Owners of one stage divide its layers among them, as reducers.
        writers = len(state.plan.stages) * min(len(stage.distinct_owners) for stage in state.plan.stages)
        size = self.profile.state_bytes / writers
        self._clock.after(size / self.cluster.storage_bytes_per_second, lambda: self._saved(step, era))

    def _saved(self, step: int, era: int) -> None:
        """One node speaks for all: the coordinator only wants every layer named."""
        files = {layer: (File(f"layer-{layer}", 0, ""),) for layer in range(len(self.profile.layers))}
        name, node = next(iter(self._nodes.here.items()), ("", None))
        if node is not None and era == self._coordinator.state.era:
            self._tell(
                reports.Saved(node=name, incarnation=node.incarnation, era=era, step=step, files=files, loss=0.0)
            )


def _settings(profile: Profile, cluster: Cluster, choice: Choice) -> co.Settings:
    return co.Settings(
        stages=profile.stages,
        microbatches=profile.microbatches,
        pipelines=profile.pipelines,
        by_value=profile.by_value,
        measured=profile.measured,
        steps=profile.steps,
        copies=1 if choice.redundancy == "off" else choice.copies,
        chooses_copies=choice.chooses_copies,
        nodes=choice.begins_with,
        auto=choice.redundancy == "auto",
        most_stages=profile.most_stages,
        settle_seconds=choice.settle_seconds,
        seed_bytes_per_second=cluster.seed_bytes_per_second,
        checkpoint_url="memory://simulated",
        checkpoint_every=choice.checkpoint_steps,
        samples_per_step=profile.samples_per_step,
    )
