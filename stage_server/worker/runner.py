"""What a node runs next of its duties, and what becomes of it: instructions, forwards ahead as a standby, takeovers."""

# A node runs whatever has its input (``culm.pipeline.choice``). Within a duty forwards, and backwards, go in order of
# microbatch; between duties no order is promised and none is waited for. So nodes cannot wait for each other in a
# circle, however the duties lie: a merged order of several pipelines did, in one of ten histories with lost nodes.
#
# What is left of a duty that this node owns, as ``_part`` tells:
#
#     a layer of the stage is not at the running step       nothing yet: no instruction runs on old state (rule 2)
#     the stage's whole gradient is not here                all that is not done
#     it is here                                            nothing, if this node has done it all; else as below
#     the duty came here within the step, and
#       a reducer lacks its pipeline                        all that is not done
#       ... and the lost owner had shipped a prefix         the microbatches after it, and what consumers lack before it
#       every reducer has its pipeline                      what consumers lack
#       nobody knows yet                                    nothing yet
#
# Forwards that run ahead (eager redundancy) are the same instructions, run by a standby while its own head waits. They
# take the activations that this node has itself produced for the owner, from its outbox. So a node runs ahead for the
# stage after its own, or for the first one, which takes samples. Microbatches run in order, as they do at the owner. If
# the node becomes the heir they count as done; their outputs go out, and only backwards are left (rule 9). A duty whose
# graphs were dropped within the step is *spoilt*: nothing more of it runs ahead until the commit.

from collections.abc import Iterator
from typing import Generic

from culm.pipeline import flow
from culm.pipeline.choice import Left, awaited, choose
from culm.pipeline.flow import consumers
from culm.pipeline.instruction import Duty, Instruction
from culm.pipeline.keys import Key
from culm.pipeline.plan import Plan
from culm.stage_server.worker import reduction
from culm.stage_server.worker.arranging import Arranging
from culm.stage_server.worker.duty import Duties, DutyStep
from culm.stage_server.worker.effects import Effect, ReportResumed
from culm.stage_server.worker.heir import Takeover, lost_results
from culm.stage_server.worker.holdings import Holdings
from culm.stage_server.worker.position import Position
from culm.stage_server.worker.post import Post
from culm.stage_server.worker.summing import Summing
from culm.stage_server.worker.work import Load, Resume, Run, V


class Runner(Generic[V]):
    """Reads where the node stands and what it holds; writes the records of its duties and puts out their results."""

    def __init__(
        self,
        position: Position,
        holdings: Holdings[V],
        post: Post[V],
        arranging: Arranging,
        effects: list[Effect],
    ) -> None:
        self._at = position
        self._holdings = holdings
        self._post = post
        self._arranging = arranging
        self._effects = effects
        self.duties: Duties[V] = Duties()
        self._in_turn: list[Duty] = []  # those that are owned, as they are run
        self._first: list[Duty] = []  # of these: the first stage's, which take samples
        self.summing: Summing[V] = Summing(position, self.duties, post)
        # Of the job, or of the newest plan that says so: see Redundancy.
        self.eager = False  # run forwards ahead for duties that this node stands by for
        self.ship_every = 0  # microbatches; 0: gradients go to the standby when they are whole
        # The tensor that the next instruction lacks. Invariant: None unless the last ``next_run`` gave None for it.
        self.awaited: Key | None = None
        # Gradients that lost owners had shipped, to be put in place before anything else of their duties is run: a
        # backward that came first would be the first summand, and the sum would have other bits.
        # Invariant: each is of a duty that is owned, and of the running step.
        self.resumes: list[Resume[V]] = []

    # ---- plans ------------------------------------------------------------------------------------------------------

    def adopt(self, plan: Plan, before: Plan | None, anew: bool) -> tuple[Duty, ...]:
        """Takes on the duties of a plan, and gives up those of others. Returns those that begin the step again.

        ``before``: the plan so far; ``anew``: this one's era begins, and nothing of before counts.
        """
        self.summing.adopt(plan, before, anew)
        fresh: list[Duty] = []
        owned, ahead = plan.duties_of(self._at.node), self.runs_ahead(plan)
        for duty, step in self.duties.items():
            if duty not in owned and duty not in ahead:
                step.drop_ahead()
        for duty in self.duties.owned:
            if duty not in owned:
                # A block cannot be taken apart again: what was merged with this duty's gradient is summed anew.
                block = self.duties[duty].block
                for other in self.duties.owned_at[duty.stage] if block is not None else ():
                    if other != duty and self.duties[other].block == block:
                        self.duties[other].restart()
                        # Its last backward may run still, on gradients that are dropped: it does not count.
                        self.duties[other].tenure = self.duties.new_tenure()
                        fresh.append(other)
                self.duties[duty].give_up()
                self.resumes = [resume for resume in self.resumes if resume.duty != duty]
                assert before is not None
                # The new owner's values count: consumers drop this node's (rule 3).
                self._post.forget_duty(duty, before.stages[duty.stage].layers)
        for duty in owned:
            step = self.duties[duty]
            if step.tenure is None:
                if not step.ahead:
                    fresh.append(duty)  # compute drops what it may still have of it, such as half a step's gradients
                step.tenure = self.duties.new_tenure()
                if not anew:
                    self._take_over(duty, plan)
        self.duties.own(owned)
        self._in_turn = sorted(owned, key=lambda duty: (plan.turns[duty.pipeline], duty))
        self._first = [duty for duty in self._in_turn if flow.takes_samples(duty.stage)]
        return tuple(duty for duty in fresh if duty in owned)

    def runs_ahead(self, plan: Plan) -> set[Duty]:
        """The duties whose forwards this node may run before anything is lost."""
        if not self.eager:
            return set()
        stages = [s for s, x in enumerate(plan.stages) if self._at.node in x.required() and len(x.distinct_owners) == 1]
        duties = {Duty(pipeline, s) for s in stages for pipeline in range(plan.pipelines)}
        return duties.difference(plan.duties_of(self._at.node))

    def _take_over(self, duty: Duty, plan: Plan) -> None:
        """The duty comes here within a step: what no consumer holds is to be done again."""
        step = self.duties[duty]
        step.takeover = Takeover(plan.order)
        if not step.ahead:
            step.spoilt = True  # from here on its forwards run as the owner's, with graphs of their own
        for microbatch, output in enumerate(step.ahead):
            self._adopt_forward(Instruction(duty, "F", microbatch), output, plan)
        # This node may be a consumer itself: what it has received, the lost owner had done.
        for instruction in self._at.order(duty):
            if instruction.op == "B" and any(key in self._post.mailbox for key in self._at.results_of(instruction)):
                step.takeover.known.add(instruction)
        if self._post.holds_whole(duty.stage):
            return
        shipped = self._post.mailbox.accumulated(self._at.version, duty)
        if shipped is not None:
            step.inherited = shipped.index
            self.resumes.append(Resume(duty, self._at.version, shipped.index, self._post.mailbox.get(shipped)))

    def _adopt_forward(self, instruction: Instruction, output: V | None, plan: Plan) -> None:
        """A forward that was run ahead is the owner's now. Whoever adopts a plan sends all that is out anyhow."""
        step = self.duties[instruction.duty]
        step.note(instruction)
        step.adopted += 1
        (key,) = self._at.results_of(instruction)
        if output is not None and consumers(key, plan, self._at.node):
            self._post.outbox.put(key, output)

    # ---- what to run ------------------------------------------------------------------------------------------------

    def next_run(self) -> Run[V] | None:
        """What has its input, of all that is left to be done; None where nothing has, and ``awaited`` names one."""
        self.awaited = None
        plan = self._at.plan
        assert plan is not None
        left = [self._left(duty, plan) for duty in self._in_turn]
        instruction = choose(left, self._at.schedule, len(plan.stages), self._post.missing)
        if instruction is None:
            self.awaited = awaited(left, self._at.schedule, len(plan.stages), self._post.missing)
            return None
        return self._run(instruction)

    def _left(self, duty: Duty, plan: Plan) -> Left:
        at, step = self._at, self.duties[duty]
        if not self._holdings.are_at(at.version, plan.stages[duty.stage].layers):
            return Left(duty=duty)  # its state is on its way still: from a checkpoint, after a rollback
        part: set[Instruction] | None = None
        if step.takeover is not None or self._post.holds_whole(duty.stage):
            part = self._part(duty, step)
            if part is not None and not part:
                return Left(duty=duty)
        turn, splits = plan.turns[duty.pipeline], at.schedule.splits_at(duty.stage)
        return step.heads(duty, turn, at.microbatches, at.evaluated, splits, part)

    def _run(self, instruction: Instruction) -> Run[V]:
        step = self.duties[instruction.duty]
        assert step.tenure is not None, f"{instruction.duty} is another node's"
        if step.takeover is not None:
            self._note_resumed(instruction.duty)
        return Run(
            instruction=instruction,
            step=self._at.version,
            tenure=step.tenure,
            operands=self._post.operands(instruction),
            accumulates=step.sums and reduction.accumulates(instruction, step.inherited),
            ships=self._ships(instruction) if self.ship_every else 0,
            completes=self.summing.completed_by(instruction),
        )

    def next_redundant(self) -> Run[V] | None:
        """A forward of a duty that this node stands by for, of use if its owner is lost."""
        plan = self._at.plan
        if plan is None or self.duties.stopped:
            return None
        for duty in sorted(self.runs_ahead(plan)):
            step = self.duties[duty]
            instruction = Instruction(duty, "F", len(step.ahead))
            # Once the stage's reduced gradient is here an heir needs no forward but for a result that somebody lacks.
            here = self._at_version(duty.stage) and not self._post.holds_whole(duty.stage)
            if step.spoilt or instruction.microbatch >= self._at.microbatches or not here:
                continue
            given = [self._post.outbox.get(key) for key in self._at.inputs_of(instruction)]
            operands = tuple(operand for operand in given if operand is not None)
            if len(operands) == len(given):
                ticket = self.duties.ticket
                return Run(instruction=instruction, step=self._at.version, tenure=ticket, operands=operands)
        return None

    def next_loads(self) -> Iterator[Load]:
        """The microbatches that this node's forwards will take from the dataset: of this step, and then of the next."""
        version, first = self._at.version, self._first
        if not first:
            return
        # Not at a step's beginning, when all that runs on a machine has work to do.
        begun = any(self.duties[duty].done for duty in first)
        for step in range(version, min(version + 1 + begun, self._at.end)):
            for op, count in self._at.forwards_in(step):
                for duty in first if count else ():
                    # Microbatches run in order, but for an heir's, which may be done here and there.
                    heir = step == version and self.has_taken_over(duty)
                    whole = step > version or heir
                    for m in range(0 if whole else self.duties[duty].count[op], count):
                        if not heir or not self.duties.has_done(Instruction(duty, op, m)):
                            yield Load(step, duty.pipeline, m, evaluated=op == "E")

    # ---- what was run -----------------------------------------------------------------------------------------------

    def ran(self, work: Run[V], result: V | None, accumulated: V | None) -> None:
        """Takes what an instruction gave. Of one that is no longer this node's it is dropped."""
        if work.redundant:
            self._ran_ahead(work, result)
        elif self.is_current(work.instruction.duty, work.step, work.tenure):
            self.duties[work.instruction.duty].note(work.instruction)
            self._hand_on(work, result, accumulated)

    def goes_on(self, work: Run[V]) -> None:
        """The instruction waits for somebody else: until it ends it is not given out again."""
        if self.is_current(work.instruction.duty, work.step, work.tenure):
            self.duties[work.instruction.duty].under_way.add(work.instruction)

    def note(self, work: Run[V]) -> None:
        """The owner's instruction has run, and others may follow it; what it gave comes to ``hand_on``, maybe later."""
        if self.is_current(work.instruction.duty, work.step, work.tenure):
            self.duties[work.instruction.duty].note(work.instruction)

    def hand_on(self, work: Run[V], result: V | None, accumulated: V | None) -> None:
        """Puts out what the owner's instruction gave. It may have begun the step again since: the bits are the same."""
        if self.is_current(work.instruction.duty, work.step, work.tenure):
            self._hand_on(work, result, accumulated)

    def _hand_on(self, work: Run[V], result: V | None, accumulated: V | None) -> None:
        self._post.put_result(work.instruction, result)
        if accumulated is not None:
            self._post.put_out(self._at.accumulated(work.instruction.duty, work.ships), accumulated)

    def _ran_ahead(self, work: Run[V], result: V | None) -> None:
        plan, duty = self._at.plan, work.instruction.duty
        if work.tenure != self.duties.ticket or work.step != self._at.version or plan is None:
            return
        step = self.duties[duty]
        if step.tenure is None and duty not in self.runs_ahead(plan):
            step.spoilt = True  # it went to another node meanwhile, and its graph with it
        elif not step.spoilt and work.instruction.microbatch == len(step.ahead):
            step.ahead.append(result)
            # The owner was lost while the forward ran: the duty is this node's by now.
            if step.tenure is not None:
                self._adopt_forward(work.instruction, result, plan)
                self._post.put_result(work.instruction, result)

    def is_current(self, duty: Duty, step: int, tenure: int) -> bool:
        """Whether work that was begun in this step under this tenure still counts."""
        return step == self._at.version and self.duties.is_current(duty, tenure)

    def has_taken_over(self, duty: Duty) -> bool:
        """Whether the duty came here within the running step."""
        step = self.duties.get(duty)
        return step is not None and step.takeover is not None

    def held_elsewhere(self, key: Key) -> bool:
        """A consumer has a tensor. Of a duty that this node took over, and has not produced, the lost owner had it.

        Returns whether it took that duty over.
        """
        step = self.duties.get(key.duty)
        if step is None or step.takeover is None:
            return False
        if key not in self._post.outbox:
            step.takeover.known.add(flow.maker_of(key))
        return True

    def redone(self, stage: int) -> int:
        """How many instructions of the stage ran here though a lost owner had finished them."""
        count = 0
        for duty, step in self.duties.of_stage(stage):
            if step.takeover is not None:
                adopted = {Instruction(duty, "F", m) for m in range(step.adopted)}
                count += step.takeover.redone(self._at.order(duty), step.done - adopted)
        return count

    def end_step(self) -> None:
        """The step is committed, here or elsewhere."""
        self.duties.end_step()
        self.summing.end_step()
        self.resumes.clear()

    def end_era(self) -> None:
        self.duties.end_era()
        self.summing.end_step()
        self.resumes.clear()

    # ---- what is left -----------------------------------------------------------------------------------------------

    def _part(self, duty: Duty, step: DutyStep[V]) -> set[Instruction] | None:
        """What this node is to run of a duty that came here within the step, or whose stage's whole gradient is here.

        None: all that is not done.
        """
        if step.takeover is None:
            if len(step.done) == self._at.size_of(duty.stage):
                return set()
            # Another owner had it in this step, by a plan that this node never heard of: its leader was lost, and with
            # it the commit, which was decided once more. So consumers may lack what that owner alone had given.
            assert self._at.plan is not None
            step.takeover = Takeover(self._at.plan.order)
        lacking = self.summing.is_lacking(duty)
        if lacking:
            return self._to_sum(duty, step, self._at.order(duty))
        if lacking is None or not self._has_heard(duty):
            return set()
        lost = self._lost_results(duty, list(self._at.order(duty)))
        if lost:
            step.sums = False  # single backwards, not all that come before them: their sum would be another one
        else:
            self._note_resumed(duty)  # no instruction will say so: nothing of the duty is left
        return lost

    def _to_sum(self, duty: Duty, step: DutyStep[V], order: tuple[Instruction, ...]) -> set[Instruction] | None:
        """What an heir runs while a reducer lacks its pipeline."""
        if not step.sums:
            # Every reducer had the pipeline, until one of them was lost as well. Some results were computed meanwhile.
            step.restart()
            self._arranging.restart(duty, self._at.version)
            return set()
        if not step.inherited:
            return None
        new = {i for i in order if reduction.accumulates(i, step.inherited)}
        return (new - step.done) | self._lost_results(duty, [i for i in order if i not in new])

    def _lost_results(self, duty: Duty, order: list[Instruction]) -> set[Instruction]:
        """What an heir redoes of work whose gradients it has: only what a consumer lacks, once it has been told."""
        step = self.duties[duty]
        if not order or step.takeover is None or not self._has_heard(duty):
            return set()
        # What is shipped is of stages whose forwards change no buffers.
        return lost_results(order, step.done, self._post.lacks, each_alone=step.inherited > 0)

    def _has_heard(self, duty: Duty) -> bool:
        """Whether an heir's neighbours have told what they hold since the duty came here."""
        # Not the one that is this node itself: its mailbox and outbox say it.
        plan, takeover = self._at.plan, self.duties[duty].takeover
        assert plan is not None
        assert takeover is not None
        return self._post.has_told(flow.near(duty, plan) - {self._at.node}, takeover.since)

    def _ships(self, instruction: Instruction) -> int:
        """After how many microbatches, with this instruction, the gradients go to the hot standby; 0: not now."""
        inherited = self.duties[instruction.duty].inherited
        count = reduction.prefix_after(instruction, self._at.schedule, self.ship_every, inherited)
        assert self._at.plan is not None
        key = self._at.accumulated(instruction.duty, count)
        return count if count and consumers(key, self._at.plan, self._at.node) else 0

    def _note_resumed(self, duty: Duty) -> None:
        takeover = self.duties[duty].takeover
        if takeover is not None and not takeover.resumed:
            takeover.resumed = True
            self._effects.append(ReportResumed(takeover.since[1], duty.stage))

    def _at_version(self, stage: int) -> bool:
        assert self._at.plan is not None
        return self._holdings.are_at(self._at.version, self._at.plan.stages[stage].layers)
