"""A tiny exact arithmetic in place of torch: integers modulo a prime that remember every unit of work and its order.

A state, an activation or a gradient is one integer. Accumulation is not commutative, so work that is lost, repeated,
reordered or mixed between versions gives another number.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from culm.pipeline.clip import SKIPPED, clip_scale, fault_in, mean

# The oracle is ``plain_loop``: the same functions, in the order of a loop without nodes. A cluster that computes each
# unit of work once, on the right version, in the right order, gets the same integers; any other one does not:
#
#     lost, or done twice      ``accumulate`` multiplies the total before it adds: every unit shifts all before it
#     in another order         the same: it is not commutative
#     on another version       ``forward`` and ``backward`` mix the state in
#     of another step          ``forward`` mixes the step and the microbatch in
#     with another scale       ``apply`` mixes the scale in, exactly, as a fraction
#
# Left ideal: two nodes always compute the same bits (so rule 4 cannot be broken here), and layers keep no buffers.
# Which inputs a backward needs is simulated: a forward keeps them, as autograd does, until the backward takes them.

PRIME = (1 << 61) - 1  # so large that two numbers hardly ever agree by chance


@dataclass(frozen=True, slots=True)
class Number:
    """What a key stands for in the simulation."""

    number: int
    squared_norm: float = 0.0
    losses: tuple[float, ...] = ()
    totals: tuple[int, ...] = ()  # by layer, of what a stage's gradients have come to


def sample(step: int, microbatch: int) -> int:
    return (step * 1_000_003 + microbatch * 7919 + 17) % PRIME


def initial(layer: int) -> int:
    return (layer * 104_729 + 31) % PRIME


def forward(state: int, x: int, step: int, microbatch: int, layer: int) -> int:
    return (x * (state | 1) + state + step * 31 + microbatch * 17 + layer) % PRIME


def backward(state: int, gradient: int) -> int:
    return (gradient * (state | 1) + 13) % PRIME


def accumulate(total: int, gradient: int, x: int) -> int:
    return (total * 1_000_033 + gradient * 3 + x) % PRIME


def squared_norm(total: int) -> float:
    """Of one gradient in 61 it is not finite: that step is committed and changes nothing (rule 18)."""
    return math.nan if total % 61 == 0 else float(total % 10_007)


def apply(state: int, gradient: int, scale: float) -> int:
    if scale == SKIPPED:
        return state
    numerator, denominator = scale.as_integer_ratio()
    return (state * 3 + gradient * 5 + numerator * 7 + denominator * 11) % PRIME


def loss_of(output: int) -> float:
    return float(output % 1_000_003)


def plain_loop(
    layers: int, microbatches: int, steps: int, clip_norm: float | None
) -> tuple[list[float], list[list[int]]]:
    """Losses by step, and states by version and layer, of the undisturbed job: the oracle."""
    states = [initial(layer) for layer in range(layers)]
    versions = [states]
    losses: list[float] = []
    for step in range(steps):
        totals = [0] * layers
        step_losses = []
        for m in range(microbatches):
            inputs: list[int] = []
            x = sample(step, m)
            for layer in range(layers):
                inputs.append(x)
                x = forward(states[layer], x, step, m, layer)
            step_losses.append(loss_of(x))
            gradient = x
            for layer in reversed(range(layers)):
                totals[layer] = accumulate(totals[layer], gradient, inputs[layer])
                gradient = backward(states[layer], gradient)
        norms = [squared_norm(t) for t in totals]
        scale = SKIPPED if fault_in(dict(enumerate(norms)), step_losses) else clip_scale(norms, clip_norm)
        states = [apply(s, t, scale) for s, t in zip(states, totals, strict=True)]
        versions.append(states)
        losses.append(mean(step_losses))
    return losses, versions


class Arithmetic:
    """What ``culm.stage_server.compute.compute`` is to torch: the state of one simulated node."""

    def __init__(self) -> None:
        self.states: dict[int, int] = {}
        self.versions: dict[int, int] = {}  # of each state, to see that no two are ever mixed
        self.ranges: dict[int, tuple[int, int]] = {}
        self._step: dict[int, int] = {}  # stage -> the step that it is in; -1: its next instruction begins one
        # By (stage, microbatch). Invariant: of the step in ``_step`` alone; ``_begin`` drops those of a step before.
        self._inputs: dict[tuple[int, int], list[int]] = {}  # a layer's each
        self._outputs: dict[tuple[int, int], int] = {}
        self._halves: dict[tuple[int, int], list[tuple[int, int, int]]] = {}  # (layer, gradient, input)
        self._totals: dict[int, int] = {}  # by layer: the parameter gradient so far
        self._losses: dict[int, float] = {}  # by microbatch

    def arrange(
        self,
        layers: Sequence[int],
        stages: Sequence[tuple[int, int, int]],
        anew: bool,
        fresh: Sequence[int] = (),
    ) -> None:
        if anew:
            self.states.clear()
            self.versions.clear()
            self.ranges.clear()
            self._step.clear()
        self.states = {layer: self.states.get(layer, initial(layer)) for layer in layers}
        self.versions = {layer: self.versions.get(layer, 0) for layer in layers}
        owned = {s: (first, end) for s, first, end in stages}
        for stage in [s for s, r in self.ranges.items() if owned.get(s) != r]:
            self._begin(stage, -1)
        self.ranges = owned
        for stage in fresh:
            self._begin(stage, -1)

    def _begin(self, stage: int, step: int) -> None:
        if self._step.get(stage) == step:
            return
        self._step[stage] = step
        self._inputs = {k: v for k, v in self._inputs.items() if k[0] != stage}
        self._outputs = {k: v for k, v in self._outputs.items() if k[0] != stage}
        self._halves = {k: v for k, v in self._halves.items() if k[0] != stage}
        for layer in range(*self.ranges[stage]):
            self._totals.pop(layer, None)

    def forward(self, stage: int, step: int, microbatch: int, x: int | None, last: bool) -> int:
        self._begin(stage, step)
        if x is None:
            x = sample(step, microbatch)
        inputs = []
        for layer in range(*self.ranges[stage]):
            assert self.versions[layer] == step, f"layer {layer} is at {self.versions[layer]} in step {step} (rule 2)"
            inputs.append(x)
            x = forward(self.states[layer], x, step, microbatch, layer)
        self._inputs[stage, microbatch] = inputs
        self._outputs[stage, microbatch] = x
        if last:
            self._losses[microbatch] = loss_of(x)
        return x

    def backward(
        self, stage: int, step: int, microbatch: int, gradient: int | None, splits: bool, accumulates: bool
    ) -> int:
        self._begin(stage, step)
        inputs = self._inputs.pop((stage, microbatch))
        output = self._outputs.pop((stage, microbatch))
        first, end = self.ranges[stage]
        g = output if gradient is None else gradient
        for layer in reversed(range(first, end)):
            assert self.versions[layer] == step, f"layer {layer} is at {self.versions[layer]} in step {step} (rule 2)"
            self._halves.setdefault((stage, microbatch), []).append((layer, g, inputs[layer - first]))
            g = backward(self.states[layer], g)
        if not accumulates:
            del self._halves[stage, microbatch]
        elif not splits:
            self.accumulate(stage, microbatch)
        return g

    def accumulate(self, stage: int, microbatch: int) -> None:
        """The second half of a backward."""
        for layer, gradient, x in self._halves.pop((stage, microbatch)):
            self._totals[layer] = accumulate(self._totals.get(layer, 0), gradient, x)

    def accumulated(self, stage: int, losses: int) -> Number:
        """What the stage's gradients have come to, with so many losses."""
        totals = tuple(self._totals.get(layer, 0) for layer in range(*self.ranges[stage]))
        return Number(0, losses=tuple(self._losses[m] for m in range(losses)), totals=totals)

    def resume(self, stage: int, step: int, accumulated: Number) -> None:
        self._begin(stage, step)
        self._totals.update(zip(range(*self.ranges[stage]), accumulated.totals, strict=True))
        self._losses.update(enumerate(accumulated.losses))

    def reduce(self, stage: int, last: bool, microbatches: int) -> tuple[tuple[int, Number], ...]:
        first, end = self.ranges[stage]
        losses = tuple(self._losses[m] for m in range(microbatches)) if last else ()
        return tuple(
            (i, Number(self._totals[i], squared_norm(self._totals[i]), losses if i == end - 1 else ()))
            for i in range(first, end)
        )

    def apply(self, layer: int, gradient: int, scale: float, step: int) -> None:
        assert self.versions[layer] == step, f"step {step} applied to layer {layer} at {self.versions[layer]} (rule 2)"
        self.states[layer] = apply(self.states[layer], gradient, scale)
        self.versions[layer] = step + 1

    def install(self, layer: int, version: int, state: int) -> None:
        self.states[layer], self.versions[layer] = state, version
