"""What a simulated node computes: its pieces of work over the tiny arithmetic, in no time of their own."""

from typing import NamedTuple

from culm.pipeline.instruction import Instruction
from culm.simulator.histories.arithmetic import Arithmetic, Number
from culm.stage_server.worker.work import Apply, Arrange, Install, Reduce, Resume, Run, Save, Work

# As ``culm.stage_server.compute`` is for a real node. The worker may order work on a stage that a plan has taken away
# since: as in a real node nothing is computed then, and the worker drops the empty result.


class Computed(NamedTuple):
    """What the worker is told once a piece of work is done."""

    result: Number | None = None  # an activation or a gradient
    reduced: tuple[tuple[int, Number], ...] = ()  # by layer
    accumulated: Number | None = None  # what the stage's gradients have come to, where it is to be shipped


class SimulatedCompute:
    """The state of one node, and what it did."""

    def __init__(self, layers: int, microbatches: int) -> None:
        self.arithmetic = Arithmetic()
        self.executed: list[tuple[int, Instruction]] = []  # with their steps; redundant forwards are not among them
        self._layers, self._microbatches = layers, microbatches  # of the job

    def carry_out(self, work: Work[Number], splits: bool) -> Computed:
        """``splits``: the stage's backwards are in two halves."""
        arithmetic = self.arithmetic
        if isinstance(work, Arrange):
            stages = [(duty.stage, layers.start, layers.stop) for duty, layers in work.duties]
            arithmetic.arrange(work.layers, stages, work.anew, [duty.stage for duty in work.fresh])
        elif isinstance(work, Apply):
            for layer, value in work.gradients:
                arithmetic.apply(layer, value.number, work.scale, work.step)
        elif isinstance(work, Install):
            arithmetic.install(work.layer, work.version, work.state.number)
        elif isinstance(work, Resume):
            if work.duty.stage in arithmetic.ranges:
                arithmetic.resume(work.duty.stage, work.step, work.accumulated)
        elif isinstance(work, Reduce):
            if work.duty.stage in arithmetic.ranges:
                stage = work.duty.stage
                return Computed(reduced=arithmetic.reduce(stage, self._is_last(stage), self._microbatches))
        elif not isinstance(work, Save) and work.instruction.stage in arithmetic.ranges:
            return Computed(self._pass(work, splits), accumulated=self._accumulated(work))
        return Computed()

    def _pass(self, work: Run[Number], splits: bool) -> Number | None:
        stage, m = work.instruction.stage, work.instruction.microbatch
        operand = work.operand.number if work.operand is not None else None
        if not work.redundant:
            self.executed.append((work.step, work.instruction))
        if work.instruction.op == "W":
            self.arithmetic.accumulate(stage, m)
            return None
        if work.instruction.op == "F":
            return Number(self.arithmetic.forward(stage, work.step, m, operand, self._is_last(stage)))
        return Number(self.arithmetic.backward(stage, work.step, m, operand, splits, work.accumulates))

    def _accumulated(self, work: Run[Number]) -> Number | None:
        if not work.ships:
            return None
        stage = work.instruction.stage
        return self.arithmetic.accumulated(stage, work.ships if self._is_last(stage) else 0)

    def _is_last(self, stage: int) -> bool:
        """Whether it ends with the model's last layer, whose output is the loss."""
        return self.arithmetic.ranges[stage][1] == self._layers
