"""The interpreter of a node: from plans, commits and tensors it derives what to compute and what to send."""

# A worker does no I/O, holds no lock and knows no torch. A driver, real or simulated, feeds it events, runs the work
# that ``next_work`` gives, hands the result to ``finish``, and carries out what ``drain`` gives. The worker's parts:
#
#     position     whom the node obeys, its era and step, and the commits that it has not applied yet
#     holdings     a version for each layer that it holds, and the layers that are on their way to it
#     post         its tensors, by key, and their way to other nodes
#     runner       a record for each duty, and which instruction is next
#     arranging    the layers and duties that compute is to be ready for
#     applying     what a commit does to the layers
#     checking     digests of its state, and forwards of others that it runs again
#     facts        what it has reported
#
# A step on one node. ``next_work`` gives the runner's instructions one by one, and their results go to the post. Reduce
# follows the last backward of a block of pipelines, Sum what has come of all of them; the sum goes to the stage's other
# holders. When a part's whole gradient and state are here the node reports it. The commit comes; the next piece of work
# applies it, and the step is forgotten.
#
# ``version`` is the number of the running step. Three things move it:
#
#     _applied      by one: the queue's first commit is applied (rule 2)
#     _skip_to      to a later step: commits were missed, and every layer is fetched again
#     _begin_era    to where the plan's era stands: a rollback, or the node's first plan
#
# Events may void a piece of work while it runs. ``finish`` looks whether it still counts: a Run or Reduce by step and
# tenure, a Sum by its reducer, an Install or a catch-up by ``Holdings``, an Apply by the commit at the queue's head.

from collections import deque
from collections.abc import Iterable
from typing import Generic

from culm.pipeline.commit import Commit
from culm.pipeline.flow import peers_of
from culm.pipeline.keys import REDUCED, Key
from culm.pipeline.plan import Plan, PlanOrder
from culm.pipeline.schedule import Schedule
from culm.pipeline.ties import Addend
from culm.stage_server.worker.applying import Applying
from culm.stage_server.worker.arranging import Arranging
from culm.stage_server.worker.checking import Checking
from culm.stage_server.worker.early import Arrival
from culm.stage_server.worker.effects import Adopted, Effect, SayHello, Standing
from culm.stage_server.worker.facts import Facts
from culm.stage_server.worker.holdings import Holdings
from culm.stage_server.worker.later import Later
from culm.stage_server.worker.position import Position
from culm.stage_server.worker.post import Post
from culm.stage_server.worker.runner import Runner
from culm.stage_server.worker.work import Apply, Audit, Check, Install, Reduce, Run, Save, Sum, V, Work


class Worker(Generic[V]):
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
        """``checkpoint_every``: in steps; ``eager`` and ``ship_every``: until a plan says otherwise, see Redundancy."""
        # Since the last drain. A peer hears a Hello before what is sent under the same plan.
        self.effects: list[Effect] = []
        self.at = Position(node=node, incarnation=incarnation, schedule=schedule, job_steps=steps)
        self.holdings: Holdings[V] = Holdings()
        self.post: Post[V] = Post(self.at, self.effects)
        self._arranging = Arranging()
        self.runner: Runner[V] = Runner(self.at, self.holdings, self.post, self._arranging, self.effects)
        self.checking: Checking[V] = Checking(self.at, self.holdings, self.post)
        self.facts: Facts[V] = Facts(self.at, self.holdings, self.post, self.runner, self.checking, self.effects)
        self.applying: Applying[V] = Applying(self.at, self.holdings, self.post, self.effects)
        self.checkpoint_every = checkpoint_every
        self.runner.eager, self.runner.ship_every = eager, ship_every
        # The newest applied in this era. A coordinator that takes over may learn of it from here alone (rule 8).
        self.last_commit: Commit | None = None
        self._later = Later()
        # Given out before what changes their layers: compute still has those at the Save's version.
        self._saves: deque[Save] = deque()

    # ---- where it stands --------------------------------------------------------------------------------------------

    @property
    def node(self) -> str:
        return self.at.node

    @property
    def term(self) -> int:
        """The highest heard of."""
        return self.at.term

    @property
    def era(self) -> int:
        return self.at.era

    @property
    def version(self) -> int:
        """Steps applied to all that is held."""
        return self.at.version

    @property
    def committed(self) -> int:
        """Steps known to be committed, applied here or not yet."""
        return self.at.committed

    @property
    def plan(self) -> Plan | None:
        return self.at.plan

    @property
    def holds_state(self) -> bool:
        """Whether its plan gives it layers, under the present cut or the prepared one: then it must miss no commit."""
        return self.plan is not None and bool(self.plan.layers_of(self.node))

    # ---- orders -----------------------------------------------------------------------------------------------------

    def take_plan(self, plan: Plan, at_commit: bool = False) -> None:
        """Adopts a newer plan at once; an older one is refused (rule 3). ``at_commit``: its step begins."""
        at, before, plan = self.at, self.at.plan, plan.of_job(self.at.ties, self.at.audit, self.at.neighbours)
        ahead = before is not None and plan.era == at.era and plan.step > at.committed
        if ahead and any(at.node in stage.required() for stage in plan.stages):
            # The plan counts on this node, so the commit that leads to its step is still to come, and brings the plan.
            # After a takeover an owner had adopted such a plan at once, and went on with old weights (rule 2).
            return
        if ahead and before is not None and plan.order == before.order:
            # The plan that it obeys, told again on attaching as of a later step: nobody waited for this node meanwhile.
            self._skip_to(plan.step)
            self.facts.progress()
        if self._is_stale(plan) or self._later.put_off(plan, at):
            return
        at.term, at.plan = max(at.term, plan.term), plan
        at.begin(at.version)  # anew: how many steps there are follows from the plan, too
        if plan.redundancy is not None:
            self.runner.eager, self.runner.ship_every = plan.redundancy.eager, plan.redundancy.ship_every
        anew = before is None or plan.era != at.era
        if anew:
            self._begin_era(plan)
        elif plan.step > at.committed:
            self._skip_to(plan.step)
        # Before all that the parts send: an heir may have tensors for peers to which the plan before needed no stream.
        self.effects.append(Adopted(plan))
        self.effects.extend(SayHello(peer) for peer in peers_of(at.node, plan))
        self.checking.adopt(plan)
        fresh = self.runner.adopt(plan, before, anew)
        self.holdings.adopt(plan, at.node, at.version, anew)
        if at_commit:
            # Only at a commit: within a step the node may have reported such a layer ready, and a later plan of the
            # step may count on that (rule 6).
            self.holdings.give_up(plan.layers_of(at.node))
        self.effects.extend(self.holdings.restores(plan, at.node, anew))
        duties = sorted({*plan.duties_of(at.node), *self.runner.runs_ahead(plan)})
        ranges = tuple((duty, plan.stages[duty.stage].layers) for duty in duties)
        held = self.holdings.held()
        initial = [layer for layer in held if anew and self.holdings.version_of(layer) is not None]
        self._arranging.order(held, at.version, plan, anew, ranges, fresh, initial)
        self.post.send_again()
        self._take_early()
        self.facts.progress()

    def _is_stale(self, plan: Plan) -> bool:
        at, member = self.at, plan.members.get(self.at.node)
        if member is not None and member.incarnation != at.incarnation and plan.held_by(at.node):
            return True  # it counts on the process before this one, which is not known to be lost yet (rule 13)
        return plan.term < at.term or (at.plan is not None and plan.order <= at.plan.order)

    def take_commit(self, commit: Commit) -> None:
        """Queues a commit; it is applied by the next piece of work (rule 2)."""
        at, commit = self.at, commit.of_job(self.at.ties, self.at.audit, self.at.neighbours)
        if commit.term < at.term or commit.era != at.era:
            return
        at.term, at.bookmark = commit.term, commit.bookmark or at.bookmark
        if commit.step < at.committed:
            # A successor tells the last commit to every node that attaches (rule 8).
            self._take_again(commit)
            return
        if commit.step > at.committed and at.plan is not None:
            self._skip_to(commit.step)
        at.commits.append(commit)
        self._take_early()
        self.facts.progress()

    def _take_again(self, commit: Commit) -> None:
        """A commit that is known already; another plan than before may follow it."""
        plan = commit.next_plan
        if plan is None or self._is_stale(plan):
            return
        for i, queued in enumerate(self.at.commits):
            if queued.step == commit.step:
                self.at.commits[i] = commit
                return
        # It is applied, and its step may have begun here: the plan is one within the step, and takes nothing (rule 6).
        self.take_plan(plan)

    def _skip_to(self, step: int) -> None:
        """Commits were missed while nobody waited for this node. No layer can follow: each is fetched again."""
        self.at.commits.clear()
        self.at.begin(step)
        self.holdings.start_over()
        self.post.forget_before(step)
        self._end_step()
        self.post.begin_step()
        self._take_early()

    def _begin_era(self, plan: Plan) -> None:
        self.at.era = plan.era
        self.at.begin(plan.step)
        self.at.commits.clear()
        self.post.end_era()
        self._saves.clear()
        self.last_commit = None
        self.runner.end_era()
        self.checking.end_era()
        self.applying.end_era()
        self.facts.end_step()

    def _end_step(self) -> None:
        self.runner.end_step()
        self.checking.begin_step()
        self.facts.end_step()

    # ---- state from elsewhere ---------------------------------------------------------------------------------------

    def fetched(self, era: int, layer: int, version: int, state: V, source: str) -> None:
        """A layer's state has arrived, from a holder or from CHECKPOINT; that of another era is of no use."""
        if era == self.at.era:
            self.holdings.fetched(layer, version, state, source)

    def fetch_failed(self, era: int, peer: str, layers: Iterable[int]) -> None:
        """The peer could not send these layers."""
        if era == self.at.era:
            self.holdings.failed(peer, layers)
        self.facts.progress()  # at once: no other event may follow, where all others wait for this node

    def unread(self, era: int) -> None:
        """The checkpoint that the era begins from cannot be read so far: the other holders may have done so."""
        if era == self.at.era and self.at.plan is not None:
            self.effects.extend(self.holdings.unread(self.at.plan, self.at.node))

    # ---- tensors ----------------------------------------------------------------------------------------------------

    def deliver(self, peer: str, incarnation: int, order: PlanOrder, key: Key, value: V) -> None:
        """A tensor has arrived from a peer, which obeys the plan of this order."""
        self._arrive(Arrival(peer, incarnation, order, key, value))
        if key.kind is REDUCED:
            self.facts.progress()

    def hello(self, peer: str, incarnation: int, order: PlanOrder) -> None:
        """A peer obeys this plan and asks what it need not send. Its leader's term counts here, too (rule 12)."""
        self.at.term = max(self.at.term, order[0])
        self._arrive(Arrival(peer, incarnation, order))

    def acknowledged(self, peer: str, incarnation: int, keys: Iterable[Key]) -> bool:
        """A peer has these tensors. Whether that may change what there is to do: an heir need not do them again."""
        matters = False
        # Of another era, or of steps far ahead, nothing is kept: what is would stay until that comes.
        for key in filter(self.at.awaits, keys):
            matters = self.runner.held_elsewhere(key) or matters
            self.post.outbox.acknowledge(key, peer, incarnation)
        return matters

    def synced(self, peer: str, standing: Standing) -> None:
        """A peer has told all that it holds of this node's, and where it stands."""
        self.post.hear_standing(peer, standing)

    def _arrive(self, arrival: Arrival[V]) -> None:
        key, value = arrival.key, arrival.value
        if self.post.arrive(arrival) and key is not None and value is not None and key.kind is REDUCED:
            for layer, place in self.at.places_of(key.index):
                # Also of the running step: an Apply that was made without this gradient may be out. The layer waits for
                # the gradient as a follow-up; after the last step no later one would show the gap (rule 17).
                self.holdings.late(layer, place, key.step, value)
                if key.step >= self.at.version:
                    self.holdings.passed(layer, place, key.step)

    def _take_early(self) -> None:
        for arrival in self.post.early.take():
            self._arrive(arrival)

    # ---- work -------------------------------------------------------------------------------------------------------

    @property
    def must_arrange(self) -> bool:
        """Whether the layers held are not yet those of the present plan."""
        return self._arranging.due is not None

    @property
    def waits_for_commit(self) -> bool:
        """Whether all that this node has to do in the running step is done."""
        return bool(owned := self.runner.duties.owned) and all(self.post.holds_whole(duty.stage) for duty in owned)

    @property
    def awaited(self) -> Key | None:
        """The tensor that the next instruction lacks, if that is why ``next_work`` gave None."""
        return self.runner.awaited

    def next_work(self) -> Work[V] | None:
        """What to compute now; None while everything waits for input."""
        # The order matters. Arrange makes ready what all other work is on. A Resume comes before its duty's backwards:
        # what was shipped is the first summand (rule 9). A Save comes before what would change the copied version.
        # Installs and catch-ups come before commits, as ``takes_step`` needs it. A commit comes before instructions:
        # its step needs no more of them, and the next step waits for it (rule 2).
        at, self.runner.awaited = self.at, None
        if self._arranging.due is not None:
            return self._arranging.take()
        if self.runner.resumes:
            return self.runner.resumes.pop(0)
        if self._saves:
            return self._saves.popleft()
        if (state := self.holdings.next_state()) is not None:
            return state
        if at.commits and at.commits[0].step == at.version and at.plan is not None:
            return self.applying.work_of(at.commits[0], at.plan)
        if at.rests:
            return self.applying.save_at_rest(self.last_commit) if self.checkpoint_every else None
        if at.plan is None:
            return None
        summing = self.runner.summing.next_sum() or self.runner.summing.next_reduce()
        # A duty may turn out to begin the step again: then compute drops what it has of it first. Checks come last.
        work = summing or self.runner.next_run() or self._arranging.take()
        rests = work is None and self.awaited is None and (self.waits_for_commit or not self.runner.duties.owned)
        return self.checking.next() if rests else work

    def next_redundant(self) -> Run[V] | Check | Audit[V] | None:
        """To do while ``next_work`` gives None: a forward of a duty that this node stands by for, or a check."""
        if self.must_arrange or self.at.commits or self.at.rests:
            return None
        return (self.runner.next_redundant() if self.runner.eager else None) or self.checking.next()

    def finish(
        self,
        work: Work[V],
        result: V | None = None,
        values: tuple[tuple[Addend, V], ...] = (),
        accumulated: V | None = None,
        digest: int | None = None,
    ) -> None:
        """Takes a Run's ``result``, a Reduce's or Sum's ``values``. Of work that is void they are dropped."""
        at = self.at
        if isinstance(work, Run):
            self.runner.ran(work, result, accumulated)
            return
        if isinstance(work, Reduce):
            self.runner.summing.reduced(work, values)
        elif isinstance(work, Sum):
            self.runner.summing.summed(work, values[0][1])
        elif isinstance(work, Install):
            self.holdings.installed(work, at.version)
            self.checking.forget(work.layer)
            self._look_for_gaps()
        elif isinstance(work, Check | Audit):
            self.checking.done(work, digest)
        elif isinstance(work, Apply) and work.catch_up:
            self.holdings.caught_up(work)
            assert at.plan is not None
            self.facts.note_caught_up(at.plan, {layer for layer, _ in work.gradients})
        elif isinstance(work, Apply) and at.commits and at.commits[0].step == work.step == at.version:
            self._applied(at.commits.popleft(), work)
        self.facts.progress()

    def has_left(self, work: Reduce[V], values: Iterable[tuple[Addend, V]]) -> None:
        """Takes what a layer gave that left while the last backward of its block runs."""
        self.runner.summing.has_left(work, values)
        self.facts.progress()

    def _applied(self, commit: Commit, work: Apply[V]) -> None:
        plan, following = self.at.plan, commit.next_plan
        self.at.begin(commit.step + 1)
        self.last_commit = commit
        self.holdings.applied(layer for layer, _ in work.gradients)
        # Keys name stages. Under another cut a stage has other layers, so what was kept of it is of no use.
        same_cut = following is None or plan is None or following.ranges == plan.ranges
        self.post.forget_before(self.at.version, plan if same_cut else None)
        self._end_step()
        if (held := tuple(self.holdings.held())) != self._arranging.layers:
            self._arranging.order(held, self.at.version)  # the commit has given layers up
        if following is not None:
            self.take_plan(following, at_commit=True)
        if (later := self._later.take(self.at)) is not None:
            self.take_plan(later)
        self.post.begin_step()
        self._look_for_gaps()
        # After the plan: who saves a layer is told by the plan of the step that begins.
        if (save := self.applying.save_after(commit, self.checkpoint_every)) is not None:
            self._saves.append(save)

    def _look_for_gaps(self) -> None:
        """Gradients that came before a state or a commit may show a gap in what is to follow it (rule 11)."""
        for key in (key for key in self.post.mailbox if key.kind is REDUCED):
            for layer, place in self.at.places_of(key.index):
                self.holdings.passed(layer, place, key.step)

    def drain(self) -> list[Effect]:
        """What is to be sent since the last call, in order."""
        effects = list(self.effects)
        self.effects.clear()
        return effects
