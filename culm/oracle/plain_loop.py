"""The oracle: the job as an ordinary PyTorch loop in one process. It shares no code with the stage servers."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from culm.pipeline.checkpoints.digest import hash_layer, weights_sha256
from culm.pipeline.clip import fault_in, stop_in_words
from culm.pipeline.job import Job
from culm.pipeline.user_code.data import Microbatches
from culm.pipeline.user_code.devices import device_of
from culm.pipeline.user_code.model import ModelSource
from culm.pipeline.user_code.streams import seed_all, stream_seed

# Equal bits need everything that rounds in the order in which the stage servers do it:
#
# - every layer's forward draws from its own seed, and every microbatch's samples from theirs;
# - a loss is divided by the number of microbatches before its backward, and gradients add up in microbatch order;
# - squared norms are taken in float64, parameter by parameter, and added up by layer;
# - the mean loss is a sum in microbatch order, divided once.


class Stopped(Exception):
    """The job stops at a step whose loss or gradient is not finite. The text is the last line of such a run."""


@dataclass(frozen=True)
class PlainResult:
    """``layers``: (index, state dict) at the end. ``trace``: the hash of every layer after each step, if asked for."""

    losses: list[float]
    layers: list[tuple[int, dict[str, torch.Tensor]]]
    sha256: str
    seconds: float
    trace: list[list[str]]


def run_plain(job: Job, on_step: Callable[[int, float], None] | None = None, trace: bool = False) -> PlainResult:
    """Trains the job to its end. Calls ``on_step(step, loss)`` after every step. ``seconds`` counts the steps alone.

    Raises Stopped at numbers that are not finite, unless the job skips such steps.
    """
    torch.set_num_threads(job.job.threads)
    source = ModelSource(job)
    device = device_of(job)
    model = [source.build(index).to(device) for index in range(source.layer_count)]
    parameters = [p for layer in model for p in layer.parameters() if p.requires_grad]
    optimizer = source.optimizer(parameters)
    data = Microbatches(job, source.dataset())
    pipelines, microbatches = job.pipeline.pipelines, job.pipeline.microbatches
    losses: list[float] = []
    traced: list[list[str]] = []
    begun = time.perf_counter()
    for step in range(job.job.steps):
        total = 0.0
        of_step: list[float] = []
        skips = job.train.nonfinite == "skip"
        before = [[buffer.clone() for buffer in layer.buffers()] for layer in model] if skips else []
        # Each pipeline's gradients are added up apart, and then the pipelines in order: another order has other bits.
        sums: list[torch.Tensor | None] = [None] * len(parameters)
        for pipeline in range(pipelines):
            optimizer.zero_grad()
            for index in range(microbatches):
                x, target = (part.to(device) for part in data.microbatch(step, pipeline, index))
                for number, layer in enumerate(model):
                    seed_all(stream_seed(job.job.seed, step, pipeline, index, number))
                    x = layer(x)
                loss = source.loss(x, target)
                (loss / (pipelines * microbatches)).backward()
                of_step.append(loss.item())
                total += of_step[-1]
            if pipelines > 1:
                for i, parameter in enumerate(parameters):
                    if parameter.grad is not None:
                        so_far = sums[i]
                        sums[i] = parameter.grad if so_far is None else so_far + parameter.grad
        if pipelines > 1:
            for parameter, summed in zip(parameters, sums, strict=True):
                parameter.grad = summed
        clips = job.train.clip_norm is not None
        # A job that clips nothing needs no norms, only whether they are finite: as on the nodes.
        squared = [_squared_norm(layer) if clips else 0.0 if _is_finite(layer) else math.nan for layer in model]
        fault = fault_in(dict(enumerate(squared)), of_step)
        if fault and not skips:
            raise Stopped(stop_in_words(step, fault))
        if fault:
            _put_back(model, before)
        else:
            if job.train.clip_norm is not None:
                _clip(model, squared, job.train.clip_norm)
            optimizer.step()
        losses.append(total / (pipelines * microbatches))
        if trace:
            traced.append([hash_layer(i, layer.state_dict()) for i, layer in enumerate(model)])
        if on_step is not None:
            on_step(step, losses[-1])
    seconds = time.perf_counter() - begun
    layers = [(i, layer.state_dict()) for i, layer in enumerate(model)]
    return PlainResult(losses, layers, weights_sha256(layers), seconds, traced)


def _squared_norm(layer: torch.nn.Module) -> float:
    """Of the layer's gradient, in float64, parameter by parameter; not finite where an element is not."""
    squared = 0.0
    for parameter in layer.parameters():
        if parameter.grad is not None:
            grad = parameter.grad
            real = torch.view_as_real(grad) if grad.is_complex() else grad
            norm = torch.linalg.vector_norm(real, dtype=torch.float64).item()
            squared += norm * norm
    return squared


def _is_finite(layer: torch.nn.Module) -> bool:
    """Whether the layer's gradient is finite. If a sum is, so are its summands; a sum that overflows proves nothing."""
    grads = [parameter.grad for parameter in layer.parameters() if parameter.grad is not None]
    return all(bool(torch.isfinite(grad.sum())) or bool(torch.isfinite(grad).all()) for grad in grads)


def _put_back(model: list[torch.nn.Module], before: list[list[torch.Tensor]]) -> None:
    """Puts the buffers back as they were at the step's beginning: a skipped step changes nothing."""
    with torch.no_grad():
        for layer, buffers in zip(model, before, strict=True):
            for buffer, old in zip(layer.buffers(), buffers, strict=True):
                buffer.copy_(old)


def _clip(model: list[torch.nn.Module], squared: list[float], clip_norm: float) -> None:
    """Scales all gradients so that their norm is at most ``clip_norm``."""
    total = 0.0
    for of_layer in squared:
        total += of_layer
    scale = min(1.0, clip_norm / (math.sqrt(total) + 1e-6))
    if scale != 1.0:
        for layer in model:
            for parameter in layer.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(scale)
