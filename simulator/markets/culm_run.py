"""Culm over a trace: the real coordinator decides, the real schedule tells how long steps take; the clock is virtual.

Nodes are not played message by message, as in ``culm.simulator.histories``: between two decisions a step is as long as
its timetable, and calm steps that cannot change anything are passed over at once. What a node would report,
and when, follows from what it holds and from how long state takes to reach it.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from culm.coordinator import commands as cmd
from culm.coordinator import reports, settling
from culm.coordinator import state as co
from culm.coordinator.decide import advance, begin, validate
from culm.coordinator.redundancy import REVIEW_STEPS
from culm.pipeline.checkpoints.manifest import File, folder_of
from culm.pipeline.flow import peers_of
from culm.pipeline.machine import Machine
from culm.pipeline.money.kinds import RolledBack
from culm.pipeline.origin import Origin
from culm.pipeline.plan import Plan
from culm.pipeline.times import TimeSplit
from culm.simulator.markets.account import Account, Row, Use
from culm.simulator.markets.fleet import Fleet
from culm.simulator.markets.job_profile import Cluster, Profile, costs_of
from culm.simulator.markets.run_setup import Choice, Lengths, StepTimes
from culm.simulator.markets.seeding_time import Moving, Part
from culm.simulator.markets.step_time import StepRun
from culm.simulator.markets.trace import Change
from culm.simulator.network import Clock

TICK = 0.5  # seconds between two ticks of a coordinator
OF_STEPS = (Use.USEFUL, Use.REDUNDANCY, Use.SEEDING, Use.REDONE)
JOINS_ANEW = 5.0  # seconds until a process that was dismissed is there again


@dataclass
class _Node:
    incarnation: int
    zone: str
    held: set[int] = field(default_factory=set)  # layers at the committed version
    times: TimeSplit = field(default_factory=TimeSplit)


class CulmRun:
    """One run over one trace."""

    def __init__(
        self,
        changes: Sequence[Change],
        profile: Profile,
        cluster: Cluster,
        choice: Choice,
        decide: Callable[[co.State, reports.Report, float], tuple[co.State, tuple[cmd.Command, ...]]] = advance,
    ) -> None:
        self._decide = decide
        self.profile, self.cluster, self.choice = profile, cluster, choice
        self.account = Account()
        self._pace = StepTimes(profile, cluster, choice)
        self.decisions = 0  # reports that were decided on
        settings = co.Settings(
            stages=profile.stages,
            microbatches=profile.microbatches,
            steps=profile.steps,
            redundancy=choice.redundancy != "off",
            nodes=choice.begins_with,
            auto=choice.redundancy == "auto",
            most_stages=profile.most_stages,
            settle_seconds=choice.settle_seconds,
            seed_bytes_per_second=cluster.seed_bytes_per_second,
            checkpoint_url="memory://simulated",
            samples_per_step=profile.samples_per_step,
        )
        self.state = begin(settings)
        self._clock = Clock()
        machines = choice.machines or profile.most_stages + 2
        self._fleet = Fleet(self._clock, self.account, cluster, machines, self._joins, self._gone)
        self._nodes: dict[str, _Node] = {}
        self._incarnations = 0
        self._step: StepRun | None = None
        self._begun = 0.0  # when the step under way began
        self._planned = Lengths()  # of it, if nothing happens
        self._traffic = 0.0  # dollars for it
        self._version = 0  # what was planned before something changed does not count
        self._moving = Moving(profile, cluster)
        self._waits_for = Use.WAITING
        self._spent_by: dict[int, dict[Use, float]] = {}  # steps in a checkpoint -> what had been spent on them
        self._settled = False  # the last commit changed nothing else
        self._until = float("inf")  # when the run is looked at
        for change in changes:
            self._clock.at(change.at, lambda change=change: self._changed(change))  # type: ignore[misc]

    # ---- the run ----------------------------------------------------------------------------------------------------

    def run(self, seconds: float | None = None, name: str = "") -> Row:
        """Until so many seconds, or the job's steps, are done or nothing can happen any more."""
        self._until = seconds if seconds is not None else float("inf")
        while self.state.phase is not co.Phase.DONE and (seconds is None or self._clock.next_at <= seconds):
            if not self._clock.step():
                break
        if seconds is not None and self.state.phase is not co.Phase.DONE:
            self._clock.now = max(seconds, self._clock.now)
        self._pass()
        if self._step is not None:  # what there is of a step counts as if it were to end
            self.account.spent[Use.USEFUL] += self.account.now - self._begun
        self._check()
        return self.account.row(name or f"culm, {self.choice.redundancy}")

    def _check(self) -> None:
        self._moving.check()
        taken, committed = self.account.steps, self.state.committed
        assert taken == committed, f"{taken} steps taken, {committed} committed"
        validate(self.state)

    def _pass(self) -> None:
        """Books the time up to now, but for that of a step: it is known at its end what it was spent on."""
        if self.state.exposed_since and self.state.phase is co.Phase.RUNNING:
            self.account.exposed_seconds += self._clock.now - self.account.now
        self.account.pass_to(self._clock.now, self._waits_for if self._step is None else None)

    def _tell(self, event: reports.Report) -> None:
        self._pass()
        self.decisions += 1
        self.state, commands = self._decide(self.state, event, self._clock.now)
        committed = False
        for command in commands:
            if isinstance(command, cmd.Publish):
                self._adopt(command.plan)
            elif isinstance(command, cmd.Commit):
                committed, self._settled = True, command.next_plan is None
                self._book()
                if command.next_plan is not None:
                    self._move_state(command.next_plan)
            elif isinstance(command, cmd.Dismiss):
                self._dismissed(command)
            elif isinstance(command, cmd.WriteManifest):
                folder = folder_of(self.state.settings.checkpoint_url, command.step)
                self._tell(reports.Checkpointed(Origin(command.step, folder)))
            elif isinstance(command, cmd.Record) and isinstance(command.event, RolledBack):
                self._rolled_back()
        if committed:
            self._committed()

    # ---- machines ---------------------------------------------------------------------------------------------------

    def _changed(self, change: Change) -> None:
        self._pass()
        if change.kind == "add":
            self._fleet.offer(change)
        elif change.kind == "remove":
            self._fleet.take(change.node)
        elif change.node in self.state.nodes:
            self._tell(reports.Draining(change.node, "its machine is to go", change.seconds_left))

    def _joins(self, name: str, zone: str) -> None:
        if not self._fleet.has(name) or name in self._nodes:
            return
        self._incarnations += 1
        node = self._nodes[name] = _Node(self._incarnations, zone)
        machine = Machine(zone=zone, market="spot")
        self._tell(
            reports.Joined(node=name, incarnation=node.incarnation, address=f"{name}:1", zone=zone, machine=machine)
        )
        self._tell(
            reports.Available(node=name, incarnation=node.incarnation, layer_costs=costs_of(self.profile.layers))
        )

    def _gone(self, name: str) -> None:
        """Its streams break; if none leads to a neighbour, it is missed by its silence."""
        node = self._nodes.pop(name, None)
        if node is not None:
            plan = self.state.plan
            neighbours = peers_of(name, plan) if plan is not None and name in plan.members else ()
            detected = self.cluster.detect_seconds
            self._clock.after(detected, lambda: self._missed(name, node.incarnation, neighbours))

    def _missed(self, name: str, incarnation: int, neighbours: Iterable[str]) -> None:
        self._tell(reports.StreamBroken(name, incarnation, "its machine is gone"))
        for neighbour in neighbours:
            reporter = self._nodes.get(neighbour)
            if reporter is not None:
                self._tell(reports.PeerLost(neighbour, reporter.incarnation, name, incarnation, "the stream broke"))
        if name in self.state.nodes:
            patience = self.state.settings.patience.seconds + TICK
            self._clock.after(patience, lambda: self._given_up(name, incarnation))

    def _given_up(self, name: str, incarnation: int) -> None:
        """It has not come back. Ticks and heartbeats that change nothing else were not told one by one."""
        known = self.state.nodes.get(name)
        if known is not None and known.incarnation == incarnation:
            self._hear()
            self.state = replace(self.state, last_tick=self._clock.now - TICK)
            self._tell(reports.Tick())

    def _hear(self) -> None:
        now = self._clock.now
        speed = self.cluster.bytes_per_second
        beats = (
            reports.Heartbeat(node=name, incarnation=node.incarnation, times=node.times, bytes_per_second=speed)
            for name, node in self._nodes.items()
        )
        self._tell(reports.Heard(tuple((now, beat) for beat in beats)))

    def _dismissed(self, command: cmd.Dismiss) -> None:
        node = self._nodes.get(command.node)
        if node is None or node.incarnation != command.incarnation:
            return
        del self._nodes[command.node]
        if command.join_anew:
            self._clock.after(JOINS_ANEW, lambda: self._joins(command.node, node.zone))
        else:  # drained
            self._fleet.give_back(command.node)

    # ---- plans ------------------------------------------------------------------------------------------------------

    def _adopt(self, plan: Plan) -> None:
        """A plan that waits for no commit: the first of an era, or after a node is lost."""
        if self._step is None:
            self._version += 1
            version, seconds = self._version, 0.0
            if plan.origin.folder:
                seconds = self.profile.state_bytes / len(plan.stages) / self.cluster.storage_bytes_per_second
                self._waits_for = Use.ROLLBACK
            for name, node in self._nodes.items():
                node.held = set(plan.layers_of(name))
            self._clock.after(seconds, lambda: self._begin_era(version))
        else:
            owners = [stage.owner for stage in plan.stages]
            at = self._clock.now - self._begun
            step = self._step
            if list(step.owners) != owners:
                step = step.of(step.owners)
                gone = max(0.0, at - self.cluster.detect_seconds)
                step.lose(gone, at, owners, self._pace.ahead(plan), self._pace.ships(plan))
            self._step = step
            self._plan_end(plan)
        self._move_state(plan)

    def _begin_era(self, version: int) -> None:
        if version == self._version and self.state.phase is co.Phase.RUNNING:
            self._pass()
            self.account.begin()
            self._spent_by.setdefault(self.state.committed, dict(self.account.spent))
            self._begin_step()

    def _rolled_back(self) -> None:
        account = self.account
        account.fatal += 1
        if self._step is not None:
            account.spent[Use.ROLLBACK] += account.now - self._begun
            self._step = None
        account.lose_steps(account.steps - self.state.committed, self.profile.samples_per_step)
        account.roll_back(self._spent_by[self.state.committed])
        self._version += 1
        self._moving.give_up()
        self._waits_for = Use.WAITING

    def _move_state(self, plan: Plan) -> None:
        """State begins to move to whoever is to hold what it does not hold yet; what is given up is dropped."""
        self._settled = False
        for name, node in self._nodes.items():
            if node.held:
                node.held &= plan.layers_of(name)
        held = {name: node.held for name, node in self._nodes.items()}
        for part, at in self._moving.adopt(plan, held, self._clock.now):
            incarnation = self._nodes[part.node].incarnation
            self._clock.at(at, lambda part=part, i=incarnation: self._seeded(part, i))  # type: ignore[misc]

    def _seeded(self, part: Part, incarnation: int) -> None:
        node = self._nodes.get(part.node)
        if node is None or node.incarnation != incarnation or not self._moving.arrive(part, self._clock.now):
            return
        node.held |= set(range(part.first_layer, part.end_layer))
        self._settled = False
        self._tell(
            reports.CaughtUp(
                node=part.node,
                incarnation=incarnation,
                era=self.state.era,
                first_layer=part.first_layer,
                end_layer=part.end_layer,
            )
        )

    # ---- steps ------------------------------------------------------------------------------------------------------

    def calm_seconds(self) -> float:
        """What a step takes under the present plan while nothing happens."""
        return self._planned.useful + self._planned.redundancy

    def _begin_step(self) -> None:
        plan = self.state.plan
        assert plan is not None
        self._begun = self._clock.now
        self._step = self._pace.calm_step(plan).of([stage.owner for stage in plan.stages])
        self._planned = self._pace.lengths(plan, self._moving.goes_on(self._clock.now))
        self._traffic = self._pace.traffic(plan)
        if self._settled and self.choice.passes_over:
            self._pass_over(plan)
        self._plan_end(plan)

    def _plan_end(self, plan: Plan) -> None:
        assert self._step is not None
        longer = sum(self._planned) / self._planned.useful
        self._version += 1
        version = self._version
        end = self._begun + (self._step.seconds + self.cluster.commit_seconds) * longer
        self._clock.at(max(end, self._clock.now), lambda: self._ended(version))

    def _ended(self, version: int) -> None:
        if version != self._version or self._step is None or self.state.plan is None:
            return
        if self.choice.redundancy == "auto":
            self._spend(1)
            self._hear()
        told: Sequence[reports.Ready] = self._readiness(self.state.plan)
        if self.choice.passes_over:
            told = self._all_but_the_last(told)
        for event in told:
            self._tell(event)
            if version != self._version:
                return  # it was the last one

    def _committed(self) -> None:
        if self.state.phase is co.Phase.DONE:
            self._step = None
            return
        if self.choice.checkpoint_steps and self.state.committed % self.choice.checkpoint_steps == 0:
            self._save()
        self._begin_step()

    def _readiness(self, plan: Plan) -> list[reports.Ready]:
        """What the holders report at the end of a step."""
        step, era = self.state.committed, self.state.era
        return [
            reports.Ready(
                node=name,
                incarnation=node.incarnation,
                era=era,
                step=step,
                stage=s,
                first_layer=layers.start,
                squared_norms=(0.0,) * len(layers),
                losses=(0.0,),
            )
            for name, node in self._nodes.items()
            if node.held
            for s, layers in plan.parts_of(name)
            if node.held.issuperset(layers)
        ]

    def _all_but_the_last(self, told: Sequence[reports.Ready]) -> Sequence[reports.Ready]:
        """Puts reports on record of which the machine would only take note; the last one it is told."""
        facts = dict(self.state.facts)
        norms = dict(self.state.norms)
        for event in told[:-1]:
            facts[event.node] = facts.get(event.node, frozenset()) | frozenset(event.layers)
            norms |= zip(event.layers, event.squared_norms, strict=True)
        self.state = replace(self.state, facts=facts, norms=norms)
        return told[-1:]

    def _book(self) -> None:
        account = self.account
        redone = account.now - self._begun - sum(self._planned)
        for use, seconds in zip(OF_STEPS, (*self._planned, redone), strict=True):
            account.spent[use] += seconds
        account.pay(self._traffic)
        account.step(self.profile.samples_per_step)

    def _pass_over(self, plan: Plan) -> None:
        """Takes all steps at once in which nothing can happen: the machine would only count them."""
        state, now = self.state, self._clock.now
        length = sum(self._planned)
        until = min(self._clock.next_at, self._until)
        until = min(until, settling.next_look(state, now))
        count = int((until - now) / length) - 1 if until < float("inf") else state.settings.steps
        count = min(count, state.settings.steps - state.committed - 1)
        if self.choice.checkpoint_steps:
            count = min(count, self.choice.checkpoint_steps - state.committed % self.choice.checkpoint_steps - 1)
        if state.review is not None:
            count = min(count, state.review.step + REVIEW_STEPS - state.committed - 1)
        if count < 1 or any(node.draining for node in state.nodes.values()):
            return
        if self.choice.redundancy == "auto":
            self._spend(count)
        last = state.last_commit
        assert last is not None
        last = replace(last, step=last.step + count)
        self.state = replace(state, committed=state.committed + count, last_commit=last)
        self._clock.now += count * length
        self._pass()
        for use, seconds in zip(OF_STEPS, (*self._planned, 0.0), strict=True):
            self.account.spent[use] += count * seconds
        self.account.pay(count * self._traffic)
        self.account.step(self.profile.samples_per_step, count)
        self._begun = self._clock.now

    def _spend(self, steps: int) -> None:
        """What nodes would tell of where their time went."""
        assert self._step is not None
        for name, node in self._nodes.items():
            spent = self._step.times(name)
            node.times = TimeSplit(
                forward=node.times.forward + steps * spent.forward,
                backward=node.times.backward + steps * spent.backward,
                bubble=node.times.bubble + steps * spent.bubble,
            )

    def _save(self) -> None:
        """A checkpoint is begun, of the state as it is; it is whole when the slowest node has written its part."""
        assert self.state.plan is not None
        step, era = self.state.committed, self.state.era
        self._spent_by[step] = dict(self.account.spent)
        size = self.profile.state_bytes / len(self.state.plan.stages)
        self._clock.after(size / self.cluster.storage_bytes_per_second, lambda: self._saved(step, era))

    def _saved(self, step: int, era: int) -> None:
        files = {layer: (File(f"layer-{layer}", 0, ""),) for layer in range(len(self.profile.layers))}
        name, node = next(iter(self._nodes.items()), ("", None))
        if node is not None and era == self.state.era:
            self._tell(reports.Saved(name, node.incarnation, era, step, files))
