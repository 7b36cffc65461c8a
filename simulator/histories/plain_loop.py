"""The oracle of simulated histories: the job in a loop without nodes."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from culm.pipeline import tally, tree
from culm.pipeline.clip import SKIPPED, clip_scale, fault_in
from culm.pipeline.evaluations import NEVER, Evaluations
from culm.pipeline.neighbours import Neighbours
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
    gathered,
    initial,
    part_of,
    sample,
    scattered,
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
    neighbours: Neighbours | None = None,
) -> Oracle:
    """What comes of the undisturbed job.

    ``cut``: into how many buckets each layer's gradient is cut. ``worse_allowed``: evaluations in a row; 0: any number.
    ``neighbours``: the pipelines are chunks of a graph; then there is one microbatch, and no evaluation.
    """
    layers = len(cut)
    layout = addends(numbered(cut), ties)
    graph = _Graph(neighbours, layers) if neighbours is not None else None
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
        each: list[list[int]] = [[0] * layers for _ in range(pipelines)]
        kept: list[list[int]] = [[buffer_of(state) for state in states] for _ in range(pipelines)]
        told: list[float] = []
        if graph is None:
            for p in range(pipelines):
                told += _alone(states, step, p, microbatches, has_buffers, form, each[p], kept[p])
        else:
            told += graph.passes(states, step, has_buffers, form, each, kept)
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


def _alone(
    states: Sequence[int],
    step: int,
    pipeline: int,
    microbatches: int,
    has_buffers: bool,
    form: TallyForm,
    totals: list[int],
    buffers: list[int],
) -> list[float]:
    """A pipeline's passes, one microbatch after the other. Adds to its ``totals``, and changes its ``buffers``."""
    told: list[float] = []
    for m in range(microbatches):
        inputs: list[int] = []
        x = sample(step, pipeline, m)
        for layer, state in enumerate(states):
            inputs.append(x)
            x = forward(state, buffers[layer], x, step, pipeline, m, layer)
            buffers[layer] = changed(buffers[layer], inputs[-1]) if has_buffers else 0
        told.extend(trained(x, form))
        gradient = x
        for layer in reversed(range(len(states))):
            totals[layer] = accumulate(totals[layer], gradient, inputs[layer])
            gradient = backward(states[layer], gradient)
    return told


class _Graph:
    """The passes of all chunks, layer by layer: each takes what the layer before gave of its neighbours."""

    def __init__(self, neighbours: Neighbours, layers: int) -> None:
        self._near, self._layers = neighbours, layers
        # By step, layer and chunk: what a forward gave, and a backward.
        self._outputs: dict[int, list[list[int]]] = {}
        self._gradients: dict[int, list[list[int]]] = {}

    def passes(
        self,
        states: Sequence[int],
        step: int,
        has_buffers: bool,
        form: TallyForm,
        totals: list[list[int]],
        buffers: list[list[int]],
    ) -> list[float]:
        """Adds to the ``totals`` of each chunk, and changes its ``buffers``."""
        near, chunks = self._near, range(len(self._near.before))
        of = step - near.staleness.lag(step)
        outputs = self._outputs[step] = [[sample(step, p, 0) for p in chunks]]
        gradients = self._gradients[step] = [[] for _ in range(self._layers)]
        inputs: list[list[int]] = []  # by layer and chunk
        for layer, state in enumerate(states):
            given = self._outputs[of][layer]
            taken = [gathered([(outputs[layer] if q == p else given)[q] for q in near.before[p]]) for p in chunks]
            inputs.append(taken if layer else outputs[0])
            outputs.append([forward(state, buffers[p][layer], inputs[-1][p], step, p, 0, layer) for p in chunks])
            for p in chunks:
                buffers[p][layer] = changed(buffers[p][layer], inputs[-1][p]) if has_buffers else 0
        told = [number for output in outputs[-1] for number in trained(output, form)]
        places = [{q: place for place, q in enumerate(before)} for before in near.before]
        found = outputs[-1]
        for layer in reversed(range(self._layers)):
            for p in chunks:
                totals[p][layer] = accumulate(totals[p][layer], found[p], inputs[layer][p])
            back = gradients[layer] = [backward(states[layer], found[p]) for p in chunks]
            old = self._gradients[of][layer]
            found = [
                gathered([scattered((back if q == p else old)[q], places[q][p]) for q in near.after[p]]) for p in chunks
            ]
        return told


def _worse_in_a_row(found: Mapping[int, tuple[float, ...]]) -> int:
    """How many evaluations have come after the first one with the least loss."""
    losses = [numbers[0] for _, numbers in sorted(found.items())]
    return len(losses) - 1 - losses.index(min(losses))
