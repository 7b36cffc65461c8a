"""The oracle: the job as an ordinary PyTorch loop in one process. It shares no code with the stage servers."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from culm.oracle.plain_evaluation import PlainEvaluation, is_enough, mean_of
from culm.oracle.plain_graph import GraphPasses
from culm.oracle.plain_passes import ChainPasses, buffers_of, put_back
from culm.pipeline.checkpoints.digest import hash_layer, weights_sha256
from culm.pipeline.clip import NORM_CHUNK, fault_in, stop_in_words
from culm.pipeline.job import Job
from culm.pipeline.tensors.as_sent import lay_out
from culm.pipeline.user_code.data import dataset_of
from culm.pipeline.user_code.devices import device_of
from culm.pipeline.user_code.model import ModelSource

# Equal bits need everything that rounds in the order in which the stage servers do it:
#
# - every layer's forward draws from its own seed, and every microbatch's samples from theirs;
# - what a layer gives, and its gradient, is numbers in memory, no conjugate that torch puts off;
# - a loss that is a mean is divided by the number of the step's microbatches before its backward; of sums the whole
#   gradient is divided by the whole count, in one product with what clipping asks for;
# - gradients add up in microbatch order within a pipeline, pipelines as the tree of ``culm.pipeline.tree``, then the
#   uses of a parameter that several layers have, in order of layers (rule 22);
# - every pipeline starts a step from the same buffers, and those of the next step are pipeline 0's (rule 21);
# - squared norms are taken in float64, parameter by parameter in chunks of ``NORM_CHUNK``, and added up by layer;
# - the mean loss is a sum in microbatch order within a pipeline, then the tree, divided once.


class Stopped(Exception):
    """The job stops at a step whose loss or gradient is not finite. The text is the last line of such a run."""


@dataclass(frozen=True, kw_only=True)
class PlainResult:
    """``layers``: (index, state dict) at the end. ``trace``: the hash of every layer after each step, if asked for.

    ``losses``: of each step; fewer than the job asks for where it ends early. ``evaluations``: the loss and the
    metrics, by name, of the weights after so many steps.
    """

    losses: list[float]
    layers: list[tuple[int, dict[str, torch.Tensor]]]
    sha256: str
    seconds: float
    trace: list[list[str]]
    evaluations: dict[int, dict[str, float]]
    metrics: list[dict[str, float]]  # of each step, as the job measures what it trains on


def run_plain(job: Job, on_step: Callable[[int, float], None] | None = None, trace: bool = False) -> PlainResult:
    """Trains the job to its end. Calls ``on_step(step, loss)`` after every step. ``seconds`` counts the steps alone.

    Raises Stopped at numbers that are not finite, unless the job skips such steps.
    """
    torch.set_num_threads(job.job.threads)
    device = device_of(job)
    source = ModelSource(job)
    model = [lay_out(source.build(index).to(device)) for index in range(source.layer_count)]
    tied = _tied(model, source.tied)
    named = [(i, n, p) for i, layer in enumerate(model) for n, p in layer.named_parameters() if p.requires_grad]
    parameters = [parameter for _, _, parameter in named]
    optimizer = source.optimizer(source.grouped(each for each in named if each[:2] not in source.firsts))
    scheduler = source.scheduler(optimizer)
    makes = ChainPasses if job.graph is None else GraphPasses
    trained = makes(job, source, model, parameters)
    sums_up = job.train.reduction == "sum"
    losses: list[float] = []
    measured: list[dict[str, float]] = []
    traced: list[list[str]] = []
    evaluation = PlainEvaluation(job, model, source.loss, dataset_of(job, "evaluate")) if job.evaluate else None
    evaluated: dict[int, dict[str, float]] = {}
    begun = time.perf_counter()
    for step in range(job.evaluations.end(job.job.steps)):
        if evaluation is not None and job.evaluations.in_step(step, job.job.steps):
            evaluated[step] = evaluation.run(step, _tree)
            if is_enough(job, evaluated):
                break
        if step == job.job.steps:  # the closing step
            break
        before = buffers_of(model)
        passes = trained.passes(step)
        put_back(model, passes.after[0])
        for parameter, each in zip(parameters, zip(*passes.gradients, strict=True), strict=True):
            parameter.grad = _tree(each)
        for uses in tied:
            _add_uses(uses)
        clips = job.train.clip_norm is not None
        # A job that clips nothing needs no norms, only whether they are finite: as on the nodes.
        squared = [_squared_norm(layer) if clips else 0.0 if _is_finite(layer) else math.nan for layer in model]
        fault = fault_in(dict(enumerate(squared)), passes.losses, job.pipeline.pipelines)
        if fault and job.train.nonfinite != "skip":
            raise Stopped(stop_in_words(step, fault))
        count = _tree(passes.counts) if sums_up else 1.0
        if fault or not count:
            put_back(model, before)
        else:
            _scale(model, squared, job.train.clip_norm, count)
            optimizer.step()
        if scheduler is not None and step + 1 < job.job.steps:  # it may be made for just so many steps
            scheduler.step()  # a step that is skipped counts
        of = count if sums_up else job.pipeline.pipelines * job.pipeline.microbatches
        losses.append(_tree(passes.sums) / of if of else 0.0)
        measured.append({name: mean_of(pairs, _tree) for name, pairs in passes.measured.items()})
        if trace:
            traced.append([hash_layer(i, layer.state_dict()) for i, layer in enumerate(model)])
        if on_step is not None:
            on_step(step, losses[-1])
    seconds = time.perf_counter() - begun
    layers = [(i, layer.state_dict()) for i, layer in enumerate(model)]
    return PlainResult(
        losses=losses,
        layers=layers,
        sha256=weights_sha256(layers),
        seconds=seconds,
        trace=traced,
        evaluations=evaluated,
        metrics=measured,
    )


def _tied(model: list[torch.nn.Module], groups: Sequence[Sequence[tuple[int, str]]]) -> list[list[torch.nn.Parameter]]:
    """Of each parameter that several layers use: its uses, in order of layers, with one memory and a gradient each."""
    found = [[dict(model[layer].named_parameters())[name] for layer, name in group] for group in groups]
    for first, *others in found:
        for other in others:
            other.data = first.data
    return found


def _add_uses(uses: list[torch.nn.Parameter]) -> None:
    """The first one gets the sum of the gradients, in order of layers; the others none."""
    first, *others = uses
    for other in others:
        if other.grad is not None:
            first.grad = other.grad if first.grad is None else first.grad + other.grad
        other.grad = None


def _squared_norm(layer: torch.nn.Module) -> float:
    """Of the layer's gradient, in float64, chunk by chunk of each parameter; not finite where an element is not."""
    squared = 0.0
    for parameter in layer.parameters():
        if parameter.grad is not None:
            flat = parameter.grad.flatten()
            for begin in range(0, len(flat), NORM_CHUNK):
                chunk = flat[begin : begin + NORM_CHUNK]
                real = torch.view_as_real(chunk) if chunk.is_complex() else chunk
                norm = torch.linalg.vector_norm(real, dtype=torch.float64).item()
                squared += norm * norm
    return squared


def _is_finite(layer: torch.nn.Module) -> bool:
    """Whether the layer's gradient is finite. If a sum is, so are its summands; a sum that overflows proves nothing."""
    grads = [parameter.grad for parameter in layer.parameters() if parameter.grad is not None]
    return all(bool(torch.isfinite(grad.sum())) or bool(torch.isfinite(grad).all()) for grad in grads)


def _tree(values: Sequence[Any]) -> Any:
    """The values of all pipelines as the tree adds them: the left half has the largest power of two below the whole.

    None is a parameter that has no gradient in a pipeline: it adds nothing, where 0.0 would turn a -0.0 into 0.0.
    """
    if len(values) == 1:
        return values[0]
    middle = 1
    while middle * 2 < len(values):
        middle *= 2
    left, right = _tree(values[:middle]), _tree(values[middle:])
    return right if left is None else left if right is None else left + right


def _scale(model: list[torch.nn.Module], squared: list[float], clip_norm: float | None, count: float) -> None:
    """Divides all gradients by the count, and scales them so that their norm is at most ``clip_norm``: in one product,
    by the formula of ``clip.clip_scale``.
    """
    total = 0.0
    for of_layer in squared:
        total += of_layer
    scale = 1.0 if clip_norm is None else min(1.0, clip_norm / (math.sqrt(total) / count + 1e-6))
    scale = scale / count
    if scale != 1.0:
        for layer in model:
            for parameter in layer.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(scale)
