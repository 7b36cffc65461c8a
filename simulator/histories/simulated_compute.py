"""What a simulated node computes: its pieces of work over the tiny arithmetic, in no time of their own."""

from collections.abc import Callable
from functools import reduce
from typing import NamedTuple

from culm.pipeline import flow
from culm.pipeline.instruction import Duty, Instruction, Pass
from culm.pipeline.ties import Addend
from culm.pipeline.tree import Block
from culm.simulator.histories.arithmetic import Number, added, gathered
from culm.simulator.histories.node_arithmetic import Arithmetic
from culm.simulator.histories.simulated_dataset import SimulatedReading
from culm.stage_server.worker.work import Apply, Arrange, Audit, Check, Install, Reduce, Resume, Run, Sum, Work

# As ``culm.stage_server.compute`` is for a real node. The worker may order work on a stage that a plan has taken away
# since: as in a real node nothing is computed then, and the worker drops the empty result.


ForwardsIn = Callable[[int], tuple[tuple[Pass, int], ...]]


class Computed(NamedTuple):
    """What the worker is told once a piece of work is done."""

    result: Number | None = None  # an activation or a gradient
    values: tuple[tuple[Addend, Number], ...] = ()  # of a block of pipelines or of all
    accumulated: Number | None = None  # what the stage's gradients have come to, where it is to be shipped
    digest: int | None = None  # of a layer's state, or of a forward that was audited


class SimulatedCompute:
    """The state of one node, and what it did."""

    def __init__(
        self,
        layers: int,
        pipelines: int,
        forwards_in: ForwardsIn,
        arithmetic: Arithmetic,
        reading: SimulatedReading | None = None,
        on_graph: bool = False,
    ) -> None:
        """``forwards_in``: as ``Position`` tells them of a step; ``reading``: of an iterable dataset. ``on_graph``:
        pipelines are chunks of a graph, and take what their neighbours give.
        """
        self._on_graph = on_graph
        self.reading = reading
        self.arithmetic = arithmetic
        self.executed: list[tuple[int, Instruction]] = []  # with their steps; redundant forwards are not among them
        self._layers, self._pipelines, self._forwards_in = layers, pipelines, forwards_in  # of the job

    def carry_out(self, work: Work[Number], splits: bool) -> Computed:
        """``splits``: the stage's backwards are in two halves."""
        arithmetic = self.arithmetic
        if isinstance(work, Arrange):
            arithmetic.arrange(work.layers, work.addends, dict(work.duties), work.anew, work.fresh)
        elif isinstance(work, Apply):
            for layer, gradient in work.gradients:
                arithmetic.apply(layer, gradient, work.scale, work.step)
        elif isinstance(work, Install):
            arithmetic.install(work.layer, work.version, work.state.number)
        elif isinstance(work, Resume):
            if work.duty in arithmetic.ranges:
                arithmetic.resume(work.duty, work.step, work.accumulated)
        elif isinstance(work, Reduce):
            if self._has_all(work):
                held = arithmetic.ranges[work.tenures[0][0]]
                found = [value for layer in held if layer not in work.left for value in self._merged(work, layer)]
                return Computed(values=tuple(found) if work.leaves else ())
        elif isinstance(work, Sum):
            first, *others = (arithmetic.added_up(dict(x), Block(0, self._pipelines)) for _, x in work.uses)
            return Computed(values=((Addend(work.bucket), arithmetic.whole(reduce(added, others, first))),))
        elif isinstance(work, Check):
            return Computed(digest=arithmetic.digest(work.layer))
        elif isinstance(work, Audit):
            operand, last = work.operand.number if work.operand is not None else None, work.layers.stop == self._layers
            if self.reading is not None or not all(layer in arithmetic.states for layer in work.layers):
                return Computed()
            again = arithmetic.audited(work.duty, work.layers, work.step, work.microbatch, operand, last)
            return Computed(digest=again)
        elif isinstance(work, Run) and work.instruction.duty in arithmetic.ranges:
            return Computed(self._pass(work, splits), accumulated=self._accumulated(work))
        return Computed()

    def leave(self, run: Run[Number], work: Reduce[Number], layer: int) -> tuple[tuple[Addend, Number], ...] | None:
        """The backward that completes the block comes past this layer, which leaves. None: nothing is computed."""
        duty, m = run.instruction.duty, run.instruction.microbatch
        if not self._has_all(work):
            return None
        operand = self._operand(run)
        self.arithmetic.backward_to(duty, run.step, m, operand, layer)
        self.arithmetic.accumulate(duty, m)
        return self._merged(work, layer)

    def _operand(self, run: Run[Number]) -> int | None:
        numbers = [operand.number for operand in run.operands]
        return gathered(numbers) if self._on_graph and numbers else next(iter(numbers), None)

    def _has_all(self, work: Reduce[Number]) -> bool:
        return all(duty in self.arithmetic.ranges for duty, _ in work.tenures)

    def _merged(self, work: Reduce[Number], layer: int) -> tuple[tuple[Addend, Number], ...]:
        duties, whole = [duty for duty, _ in work.tenures], work.block == Block(0, self._pipelines)
        arithmetic = self.arithmetic
        (_, trained), (_, evaluated) = self._forwards_in(work.step)
        values = arithmetic.merge(
            duties=duties,
            block=work.block,
            layer=layer,
            last=self._is_last(duties[0]),
            microbatches=trained,
            evaluated=evaluated,
            leaves=work.leaves,
            given=work.given,
        )
        return tuple((a, arithmetic.whole(x) if whole and not arithmetic.is_shared(layer, a) else x) for a, x in values)

    def _pass(self, work: Run[Number], splits: bool) -> Number | None:
        duty, m = work.instruction.duty, work.instruction.microbatch
        operand = self._operand(work)
        if not work.redundant:
            self.executed.append((work.step, work.instruction))
        if work.instruction.op == "W":
            self.arithmetic.accumulate(duty, m)
            return None
        if work.instruction.op == "E":
            return Number(self.arithmetic.evaluate(duty, work.step, m, operand, self._is_last(duty)))
        if work.instruction.op == "F":
            if self.reading is not None and (flow.takes_samples(duty.stage) or self._is_last(duty)):
                self.reading.take(work.step, duty.pipeline, m)
            return Number(self.arithmetic.forward(duty, work.step, m, operand, self._is_last(duty)))
        return Number(self.arithmetic.backward(duty, work.step, m, operand, splits, work.accumulates))

    def _accumulated(self, work: Run[Number]) -> Number | None:
        if not work.ships or self.arithmetic.has_buffers:
            return None
        duty = work.instruction.duty
        return self.arithmetic.accumulated(duty, work.ships if self._is_last(duty) else 0)

    def _is_last(self, duty: Duty) -> bool:
        """Whether it ends with the model's last layer, whose output is the loss."""
        return self.arithmetic.ranges[duty].stop == self._layers
