"""What a node runs of its program: which instruction is next, and what becomes of it."""

from collections.abc import Iterator, Sequence

from culm.pipeline.keys import ACCUMULATED, ACTIVATION, GRADIENT
from culm.pipeline.plan import Plan
from culm.pipeline.schedule import Instruction, Schedule
from culm.stage_server.worker.instructions import Load, Run, V
from culm.stage_server.worker.program import Program
from culm.stage_server.worker.standby import StandbyDuty


class Running(StandbyDuty[V]):
    """The part of a worker that takes instructions from its program, one after another."""

    def __init__(
        self, node: str, incarnation: int, schedule: Schedule, steps: int, eager: bool = False, ship_every: int = 0
    ) -> None:
        super().__init__(node, incarnation, schedule, eager, ship_every)
        self.steps = steps
        self._program = Program()
        self._calm: int | None = None  # the node's one stage, while its program is all that the node may have to do

    def _begin_program(self, instructions: Sequence[Instruction]) -> None:
        """Another plan; what is done of the step stays done."""
        self._program = Program(instructions)
        self._look_anew()

    def _look_anew(self) -> None:
        """Something has changed beside what an owner runs and what it gets for that."""
        self._calm = None

    def _calm_head(self) -> Instruction | None:
        """What is next where that is known without a look at anything else; what it takes may not be here yet."""
        head = self._program.head(self._done) if self._calm is not None else None
        return head if head is not None and head.stage == self._calm else None

    def _next_run(self, plan: Plan) -> Run[V] | None:
        """The first of the program that is left to be done; None while it lacks its tensor."""
        # An owner's state may be on its way still: from a checkpoint, after a rollback.
        here = {s for s in self.tenure if self._at_version(s, plan)}
        todo = {s: self._todo(s) for s in here if s in self._heir}
        alone = len(self.tenure) == 1 and not todo
        for instruction in self._program.left(self._done):
            s = instruction.stage
            if s not in here:
                continue
            if s not in todo:
                todo[s] = self._todo(s)
            if (wanted := todo[s]) is None or instruction in wanted:
                self._calm = s if alone and wanted is None else None
                return self._run(instruction)
        return None

    def _run(self, instruction: Instruction) -> Run[V] | None:
        s, m = instruction.stage, instruction.microbatch
        assert self.plan is not None
        operand: V | None = None
        if instruction.op == "F" and s > 0:
            key = self._key(ACTIVATION, s - 1, m)
        elif instruction.op == "B" and s < len(self.plan.stages) - 1:
            key = self._key(GRADIENT, s + 1, m)
        else:
            key = None
        if key is not None:
            if key not in self.mailbox:
                self.awaited = key
                return None
            operand = self.mailbox.get(key)
        self._note_resumed(s)
        accumulates = self._accumulates(instruction)
        return Run(instruction, self.version, self.tenure[s], operand, accumulates, self._ships(instruction))

    @property
    def waits_for_input(self) -> bool:
        """Whether next_work gave None because the next instruction lacks its tensor."""
        return self.awaited is not None

    def next_loads(self) -> Iterator[Load]:
        """The microbatches that this node's forwards will take from the dataset: of this step, and then of the next."""
        ends = [s for s in self.tenure if self.plan is not None and s in (0, len(self.plan.stages) - 1)]
        # Not at a step's beginning, when all that runs on a machine has work to do.
        begun = any(instruction.stage in ends for instruction in self._done)
        for step in range(self.version, min(self.version + 1 + begun, self.steps) if ends else 0):
            for m in range(self.microbatches):
                if step > self.version or any(Instruction(s, "F", m) not in self._done for s in ends):
                    yield Load(step, m)

    def _ran(self, work: Run[V], result: V | None, accumulated: V | None) -> None:
        if work.redundant:
            self._ran_ahead(work, result)
        elif self._is_current(work.instruction.stage, work.step, work.tenure):
            self._done.add(work.instruction)
            self._put_result(work.instruction, result)
            if accumulated is not None:
                self._put_out(self._key(ACCUMULATED, work.instruction.stage, work.ships), accumulated)

    def _is_current(self, stage: int, step: int, tenure: int) -> bool:
        return step == self.version and self.tenure.get(stage) == tenure

    def _forget_step(self) -> None:
        super()._forget_step()
        self._program.restart()
        self._look_anew()
