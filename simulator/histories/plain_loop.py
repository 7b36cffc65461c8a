"""The oracle of simulated histories: the job in a loop without nodes."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from culm.pipeline import tally, tree
from culm.pipeline.clip import SKIPPED, clip_scale, fault_in
from culm.pipeline.evaluations import NEVER, Evaluations
from culm.pipeline.tally import LOSS_ALONE, TallyForm, in_order
from culm.pipeline.ties import Ties, addends, numbered
from culm.simulator.histories.arithmetic import (
    Number,
    accumulate,
    add,
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
from culm.simulator.histories.evaluating import evaluated


class Oracle(NamedTuple):
    """What comes of a job in a loop without nodes."""

    losses: list[float]  # by step
    measured: list[tuple[float, ...]]  # by step: each metric of training
    states: list[list[int]]  # by version and layer
    evaluated: dict[int, tuple[float, ...]]  # by step, of those that evaluate
    trained: int  # steps: fewer than the job's where it ends early


def plain_loop(
    cut: Sequence[int],
    pipelines: int,
    microbatches: int,
    steps: int,
    clip_norm: float | None,
    has_buffers: bool = False,
    ties: Ties = (),
    evaluations: Evaluations = NEVER,
    worse_allowed: int = 0,
    form: TallyForm = LOSS_ALONE,
) -> Oracle:
    """What comes of the undisturbed job.

    ``cut``: into how many buckets each layer's gradient is cut. ``worse_allowed``: evaluations in a row; 0: any number.
    """
    layers = len(cut)
    layout = addends(numbered(cut), ties)
    states = [initial(layer) for layer in range(layers)]
    versions = [states]
    losses: list[float] = []
    measured: list[tuple[float, ...]] = []
    found: dict[int, tuple[float, ...]] = {}
    for step in range(evaluations.end(steps)):
        if count := evaluations.in_step(step, steps):
            found[step] = evaluated(states, step, pipelines, count)
        if step == steps or (worse_allowed and count and _worse_in_a_row(found) >= worse_allowed):
            versions.append(states)
            break
        each: list[list[int]] = []
        kept: list[list[int]] = []
        told: list[float] = []
        for p in range(pipelines):
            totals, buffers = [0] * layers, [buffer_of(state) for state in states]
            for m in range(microbatches):
                inputs: list[int] = []
                x = sample(step, p, m)
                for layer in range(layers):
                    inputs.append(x)
                    x = forward(states[layer], buffers[layer], x, step, p, m, layer)
                    buffers[layer] = changed(buffers[layer], inputs[-1]) if has_buffers else 0
                told.extend(trained(x, form))
                gradient = x
                for layer in reversed(range(layers)):
                    totals[layer] = accumulate(totals[layer], gradient, inputs[layer])
                    gradient = backward(states[layer], gradient)
            each.append(totals)
            kept.append(buffers)
        sums: dict[int, int] = {}  # by bucket
        for layer, of_layer in enumerate(layout):
            for place, (bucket, use) in enumerate(of_layer):
                given = (used(x[layer], bucket) if use else part_of(x[layer], place, cut[layer]) for x in each)
                total = tree.total(list(given), add)
                sums[bucket] = add(sums[bucket], total) if use else total
        norms = [in_order(squared_norm(sums[x.bucket]) for x in of_layer if not x.use) for of_layer in layout]
        scale = SKIPPED if fault_in(dict(enumerate(norms)), tally.losses(told, form)) else clip_scale(norms, clip_norm)
        reduced = [
            [Number(sums[x.bucket], buffer=buffer) for x in of_layer]
            for of_layer, buffer in zip(layout, kept[0], strict=True)
        ]
        states = [apply(s, t, scale) for s, t in zip(states, reduced, strict=True)]
        versions.append(states)
        losses.append(tally.loss(told, form, pipelines))
        measured.append(tally.measured(told, form, pipelines))
    return Oracle(losses, measured, versions, found, len(losses))


def _worse_in_a_row(found: Mapping[int, tuple[float, ...]]) -> int:
    """How many evaluations have come after the first one with the least loss."""
    losses = [numbers[0] for _, numbers in sorted(found.items())]
    return len(losses) - 1 - losses.index(min(losses))
