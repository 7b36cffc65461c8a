"""The interpreter of a node: from plans, commits and tensors it derives what to compute and what to send.

It does no I/O, holds no lock and knows no torch: a driver feeds it events, runs the work that ``next_work`` gives and
hands the result to ``finish``, and carries out ``drain()``. The same class runs in real nodes and in the simulation.
"""

from collections import deque
from collections.abc import Iterable

from culm.pipeline.keys import REDUCED, Key
from culm.pipeline.plan import Plan, PlanOrder
from culm.pipeline.schedule import Schedule, program
from culm.stage_server.worker.early import Arrival
from culm.stage_server.worker.instructions import (
    Adopted,
    Apply,
    Arrange,
    CommitOrder,
    Effect,
    Forfeit,
    Install,
    Reduce,
    ReportCaughtUp,
    ReportReady,
    Run,
    Save,
    SayHello,
    V,
    Work,
)
from culm.stage_server.worker.outbox import COMMITS_TO_WAIT
from culm.stage_server.worker.running import Running


class Worker(Running[V]):
    """One incarnation of a node."""

    def __init__(
        self,
        node: str,
        incarnation: int,
        schedule: Schedule,
        steps: int,
        checkpoint_every: int = 0,
        eager: bool = False,
        ship_every: int = 0,
    ) -> None:
        super().__init__(node, incarnation, schedule, steps, eager, ship_every)
        self.checkpoint_every = checkpoint_every
        self._reported: dict[tuple[int, int, int], ReportReady] = {}  # by stage, first layer and end
        self._settled: dict[int, ReportCaughtUp] = {}  # after the last commit, by first layer: seeded copies
        self.last_commit: CommitOrder | None = None  # the newest that was applied
        self._saves: deque[Save] = deque()
        self._arrange: Arrange | None = None
        self._held: tuple[int, ...] = ()  # the layers of the last Arrange
        self._ranges: tuple[tuple[int, int, int], ...] = ()  # of the stages that it runs: stage, first layer, end

    # ---- orders -----------------------------------------------------------------------------------------------------

    def take_plan(self, plan: Plan, at_commit: bool = False) -> None:
        """Adopts a newer plan at once; an older one is refused (rule 3). ``at_commit``: its step begins."""
        before = self.plan
        ahead = before is not None and plan.era == self.era and plan.step > self.committed
        if ahead and any(self.node in stage.required() for stage in plan.stages):
            return  # it is counted on at that step: the commit that leads there is to come, and the plan with it
        if ahead and before is not None and plan.order == before.order:
            self._skip_to(plan.step)
            self._progress()
        if self._is_stale(plan):
            return
        self.term, self.plan = max(self.term, plan.term), plan
        if plan.redundancy is not None:
            self.eager, self.ship_every = plan.redundancy.eager, plan.redundancy.ship_every
        anew = before is None or plan.era != self.era
        if anew:
            self._begin_era(plan)
        elif plan.step > self.committed:
            self._skip_to(plan.step)
        self._effects.append(Adopted(plan))  # first: an heir may have tensors for peers that it had no stream to
        for peer in plan.peers_of(self.node):
            self._effects.append(SayHello(peer))
        owned = set(plan.owned_by(self.node))
        standby = self._run_ahead(plan)
        self.ahead.drop(set(self.ahead.stages()) - owned - standby)
        fresh = tuple(s for s in owned - set(self.tenure) if not self.ahead.outputs(s))
        for s in set(self.tenure) - owned:
            self._give_up(s)
        for s in owned - set(self.tenure):
            self.tenure[s] = plan.generation
            if not anew:
                self._promote(s, plan)
        self.seeding.adopt(plan, self.node, self.version, anew)
        if at_commit:
            self.seeding.give_up(plan.layers_of(self.node))
        self._effects.extend(self.seeding.restores(plan, self.node, anew))
        owners = [stage.owner for stage in plan.stages]
        self._begin_program(program(owners, self.node, self.schedule))
        self._ranges = tuple((s, plan.stages[s].first_layer, plan.stages[s].end_layer) for s in sorted(owned | standby))
        initial = {x for x in self.seeding.held() if anew and self.seeding.version_of(x) is not None}
        self._rearrange(anew, fresh, initial)
        for key in self.outbox:
            self._route(key)
        self._take_early()
        self._progress()

    def _rearrange(self, anew: bool = False, fresh: tuple[int, ...] = (), initial: Iterable[int] = ()) -> None:
        """Other layers are held, or other stages run, than before. ``initial``: layers that go on as they are built."""
        if self._arrange is not None:  # the one before was never carried out
            anew, fresh = anew or self._arrange.anew, tuple({*fresh, *self._arrange.fresh} & set(self.tenure))
            initial = {*initial, *self._arrange.initial}
        self._held = tuple(self.seeding.held())
        built = tuple(sorted({*initial} & {*self._held}))
        self._arrange = Arrange(self._held, self._ranges, self.version, anew, fresh, built)

    def take_commit(self, commit: CommitOrder) -> None:
        """Queues a commit; it is applied by the next piece of work (rule 2)."""
        if commit.term < self.term or commit.era != self.era:
            return
        if commit.step < self.committed:
            self._take_again(commit)
            return
        self.term = commit.term
        if commit.step > self.committed and self.plan is not None:
            self._skip_to(commit.step)
        self._commits.append(commit)
        self._take_early()
        self._progress()

    def _take_again(self, commit: CommitOrder) -> None:
        """A commit that is known already; what is to follow it may be another plan now."""
        plan = commit.next_plan
        if plan is None or self._is_stale(plan):
            return
        for i, queued in enumerate(self._commits):
            if queued.step == commit.step:
                self._commits[i] = commit
                return
        self.take_plan(plan)

    def _skip_to(self, step: int) -> None:
        """Commits were missed while nobody waited for this node: what it was being seeded with is fetched again."""
        self._commits.clear()
        self.version = step
        self.seeding.start_over()
        self.mailbox.forget_before(step)
        self.outbox.forget_before(step)
        self._forget_step()
        self._take_early()

    def _is_stale(self, plan: Plan) -> bool:
        member = plan.members.get(self.node)
        if member is not None and member.incarnation != self.incarnation and plan.held_by(self.node):
            return True  # it counts on the process before this one, whose loss is not known yet (rule 13)
        return plan.term < self.term or (self.plan is not None and plan.order <= self.plan.order)

    def _begin_era(self, plan: Plan) -> None:
        self.era, self.version = plan.era, plan.step
        self.mailbox.clear()
        self.outbox.clear()
        self._commits.clear()
        self._saves.clear()
        self.last_commit = None
        self.tenure.clear()
        self._forget_step()

    # ---- state from elsewhere ---------------------------------------------------------------------------------------

    def fetched(self, era: int, layer: int, version: int, state: V) -> None:
        """A layer's state has arrived, from a holder or from a checkpoint; that of another era is of no use."""
        self._look_anew()
        if era == self.era:
            self.seeding.fetched(layer, version, state)

    def fetch_failed(self, era: int, peer: str, layers: Iterable[int]) -> None:
        self._look_anew()
        if era == self.era:
            self.seeding.failed(peer, layers)
        if self.version >= self.steps:
            self._progress()  # nothing else will happen by itself

    def refuse(self, work: Install[V]) -> bool:
        """A layer's state was not installed: it is of another layer. Whether it may be the checkpoint's."""
        return self.seeding.refuse(work)

    def unread(self, era: int) -> None:
        """The checkpoint that the era begins from cannot be read so far: the other holders may have done so."""
        self._look_anew()
        if era == self.era and self.plan is not None:
            self._effects.extend(self.seeding.unread(self.plan, self.node))

    # ---- data -------------------------------------------------------------------------------------------------------

    def deliver(self, peer: str, incarnation: int, order: PlanOrder, key: Key, value: V) -> None:
        """A tensor has arrived from a peer."""
        self._arrive(Arrival(peer, incarnation, order, key, value))
        if key.kind is REDUCED:
            self._progress()

    @property
    def must_arrange(self) -> bool:
        """Whether the layers held are not yet those of the present plan."""
        return self._arrange is not None

    # ---- work -------------------------------------------------------------------------------------------------------

    def next_work(self) -> Work[V] | None:
        """What to compute now; None while everything waits for input."""
        self.awaited = None
        if self._arrange is not None:
            work, self._arrange = self._arrange, None
            return work
        if self._resumes:
            return self._resumes.pop(0)
        if self._saves:
            return self._saves.popleft()
        install = self.seeding.next_install()
        if install is not None:
            return install
        catch_up = self.seeding.next_catch_up()
        if catch_up is not None:
            return catch_up
        if self._commits and self._commits[0].step == self.version and self.plan is not None:
            return None if self._may_wait(self.plan) else self._apply(self._commits[0])
        if self.plan is None or self.version >= self.steps:
            return None
        if (head := self._calm_head()) is not None:
            return self._run(head)
        for s in self.tenure:
            if self._is_accumulated(s) and not self.holds_whole(s):
                return Reduce(s, self.version, self.tenure[s])
        return self._next_run(self.plan)

    @property
    def waits_for_commit(self) -> bool:
        """Whether all that this node has to do in the running step is done."""
        return self.plan is not None and bool(self.tenure) and all(self.holds_whole(s) for s in self.tenure)

    def next_redundant(self) -> Run[V] | None:
        """A forward to run while ``next_work`` gives None: of a stage that this node stands by for, or None."""
        plan = self.plan
        if plan is None or self._arrange is not None or self._commits or self.version >= self.steps:
            return None
        return self._redundant(plan)

    def _may_wait(self, plan: Plan) -> bool:
        """Whether a commit can wait for gradients that it has overtaken: here nobody waits for a node being seeded."""
        if self._commits[-1].step + 1 >= self.steps:
            return False  # no later gradient will show that one is lost: the layer is fetched again
        for known in (plan, self._commits[0].next_plan):
            if known is not None and any(self.node in stage.required() for stage in known.stages):
                return False
        keys = [self._key(REDUCED, s, layer) for s, layer in plan.held_layers(self.node)]
        missing = [key for key in keys if key not in self.mailbox]
        # Streams keep their order: where a later gradient is here, the missing one will not come. The later one may
        # be of any step, since the stream may have been broken, or wait for the plan within this very commit.
        here = (*self.mailbox, *self._early.keys())
        later = {key._replace(step=0) for key in here if key.step > self.version}
        passed = any(key._replace(step=0) in later for key in missing)
        return bool(missing) and not passed and len(self._commits) <= COMMITS_TO_WAIT

    def _apply(self, commit: CommitOrder) -> Apply[V]:
        gradients = []
        assert self.plan is not None
        self.seeding.give_up(self.plan.layers_of(self.node))  # before a version of them would stay behind (rule 6)
        for s, layer in self.plan.held_layers(self.node):
            key = self._key(REDUCED, s, layer)
            value = self.mailbox.get(key) if key in self.mailbox else None
            passed_over = self.seeding.version_of(layer) is None and not self.seeding.lacks(layer)
            if (value is None or passed_over) and self.node in self.plan.stages[s].required():
                # Two leaders at once: the one that decided the commit did not count on this node.
                lacking = "state" if passed_over else "gradient"
                why = f"step {commit.step} was committed without it: it has no {lacking} of layer {layer}"
                self._effects.append(Forfeit(why))
            if self.seeding.takes_step(layer, commit.step, commit.scale, value) and value is not None:
                gradients.append((layer, value))
        return Apply(commit.step, commit.scale, tuple(gradients))

    def finish(
        self,
        work: Work[V],
        result: V | None = None,
        reduced: tuple[tuple[int, V], ...] = (),
        accumulated: V | None = None,
    ) -> None:
        """Takes what the work gave. The result of work that is no longer this node's is dropped."""
        if isinstance(work, Run):
            self._ran(work, result, accumulated)
            return
        self._look_anew()
        if isinstance(work, Reduce):
            if self._is_current(work.stage, work.step, work.tenure):
                for layer, value in reduced:
                    self.mailbox.put(self._key(REDUCED, work.stage, layer), value)
                self._ship(work.stage)
        elif isinstance(work, Install):
            self.seeding.installed(work, self.version)
            here = [k.step for k in self.mailbox if k.kind is REDUCED and k.index == work.layer]
            self.seeding.passed(work.layer, max(here, default=0))
        elif isinstance(work, Apply) and work.catch_up:
            self.seeding.caught_up(work)
            self._note_caught_up([layer for layer, _ in work.gradients])
        elif isinstance(work, Apply) and self._commits and self._commits[0].step == work.step == self.version:
            self._applied(self._commits.popleft(), work)
        self._progress()

    def _note_caught_up(self, layers: Iterable[int]) -> None:
        """Its gradients may come after their commits for ever: the coordinator is to wait for this node, too."""
        assert self.plan is not None
        for _, part in self.plan.parts_of(self.node):
            if any(x in part for x in layers) and all(self.seeding.version_of(x) == self.version for x in part):
                order = self.plan.order
                self._effects.append(ReportCaughtUp(self.era, part.start, part.stop, self.version, order))

    def _applied(self, commit: CommitOrder, work: Apply[V]) -> None:
        self.version = commit.step + 1
        self.last_commit = commit
        self.seeding.applied(layer for layer, _ in work.gradients)
        self.mailbox.forget_before(self.version)
        same_cut = commit.next_plan is None or self.plan is None or commit.next_plan.ranges == self.plan.ranges
        self.outbox.forget_before(self.version, self.plan if same_cut else None)
        self._forget_step()
        if tuple(self.seeding.held()) != self._held:
            self._rearrange()
        if commit.next_plan is not None:
            self.take_plan(commit.next_plan, at_commit=True)
        due = self.checkpoint_every and (self.version % self.checkpoint_every == 0 or self.version >= self.steps)
        if due or commit.save:
            self._save()

    def _save(self) -> None:
        assert self.plan is not None
        layers = [
            layer
            for stage, saver in zip(self.plan.stages, self.plan.savers(), strict=True)
            for layer in stage.layers
            if saver == self.node and self.seeding.version_of(layer) == self.version
        ]
        if layers:
            self._saves.append(Save(self.version, tuple(layers)))

    def _forget_step(self) -> None:
        super()._forget_step()
        self._reported.clear()

    # ---- facts ------------------------------------------------------------------------------------------------------

    def repeat_facts(self) -> tuple[ReportReady, ...]:
        """All that was reported of the running step, for a coordinator that may have missed it (rule 6)."""
        return tuple(self._reported.values())

    def _progress(self) -> None:
        """Reports every stage that has become ready and asks for layers that are to be seeded."""
        plan = self.plan
        if plan is None:
            return
        if self.version >= self.steps:
            self._settle(plan)
            return
        self._effects.extend(self.seeding.fetches(plan, self.node))
        for s, layers in plan.parts_of(self.node):
            keys = [self._key(REDUCED, s, layer) for layer in layers]
            part = (s, layers.start, layers.stop)  # under another plan of the step it may have been a smaller one
            if part in self._reported or any(key not in self.mailbox for key in keys):
                continue
            if any(self.seeding.version_of(layer) != self.version for layer in layers):
                continue
            values = [self.mailbox.get(key) for key in keys]
            losses = values[-1].losses if s == len(plan.stages) - 1 else ()
            norms = tuple(v.squared_norm for v in values)
            redone = self._heir.redone(s, self._stage_order(s), self._done - self.ahead.adopted)
            report = ReportReady(self.era, self.version, s, layers.start, norms, losses, redone)
            self._reported[part] = report
            self._effects.append(report)

    def _settle(self, plan: Plan) -> None:
        """After the last commit: seeding goes on, though no later gradient and no commit will come (rule 17).

        Which copies are there is reported under every plan anew: the report counts for that plan alone.
        """
        self.seeding.close_gaps()
        self._effects.extend(self.seeding.fetches(plan, self.node))
        self._settled = {first: x for first, x in self._settled.items() if x.order == plan.order}
        for s, layers in plan.parts_of(self.node):
            if self.node in plan.stages[s].required() or layers.start in self._settled:
                continue
            if all(self.seeding.version_of(layer) == self.version for layer in layers):
                report = ReportCaughtUp(self.era, layers.start, layers.stop, self.version, plan.order)
                self._settled[layers.start] = report
                self._effects.append(report)

    def repeat_settled(self) -> tuple[ReportCaughtUp, ...]:
        """Which seeded copies are at the last version, for a coordinator that may have missed it."""
        return tuple(self._settled.values()) if self.version >= self.steps else ()

    def drain(self) -> list[Effect]:
        """What is to be sent since the last call, in order."""
        effects, self._effects = self._effects, []
        return effects
