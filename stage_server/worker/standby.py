"""What a node does for the stages that it stands by for: forwards ahead of a loss, and the takeover (rule 9)."""

from collections.abc import Sequence

from culm.pipeline.keys import ACCUMULATED, ACTIVATION, GRADIENT, REDUCED, Key, consumers
from culm.pipeline.plan import Plan
from culm.pipeline.schedule import Instruction, Schedule
from culm.stage_server.worker.ahead import Ahead
from culm.stage_server.worker.exchange import Exchange
from culm.stage_server.worker.heir import needed_for
from culm.stage_server.worker.instructions import ReportResumed, Resume, Run, V


class StandbyDuty(Exchange[V]):
    """The part of a worker that makes heirs: what one has ready, is given, takes over and does again."""

    def __init__(self, node: str, incarnation: int, schedule: Schedule, eager: bool, ship_every: int) -> None:
        super().__init__(node, incarnation, schedule)
        self.ship_every = ship_every  # microbatches; 0: gradients go to the standby when they are whole
        self.eager = eager  # run forwards ahead for the stages that this node stands by for
        self.ahead: Ahead[V] = Ahead()
        self.awaited: Key | None = None  # why there is no work: the next instruction lacks this tensor
        self._done: set[Instruction] = set()
        self._inherited: dict[int, int] = {}  # stage -> microbatches in the gradients that its lost owner had shipped
        self._resumes: list[Resume[V]] = []

    def _run_ahead(self, plan: Plan) -> set[int]:
        """The stages whose forwards this node may run before anything is lost."""
        if not self.eager:
            return set()
        hot = {s for s, stage in enumerate(plan.stages) if self.node in stage.required()}
        return hot - set(plan.owned_by(self.node))

    def _redundant(self, plan: Plan) -> Run[V] | None:
        for s in sorted(self._run_ahead(plan)):
            m = self.ahead.next_of(s)
            if m is None or m >= self.microbatches or self.holds_whole(s) or not self._at_version(s, plan):
                continue
            operand = self.outbox.get(self._key(ACTIVATION, s - 1, m)) if s > 0 else None
            if operand is not None or s == 0:
                return Run(Instruction(s, "F", m), self.version, self.ahead.ticket, operand)
        return None

    def _ran_ahead(self, work: Run[V], result: V | None) -> None:
        s = work.instruction.stage
        current = work.tenure == self.ahead.ticket and work.step == self.version
        if current and self.plan is not None and s not in self.tenure and s not in self._run_ahead(self.plan):
            self.ahead.spoil(s)  # it went to another node meanwhile, and its graph with it
            return
        if current and self.ahead.put(work.instruction, result) and s in self.tenure:
            assert self.plan is not None
            self._adopt(work.instruction, result, self.plan)
            self._put_result(work.instruction, result)

    def _promote(self, stage: int, plan: Plan) -> None:
        """This node becomes the owner within a step: what no consumer holds is to be done again."""
        self._heir.inherit(stage, plan.order)
        outputs = self.ahead.outputs(stage)
        if not outputs:
            self.ahead.spoil(stage)
        for m, output in enumerate(outputs):
            self._adopt(Instruction(stage, "F", m), output, plan)
        for m in range(self.microbatches):
            if stage > 0 and self._key(GRADIENT, stage, m) in self.mailbox:
                self._heir.held_elsewhere(Instruction(stage, "B", m))
        if self.holds_whole(stage):
            self._ship(stage)
            return
        shipped = self.mailbox.accumulated(self.version, stage)
        if shipped is not None:
            self._inherited[stage] = shipped.index
            self._resumes.append(Resume(stage, self.version, shipped.index, self.mailbox.get(shipped)))

    def _adopt(self, instruction: Instruction, output: V | None, plan: Plan) -> None:
        """A forward that was run ahead is the owner's now. Whoever adopts a plan sends all that is out anyhow."""
        self._done.add(instruction)
        self.ahead.adopted.add(instruction)
        key = self._key(ACTIVATION, instruction.stage, instruction.microbatch)
        if output is not None and consumers(key, plan):
            self.outbox.put(key, output)

    def _give_up(self, stage: int) -> None:
        """The stage is another node's from now on."""
        del self.tenure[stage]
        self._heir.give_up(stage)
        self._inherited.pop(stage, None)
        self._resumes = [resume for resume in self._resumes if resume.stage != stage]
        self.outbox.forget_stage(stage)
        self._done = {i for i in self._done if i.stage != stage}

    def _accumulates(self, instruction: Instruction) -> bool:
        """Whether this backward adds to the stage's gradients; false if it is in those that were inherited."""
        return instruction.microbatch >= self._inherited.get(instruction.stage, 0)

    def _ships(self, instruction: Instruction) -> int:
        """After how many microbatches, with this instruction, the gradients go to the hot standby; 0: not now."""
        s, count = instruction.stage, instruction.microbatch + 1
        due = self.ship_every and count % self.ship_every == 0 and count < self.microbatches
        if not due or instruction.op != self.schedule.closes(s) or not self._accumulates(instruction):
            return 0
        assert self.plan is not None
        return count if consumers(self._key(ACCUMULATED, s, count), self.plan) else 0

    def _stage_order(self, stage: int) -> tuple[Instruction, ...]:
        assert self.plan is not None
        return self.schedule.order(stage, len(self.plan.stages))

    def _is_accumulated(self, stage: int) -> bool:
        """Whether all that the stage's whole gradient needs is done."""
        # The last one first: until it is done nothing else has to be looked at.
        return all(i in self._done for i in reversed(self._stage_order(stage)) if self._accumulates(i))

    def _todo(self, stage: int) -> set[Instruction] | None:
        """What is left of a stage in this step; None: all that is not done."""
        order = self._stage_order(stage)
        if not self.holds_whole(stage):
            if stage not in self._inherited:
                return None
            todo = {i for i in order if self._accumulates(i)} - self._done
            return todo | self._lost_results(stage, [i for i in order if not self._accumulates(i)])
        if stage not in self._heir or not self._has_heard(stage):
            return set()
        lost = self._lost_results(stage, order)
        if not lost:
            self._note_resumed(stage)
        return lost

    def _has_heard(self, stage: int) -> bool:
        """Whether an heir's neighbours have told what they hold."""
        assert self.plan is not None
        neighbours = {self.plan.stages[n].owner for n in (stage - 1, stage + 1) if 0 <= n < len(self.plan.stages)}
        return self._heir.has_heard(stage, neighbours - {self.node})

    def _lost_results(self, stage: int, order: Sequence[Instruction]) -> set[Instruction]:
        """What an heir redoes of work whose gradients it has: only what a consumer lacks, once it has been told."""
        if not order or not self._has_heard(stage):
            return set()
        each_alone = stage in self._inherited  # what is shipped is of stages whose forwards change no buffers
        return needed_for([i for i in order if self._lacks(i)], each_alone) - self._done

    def _note_resumed(self, stage: int) -> None:
        generation = self._heir.resumes(stage)
        if generation is not None:
            self._effects.append(ReportResumed(generation, stage))

    def _put_result(self, instruction: Instruction, result: V | None) -> None:
        kind = ACTIVATION if instruction.op == "F" else GRADIENT
        key = self._key(kind, instruction.stage, instruction.microbatch)
        if result is not None and self.plan is not None and consumers(key, self.plan):
            self._put_out(key, result)

    def _ship(self, stage: int) -> None:
        """The reduced gradient goes to every other holder: what was received, where something was (rule 4)."""
        assert self.plan is not None
        for layer in self.plan.stages[stage].layers:
            key = self._key(REDUCED, stage, layer)
            self._put_out(key, self.mailbox.get(key))

    def _at_version(self, stage: int, plan: Plan) -> bool:
        return all(self.seeding.version_of(layer) == self.version for layer in plan.stages[stage].layers)

    def _forget_step(self) -> None:
        self._done.clear()
        self.ahead.forget()
        self._heir.forget()
        self._inherited.clear()
        self._resumes.clear()
