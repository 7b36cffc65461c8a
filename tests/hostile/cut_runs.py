"""Trains a job on the computing parts of nodes in one process: cut anywhere, with all that goes between nodes sent, and
with a node that is lost within a step.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from culm.pipeline import tally
from culm.pipeline.checkpoints.digest import weights_sha256
from culm.pipeline.clip import SKIPPED, clip_scale, fault_in
from culm.pipeline.instruction import Duty, Instruction
from culm.pipeline.job import Job
from culm.pipeline.tensors.values import Value
from culm.pipeline.tensors.wire import Assembler, chunks
from culm.pipeline.ties import Addend, addends, numbered
from culm.pipeline.tree import Block, one
from culm.pipeline.user_code.model import ModelSource
from culm.stage_server.compute.compute import Compute
from culm.stage_server.compute.device import CPU, Event
from culm.stage_server.compute.layer import Values
from culm.stage_server.worker.work import Apply, Arrange, Install, Reduce, Resume, Run, Save, Sum
from tests.headers import sealed

OWNED, STOOD_BY = 1, -1  # tenures


@dataclass(frozen=True, slots=True)
class Loss:
    """The node of a stage is lost once the stage has done so many instructions of the step, in pipeline 0."""

    step: int
    stage: int
    after: int


@dataclass(frozen=True, kw_only=True)
class Cut:
    """How a run is spread over nodes."""

    at: tuple[int, ...] = ()  # the first layer of each stage but the first
    wired: bool = True  # every stage has a node of its own; else one node runs them all
    apart: bool = False  # every pipeline has nodes of its own, where it is wired
    redundant: bool = False  # graphs are kept as those of redundant forwards
    by_layer: bool = False  # layers give their gradients within the last backward
    ahead: int = 2  # of so many microbatches graphs are kept at once
    ships: bool = False  # the heir of a lost node goes on from gradients that were shipped
    loss: Loss | None = None


def by_the_wire(value: Value) -> Value:
    """As it arrives at another node."""
    assembler = Assembler(sealed(value))
    for offset, parts in chunks(value):
        assembler.add(offset, b"".join(parts))
    return assembler.value()


def bits_of(value: Value) -> int:
    """As they are now: a value keeps the digest that it was made with."""
    return replace(value).digest


class CutRun:
    """One run of a job, spread in one way."""

    def __init__(self, job: Job, cut: Cut) -> None:
        self._job, self._cut = job, cut
        source = ModelSource(job)
        count = source.layer_count
        self._addends = addends(numbered([1] * count), source.ties)
        self._ranges = [range(a, b) for a, b in pairwise((0, *cut.at, count))]
        self._last = len(self._ranges) - 1
        self._pipelines = job.pipeline.pipelines
        self._nodes: dict[Duty, Compute] = {}
        for duties in self._shares():
            self._nodes |= dict.fromkeys(duties, self._node(duties, 0))
        # Of the running step:
        self._done: dict[Duty, list[Run[Value]]] = {}
        self._given: dict[Instruction, Value] = {}  # as it arrived
        self._bits: dict[Instruction, int] = {}  # of these, when they were given
        self._shipped: dict[Duty, tuple[int, Value]] = {}  # after so many microbatches
        self._left: dict[Addend, dict[Block, Value]] = {}  # gradients of blocks
        self._left_early: dict[Duty, set[int]] = {}  # layers

    def train(self) -> str:
        """The weights' hash after all steps, on which all holders of a layer agree."""
        for step in range(self._job.job.steps):
            for of_step in (self._given, self._bits, self._shipped, self._left, self._left_early):
                of_step.clear()
            self._done = {duty: [] for duty in self._nodes}
            for instruction in self._program():
                self._run(instruction, step)
            for instruction, value in self._given.items():
                assert bits_of(value) == self._bits[instruction], f"what {instruction} gave was written over"
            self._reduce(step)
            self._commit(step)
        return self._weights()

    def _weights(self) -> str:
        found = set()
        for p in range(self._pipelines):
            held = [(i, self._nodes[Duty(p, s)].layer(i).module) for s, at in enumerate(self._ranges) for i in at]
            found.add(weights_sha256([(i, module.state_dict()) for i, module in held]))
        assert len(found) == 1, "the holders of a layer differ"
        return found.pop()

    # ---- nodes -------------------------------------------------------------------------------------------------------

    def _shares(self) -> list[list[Duty]]:
        """The duties of each node."""
        stages = range(self._last + 1)
        if not self._cut.wired:
            return [[Duty(p, s) for s in stages for p in range(self._pipelines)]]
        if self._cut.apart:
            return [[Duty(p, s)] for s in stages for p in range(self._pipelines)]
        return [[Duty(p, s) for p in range(self._pipelines)] for s in stages]

    def _node(self, duties: list[Duty], step: int) -> Compute:
        """With layers at their initial state."""
        layers = self._layers_of(duties)
        node = Compute(self._job, ModelSource(self._job), CPU)
        ranges = tuple((duty, self._ranges[duty.stage]) for duty in duties)
        own = tuple(self._addends[i] for i in layers)
        node.do(Arrange(layers=layers, duties=ranges, stages=self._last + 1, step=step, anew=True, addends=own))
        node.leaving = self._leaves
        return node

    def _layers_of(self, duties: list[Duty]) -> tuple[int, ...]:
        return tuple(sorted({i for duty in duties for i in self._ranges[duty.stage]}))

    def _sent(self, value: Value) -> Value:
        return by_the_wire(value) if self._cut.wired else value

    def _replace(self, lost: Duty, step: int) -> None:
        """The duties of the lost one's node go to a new node, which is seeded by another holder and does all again."""
        before = self._nodes[lost]
        duties = [duty for duty, node in self._nodes.items() if node is before]
        node = self._node(duties, step)
        for layer, loan in before.do(Save(era=0, step=step, layers=self._layers_of(duties), loss=0.0)).lent:
            node.do(Install(layer, step, by_the_wire(loan.value), "n0"))
        shipped = {duty: self._shipped[duty] for duty in duties if duty in self._shipped}
        for duty, (count, accumulated) in shipped.items():
            node.do(Resume(duty, step, count, accumulated))
        for duty in duties:
            self._nodes[duty] = node
            done, self._done[duty] = self._done[duty], []
            for work in done:
                counts = work.instruction.microbatch < (shipped[duty][0] if duty in shipped else 0)
                self._do(replace(work, accumulates=not counts, tenure=OWNED))

    # ---- forwards and backwards --------------------------------------------------------------------------------------

    def _program(self) -> Iterator[Instruction]:
        stages, count = range(self._last + 1), self._job.pipeline.microbatches
        for p in range(self._pipelines):
            for m in range(count + self._cut.ahead - 1):
                if m < count:
                    yield from (Instruction(Duty(p, s), "F", m) for s in stages)
                back = m - self._cut.ahead + 1
                if 0 <= back < count:
                    for s in reversed(stages):
                        yield Instruction(Duty(p, s), "B", back)
                        if self._job.schedule.splits_at(s):
                            yield Instruction(Duty(p, s), "W", back)

    def _run(self, instruction: Instruction, step: int) -> None:
        (p, s), op, m = instruction
        done = len(self._done[instruction.duty])
        if self._cut.wired and p == 0 and self._cut.loss == Loss(step, s, done):
            self._replace(instruction.duty, step)
        whole = op == "B" and not self._job.schedule.splits_at(s)
        last = m == self._job.pipeline.microbatches - 1 and p == self._block(p).end - 1
        self._do(
            Run(
                instruction=instruction,
                step=step,
                tenure=STOOD_BY if self._cut.redundant else OWNED,
                operands=self._operands(instruction),
                ships=m + 1 if whole and self._cut.ships else 0,
                completes=self._reduction(s, self._block(p), step) if whole and last and self._cut.by_layer else None,
            )
        )

    def _do(self, work: Run[Value]) -> None:
        instruction = work.instruction
        result = self._nodes[instruction.duty].do(work)
        self._done[instruction.duty].append(work)
        if result.accumulated is not None:
            self._shipped[instruction.duty] = (work.ships, by_the_wire(result.accumulated))
        if result.value is None:
            return
        bits = bits_of(result.value)
        assert self._bits.setdefault(instruction, bits) == bits, f"{instruction} gives other bits when it is run again"
        self._given[instruction] = self._sent(result.value)

    def _operands(self, instruction: Instruction) -> tuple[Value, ...]:
        (p, s), op, m = instruction
        if op == "F" and s > 0:
            return (self._given[Instruction(Duty(p, s - 1), "F", m)],)
        if op == "B" and s < self._last:
            return (self._given[Instruction(Duty(p, s + 1), "B", m)],)
        return ()

    # ---- sums --------------------------------------------------------------------------------------------------------

    def _block(self, pipeline: int) -> Block:
        """Of the pipelines of one node, its own among them."""
        return one(pipeline) if self._cut.apart and self._cut.wired else Block(0, self._pipelines)

    def _reduction(self, stage: int, block: Block, step: int) -> Reduce[Value]:
        tenures = tuple((Duty(p, stage), OWNED) for p in block.pipelines)
        left = frozenset(self._left_early.get(tenures[0][0], set()))
        return Reduce(stage=stage, step=step, block=block, leaves=True, tenures=tenures, left=left)

    def _leaves(self, work: Reduce[Value], layer: int, values: Values, _: Event) -> None:
        self._left_early.setdefault(work.tenures[0][0], set()).add(layer)
        self._take(work.block, values)

    def _take(self, block: Block, values: Values) -> None:
        for addend, value in values:
            self._left.setdefault(addend, {})[block] = self._sent(value)

    def _reduce(self, step: int) -> None:
        for duty, node in self._nodes.items():
            block = self._block(duty.pipeline)
            if duty.pipeline == block.first:
                self._take(block, node.do(self._reduction(duty.stage, block, step)).values)

    def _reduced(self, step: int) -> dict[int, Value]:
        """The whole sum of each bucket: of as many as there are layers, with their numbers."""
        found: dict[int, Value] = {}
        for s, layers in enumerate(self._ranges):
            for layer in layers:
                of = {
                    addend.use: tuple(sorted(b.items())) for addend, b in self._left.items() if addend.bucket == layer
                }
                uses = tuple(sorted(of.items()))
                whole = Block(0, self._pipelines)
                if len(uses) == 1 and uses[0][1][0][0] == whole:
                    found[layer] = uses[0][1][0][1]
                else:
                    work = Sum(stage=s, layer=layer, bucket=layer, step=step, uses=uses)
                    ((_, value),) = self._nodes[Duty(0, s)].do(work).values
                    found[layer] = self._sent(value)
        return found

    def _commit(self, step: int) -> None:
        """As the coordinator decides it."""
        job, reduced = self._job, self._reduced(step)
        form, told = job.tally_form, reduced[len(self._addends) - 1].tallies
        norms = {layer: tally.in_order(value.squared_norms) for layer, value in reduced.items()}
        fault = fault_in(norms, tally.losses(told, form), self._pipelines)
        count = tally.counted(told, form, self._pipelines)
        scale = clip_scale([norms[i] for i in sorted(norms)], job.train.clip_norm, count)
        for node in set(self._nodes.values()):
            layers = self._layers_of([duty for duty, other in self._nodes.items() if other is node])
            gradients = tuple((i, tuple(reduced[a.bucket] for a in self._addends[i])) for i in layers)
            node.do(Apply(step, SKIPPED if fault else scale, gradients))
