"""A step's forwards and backwards in one process: pipeline by pipeline, microbatch by microbatch."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from culm.oracle.plain_evaluation import pair_of
from culm.pipeline.job import Job
from culm.pipeline.tensors.as_sent import after_layers, between_layers
from culm.pipeline.tensors.gradients import own_gradients
from culm.pipeline.tensors.layout import copy_of
from culm.pipeline.tensors.pytrees import Pytree, mapped
from culm.pipeline.user_code.data import microbatches_of
from culm.pipeline.user_code.devices import device_of
from culm.pipeline.user_code.forwards import precision_of
from culm.pipeline.user_code.imports import load_callable
from culm.pipeline.user_code.model import ModelSource
from culm.pipeline.user_code.streams import seed_all, stream_seed

Pair = tuple[float, float]  # a sum, and over how many it is
Buffers = list[list[torch.Tensor]]  # of each layer


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """What comes of a step's passes: by pipeline, but for the losses."""

    losses: list[float] = field(default_factory=list)  # of every microbatch
    sums: list[float] = field(default_factory=list)  # of the losses
    counts: list[float] = field(default_factory=list)
    gradients: list[list[torch.Tensor | None]] = field(default_factory=list)  # of each parameter
    after: list[Buffers] = field(default_factory=list)
    measured: dict[str, list[Pair]] = field(default_factory=dict)  # each metric


class ChainPasses:
    """Of a model whose layers stand in a row."""

    def __init__(
        self, job: Job, source: ModelSource, model: list[torch.nn.Module], parameters: Sequence[torch.nn.Parameter]
    ) -> None:
        self._job, self._loss, self._model, self._parameters = job, source.loss, model, parameters
        self._data = microbatches_of(job, "data", source.dataset())
        self._device = device_of(job)
        self._precision = precision_of(job)
        self._metrics = {name: load_callable(each, "train.metrics") for name, each in job.train.metrics.items()}

    def passes(self, step: int) -> Passes:
        """Leaves the gradients and buffers of the last pipeline in place."""
        job, model, metrics = self._job, self._model, self._metrics
        sums_up, microbatches = job.train.reduction == "sum", job.pipeline.microbatches
        before = buffers_of(model)
        made = Passes(measured={name: [] for name in metrics})
        for pipeline in range(job.pipeline.pipelines):
            put_back(model, before)
            for parameter in self._parameters:
                parameter.grad = None
            total = number = 0.0
            of_pipeline = dict.fromkeys(metrics, (0.0, 0.0))
            for index in range(microbatches):
                found = self._data.microbatch(step, pipeline, index)
                # Copies: a layer or the loss may write into what it is given, which may be the dataset's own.
                x, target = (mapped(lambda tensor: copy_of(tensor).to(self._device), part) for part in found)
                with self._precision():
                    for place, layer in enumerate(model):
                        seed_all(stream_seed(job.job.seed, step, pipeline, index, place))
                        handed_on = between_layers if place + 1 < len(model) else after_layers
                        x = self._given(handed_on(layer(x)))
                    returned = self._loss(x, target)
                    with torch.no_grad():
                        told = {
                            name: pair_of(metric(x, target), job.data.microbatch) for name, metric in metrics.items()
                        }
                fresh = [parameter for parameter in self._parameters if parameter.grad is None]
                # A sum is divided once, by the step's whole count; means are each microbatch's part of the step.
                loss, counted = returned if sums_up else (returned, 0.0)
                (loss if sums_up else loss / (job.pipeline.pipelines * microbatches)).backward()
                own_gradients(fresh)
                made.losses.append(loss.item())
                total += made.losses[-1]
                number += float(counted)
                for name, (value, of) in told.items():
                    of_pipeline[name] = (of_pipeline[name][0] + value, of_pipeline[name][1] + of)
            made.sums.append(total)
            made.counts.append(number)
            for name, pair in of_pipeline.items():
                made.measured[name].append(pair)
            made.gradients.append([parameter.grad for parameter in self._parameters])
            made.after.append(buffers_of(model))
        return made

    def _given(self, y: Pytree) -> Pytree:
        """What the next layer takes, or the loss. Where a layer runs again for its backward, it may write into that:
        nobody reads there any more.
        """
        return mapped(copy_of, y) if self._job.train.activation_checkpointing else y


def buffers_of(model: list[torch.nn.Module]) -> Buffers:
    """Copies of all, by layer."""
    return [[buffer.clone() for buffer in layer.buffers()] for layer in model]


def put_back(model: list[torch.nn.Module], before: Buffers) -> None:
    """Sets the buffers to what they were before."""
    with torch.no_grad():
        for layer, buffers in zip(model, before, strict=True):
            for buffer, old in zip(layer.buffers(), buffers, strict=True):
                buffer.copy_(old)
