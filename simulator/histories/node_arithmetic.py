"""The state of one simulated node, in the tiny arithmetic."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from culm.pipeline import tree
from culm.pipeline.audits import digest_of_numbers
from culm.pipeline.instruction import Duty
from culm.pipeline.tally import LOSS_ALONE, TallyForm
from culm.pipeline.ties import Addend, Ties
from culm.pipeline.tree import Block
from culm.simulator.histories import evaluating
from culm.simulator.histories.arithmetic import (
    PRIME,
    Number,
    accumulate,
    added,
    apply,
    backward,
    buffer_of,
    changed,
    forward,
    initial,
    part_of,
    sample,
    squared_norm,
    trained,
    used,
)

# Which inputs a backward needs is simulated: a forward keeps them, as autograd does, until the backward takes them.


class Arithmetic:
    """What ``culm.stage_server.compute.compute`` is to torch: the state of one simulated node."""

    def __init__(
        self,
        pipelines: int,
        has_buffers: bool = False,
        uneven: int = 0,
        ties: Ties = (),
        form: TallyForm = LOSS_ALONE,
    ) -> None:
        """``pipelines``, ``ties``, ``form``: of the job; ``uneven``: how this node's hardware differs from others."""
        self._form = form
        self._shared = {(tie.first, place) for tie in ties for place in tie.places}
        self._pipelines = pipelines
        self.has_buffers = has_buffers
        self.uneven = uneven
        self.error: Callable[[int], int] = lambda stage: 0  # by how much a forward goes wrong; asked at each
        self.states: dict[int, int] = {}
        self.versions: dict[int, int] = {}  # of each state, to see that no two are ever mixed
        self._told: dict[int, int] = {}  # layer -> the version whose digest was taken of the state that is here
        self.late: dict[int, int] = {}  # layer -> the version at which a bit flipped after that
        self.ranges: dict[Duty, range] = {}  # the layers of each duty
        self._step: dict[Duty, int] = {}  # the step that it is in; -1: its next instruction begins one
        # Invariant: of the step in ``_step`` alone; ``_begin`` drops those of a step before.
        self._inputs: dict[tuple[Duty, int], list[int]] = {}  # by microbatch, a layer's each
        self._outputs: dict[tuple[Duty, int], int] = {}
        self._under_way: dict[
            tuple[Duty, int], tuple[int, int]
        ] = {}  # backwards: the last layer that is done, gradient
        self._halves: dict[tuple[Duty, int], list[tuple[int, int, int]]] = {}  # (layer, gradient, input)
        self._totals: dict[tuple[int, int], int] = {}  # by pipeline and layer: the parameter gradient so far
        self._buffers: dict[tuple[int, int], int] = {}  # by pipeline and layer: changed by forwards of the step
        self._addends: dict[int, Sequence[Addend]] = {}  # of each layer held
        # By block of pipelines and layer: what was merged, by addend; nothing where it has left.
        self._blocks: dict[tuple[Block, int], dict[Addend, Number]] = {}
        self._trained: dict[tuple[int, int], tuple[float, ...]] = {}  # by pipeline and microbatch: what each has told
        self._evaluated: dict[tuple[Duty, int], tuple[float, float]] = {}  # of the step, by microbatch

    def arrange(
        self,
        layers: Sequence[int],
        each: Sequence[Sequence[Addend]],
        duties: Mapping[Duty, range],
        anew: bool,
        fresh: Sequence[Duty] = (),
    ) -> None:
        self._addends = dict(zip(layers, each, strict=True))
        if anew:
            self.states.clear()
            self.versions.clear()
            self._told.clear()
            self.late.clear()
            self.ranges.clear()
            self._step.clear()
        self.states = {layer: self.states.get(layer, initial(layer)) for layer in layers}
        self.versions = {layer: self.versions.get(layer, 0) for layer in layers}
        for duty in [duty for duty, held in self.ranges.items() if duties.get(duty) != held]:
            self._begin(duty, -1)
        self.ranges = dict(duties)
        for duty in fresh:
            self._begin(duty, -1)

    def _begin(self, duty: Duty, step: int) -> None:
        if self._step.get(duty) == step:
            return
        self._step[duty] = step
        self._inputs = {k: v for k, v in self._inputs.items() if k[0] != duty}
        self._outputs = {k: v for k, v in self._outputs.items() if k[0] != duty}
        self._under_way = {k: v for k, v in self._under_way.items() if k[0] != duty}
        self._halves = {k: v for k, v in self._halves.items() if k[0] != duty}
        self._evaluated = {k: v for k, v in self._evaluated.items() if k[0] != duty}
        for layer in self.ranges[duty]:
            self._totals.pop((duty.pipeline, layer), None)
            self._buffers.pop(self.buffer_key(duty.pipeline, layer), None)
            stale = [k for k in self._blocks if k[1] == layer and duty.pipeline in k[0].pipelines]
            for key in stale:
                del self._blocks[key]

    def buffer_key(self, pipeline: int, layer: int) -> tuple[int, int]:
        """Whose buffer a forward changes (rule 21)."""
        return pipeline, layer

    def rounded(self, number: int) -> int:
        """As this node's hardware has it."""
        return (number * 31 + self.uneven) % PRIME if self.uneven else number

    def forward(self, duty: Duty, step: int, microbatch: int, x: int | None, last: bool) -> int:
        self._begin(duty, step)
        if x is None:
            x = sample(step, duty.pipeline, microbatch)
        inputs = []
        for layer in self.ranges[duty]:
            assert self.versions[layer] == step, f"layer {layer} is at {self.versions[layer]} in step {step} (rule 2)"
            inputs.append(x)
            key = self.buffer_key(duty.pipeline, layer)
            buffer = self._buffers.get(key, buffer_of(self.states[layer]))
            x = forward(self.states[layer], buffer, x, step, duty.pipeline, microbatch, layer)
            if self.has_buffers:
                self._buffers[key] = changed(buffer, inputs[-1])
        x = self._given(x, duty.stage)
        self._inputs[duty, microbatch] = inputs
        self._outputs[duty, microbatch] = x
        if last:
            self._trained[duty.pipeline, microbatch] = trained(x, self._form)
        return x

    def audited(self, duty: Duty, layers: range, step: int, microbatch: int, x: int | None, last: bool) -> int | None:
        """The digest of a forward that another node has run; it leaves nothing behind."""
        if self.has_buffers:
            return None
        if x is None:
            x = sample(step, duty.pipeline, microbatch)
        for layer in layers:
            assert self.versions[layer] == step, f"layer {layer} is at {self.versions[layer]} in step {step} (rule 2)"
            x = forward(self.states[layer], buffer_of(self.states[layer]), x, step, duty.pipeline, microbatch, layer)
        x = self._given(x, duty.stage)
        return digest_of_numbers(trained(x, self._form)) if last else x

    def _given(self, x: int, stage: int) -> int:
        """What a forward gives on this node's hardware, which may go wrong."""
        return self.rounded((x + self.error(stage)) % PRIME)

    def evaluate(self, duty: Duty, step: int, microbatch: int, x: int | None, last: bool) -> int:
        self._begin(duty, step)
        if x is None:
            x = evaluating.sample(duty.pipeline, microbatch)
        for layer in self.ranges[duty]:
            assert self.versions[layer] == step, f"layer {layer} is at {self.versions[layer]} in step {step} (rule 2)"
            x = evaluating.evaluate(self.states[layer], x, step, duty.pipeline, microbatch, layer)
        x = self.rounded(x)
        if last:
            self._evaluated[duty, microbatch] = evaluating.told(x)
        return x

    def backward(
        self, duty: Duty, step: int, microbatch: int, gradient: int | None, splits: bool, accumulates: bool
    ) -> int:
        g = self.rounded(self.backward_to(duty, step, microbatch, gradient, self.ranges[duty].start))
        del self._inputs[duty, microbatch], self._outputs[duty, microbatch], self._under_way[duty, microbatch]
        if not accumulates:
            del self._halves[duty, microbatch]
        elif not splits:
            self.accumulate(duty, microbatch)
        return g

    def backward_to(self, duty: Duty, step: int, microbatch: int, gradient: int | None, first: int) -> int:
        """Runs it down to this layer, from where it stands. Returns the gradient of the layer's input."""
        self._begin(duty, step)
        held, inputs = self.ranges[duty], self._inputs[duty, microbatch]
        g = self._outputs[duty, microbatch] if gradient is None else gradient
        done, g = self._under_way.get((duty, microbatch), (held.stop, g))
        for layer in reversed(range(first, done)):
            assert self.versions[layer] == step, f"layer {layer} is at {self.versions[layer]} in step {step} (rule 2)"
            self._halves.setdefault((duty, microbatch), []).append((layer, g, inputs[layer - held.start]))
            g = backward(self.states[layer], g)
        self._under_way[duty, microbatch] = first, g
        return g

    def accumulate(self, duty: Duty, microbatch: int) -> None:
        """The second half of a backward, as far as its first half has come."""
        for layer, gradient, x in self._halves.pop((duty, microbatch)):
            at = duty.pipeline, layer
            self._totals[at] = accumulate(self._totals.get(at, 0), gradient, x)

    def accumulated(self, duty: Duty, losses: int) -> Number:
        """What the duty's gradients have come to, with so many losses. Not of layers with buffers: those are ahead."""
        totals = tuple(self._totals.get((duty.pipeline, layer), 0) for layer in self.ranges[duty])
        return Number(0, tallies=self._tallied(duty, losses), totals=totals)

    def resume(self, duty: Duty, step: int, accumulated: Number) -> None:
        self._begin(duty, step)
        for layer, total in zip(self.ranges[duty], accumulated.totals, strict=True):
            self._totals[duty.pipeline, layer] = total
        size, told = self._form.trained, accumulated.tallies
        for m in range(len(told) // size):
            self._trained[duty.pipeline, m] = told[m * size : (m + 1) * size]

    def _tallied(self, duty: Duty, microbatches: int) -> tuple[float, ...]:
        """What so many microbatches have told."""
        return tuple(chain.from_iterable(self._trained[duty.pipeline, m] for m in range(microbatches)))

    def merge(
        self,
        *,
        duties: Sequence[Duty],
        block: Block,
        layer: int,
        last: bool,
        microbatches: int,
        evaluated: int,
        leaves: bool,
        given: Sequence[tuple[Addend, Block, Number]],
    ) -> tuple[tuple[Addend, Number], ...]:
        """A layer's gradient over the block's duties of one stage, by addend. What was merged is taken as it is.

        ``last``: the stage is the model's last one, with whose last layer the losses ride. ``microbatches``: that each
        duty has trained on in the step, none in the closing one; ``evaluated``: those that it has evaluated.
        ``leaves``: nothing is kept of it. ``given``: what has left in smaller blocks, of the addends that are wanted.
        """
        pieces = {b: dict(x) for (b, of), x in self._blocks.items() if of == layer and block.holds(b)}
        missing = [p for p in block.pipelines if not any(p in b.pipelines for b in pieces)]
        for addend, piece, value in given:
            if addend in self._addends[layer]:
                pieces[piece][addend] = value
        pieces |= {tree.one(p): self._taken(p, layer, bool(microbatches)) for p in missing}
        rides = last and layer == self.ranges[duties[0]].stop - 1
        told: list[float] = []
        for duty in duties if rides else ():
            told += self._tallied(duty, microbatches)
            told += [number for m in range(evaluated) for number in self._evaluated[duty, m]]
        wanted = [a for a in self._addends[layer] if all(a in x for x in pieces.values())]
        values = {a: self.added_up({b: x[a] for b, x in pieces.items()}, block) for a in wanted}
        if (first := self._addends[layer][0]) in values:
            values[first] = replace(values[first], tallies=tuple(told))
        self._blocks = {k: x for k, x in self._blocks.items() if k[1] != layer or not block.holds(k[0])}
        self._blocks[block, layer] = {} if leaves else values
        return tuple(values.items())

    def added_up(self, pieces: Mapping[Block, Number], block: Block) -> Number:
        """The block's value (rule 19)."""
        return tree.merged(pieces, self._pipelines, added)[block]

    def _taken(self, pipeline: int, layer: int, trained: bool) -> dict[Addend, Number]:
        """What a pipeline has accumulated, by addend; its buffer rides with the first."""
        if not trained:
            return {addend: Number(0) for addend in self._addends[layer]}
        buffer = self._buffers.get(self.buffer_key(0, layer)) if pipeline == 0 and self.has_buffers else None
        total, of = self._totals.pop((pipeline, layer)), sum(not x.use for x in self._addends[layer])
        given = [used(total, x.bucket) if x.use else part_of(total, i, of) for i, x in enumerate(self._addends[layer])]
        numbers = (Number(number, buffer=buffer if i == 0 else None) for i, number in enumerate(given))
        return dict(zip(self._addends[layer], numbers, strict=True))

    def is_shared(self, layer: int, addend: Addend) -> bool:
        """Whether several layers add to the bucket."""
        return bool(addend.use) or (layer, self._addends[layer].index(addend)) in self._shared

    def whole(self, value: Number) -> Number:
        """A sum over all pipelines: it tells its norm."""
        total = self.rounded(value.number)
        return replace(value, number=total, squared_norms=(squared_norm(total),))

    def apply(self, layer: int, gradient: Sequence[Number], scale: float, step: int) -> None:
        assert self.versions[layer] == step, f"step {step} applied to layer {layer} at {self.versions[layer]} (rule 2)"
        self.states[layer] = apply(self.states[layer], gradient, scale)
        self.versions[layer] = step + 1

    def install(self, layer: int, version: int, state: int) -> None:
        self.states[layer], self.versions[layer] = state, version
        self._told.pop(layer, None)
        self.late.pop(layer, None)

    def digest(self, layer: int) -> int | None:
        """Of its state, for the other holders to compare."""
        if layer in self.states:
            self._told[layer] = self.versions[layer]
        return self.states.get(layer)

    def flip(self, layer: int, bit: int) -> None:
        """A bit of its state changes."""
        self.states[layer] ^= 1 << bit
        if self._told.get(layer) == self.versions[layer]:
            self.late[layer] = self.versions[layer]
