"""An evaluation in one process: what stages and nodes together have to come to, bit for bit."""

# Every microbatch begins with the committed buffers, and leaves them. Sums and counts add up in order of microbatch
# within a pipeline, pipelines as the tree; a loss or metric that is a mean counts for as many as there are samples.

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from culm.pipeline.job import Job
from culm.pipeline.tensors.as_sent import between_layers
from culm.pipeline.tensors.layout import copy_of
from culm.pipeline.tensors.pytrees import mapped
from culm.pipeline.user_code.data import EvaluatedMicrobatches
from culm.pipeline.user_code.devices import device_of
from culm.pipeline.user_code.forwards import precision_of
from culm.pipeline.user_code.imports import load_callable
from culm.pipeline.user_code.modes import evaluation_mode
from culm.pipeline.user_code.streams import seed_all, stream_seed

Tree = Callable[[Sequence[Any]], Any]


class PlainEvaluation:
    """Of a job that has an [evaluate] section."""

    def __init__(
        self, job: Job, model: Sequence[torch.nn.Module], loss: Callable[[Any, Any], Any], dataset: Any
    ) -> None:
        assert job.evaluate is not None
        self._job = job
        self._model = model
        self._loss = loss
        self._data = EvaluatedMicrobatches(job, dataset)
        self._metrics = {n: load_callable(metric, "evaluate.metrics") for n, metric in job.evaluate.metrics.items()}

    @torch.no_grad()
    def run(self, step: int, tree: Tree) -> dict[str, float]:
        """The loss and each metric of the model as it is. ``tree``: adds up what the pipelines come to."""
        buffers = [buffer for layer in self._model for buffer in layer.buffers()]
        before = [buffer.clone() for buffer in buffers]
        evaluations = self._job.evaluations
        of_pipelines: dict[str, list[tuple[float, float]]] = {name: [] for name in ("loss", *self._metrics)}
        for pipeline in range(self._job.pipeline.pipelines):
            found = dict.fromkeys(of_pipelines, (0.0, 0.0))
            for index in range(evaluations.microbatches):
                if samples := len(evaluations.samples_of(pipeline, index)):
                    with evaluation_mode(*self._model):
                        numbers = self._microbatch(step, pipeline, index, samples)
                    for name, (total, count) in numbers.items():
                        found[name] = (found[name][0] + total, found[name][1] + count)
                for buffer, old in zip(buffers, before, strict=True):
                    buffer.copy_(old)
            for name, pair in found.items():
                of_pipelines[name].append(pair)
        return {name: mean_of(pairs, tree) for name, pairs in of_pipelines.items()}

    def _microbatch(self, step: int, pipeline: int, index: int, samples: int) -> dict[str, tuple[float, float]]:
        job, device = self._job, device_of(self._job)
        found = self._data.microbatch(step, pipeline, index)
        x, target = (mapped(lambda tensor: copy_of(tensor).to(device), part) for part in found)
        with precision_of(job)():
            for place, layer in enumerate(self._model):
                seed_all(stream_seed(job.job.seed, step, pipeline, job.pipeline.microbatches + index, place))
                x = between_layers(layer(x))
            given = {
                "loss": self._loss(x, target),
                **{name: metric(x, target) for name, metric in self._metrics.items()},
            }
        return {name: pair_of(value, samples) for name, value in given.items()}


def is_enough(job: Job, evaluated: Mapping[int, Mapping[str, float]]) -> bool:
    """Whether the job ends with the weights that were evaluated last. ``evaluated``: by step, in their order."""
    asked = job.evaluate
    if asked is None or asked.patience is None:
        return False
    best, since = math.nan, 0
    for found in evaluated.values():
        number = -found[asked.best] if asked.best_is == "most" else found[asked.best]
        if number < best or (math.isnan(best) and not math.isnan(number)):
            best, since = number, 0
        else:
            since += 1
    return since >= asked.patience


def pair_of(value: Any, samples: int) -> tuple[float, float]:
    """Sum and count of what a loss or metric returns."""
    if isinstance(value, tuple):
        total, count = value
        return float(total), float(count)
    return float(value) * samples, float(samples)


def mean_of(pairs: Sequence[tuple[float, float]], tree: Tree) -> float:
    """Of the sum and the count of each pipeline."""
    total, count = (tree(list(part)) for part in zip(*pairs, strict=True))
    return total / count if count else math.nan
