"""Tries a job's model on one microbatch, so that a mistake in it shows before anything starts.

Layer by layer, each built, run forward and backward alone: a model too large for this machine is never whole on it. A
layer that passes no gradient on shows by itself: its output has no gradient with respect to its input.
"""

import inspect
from typing import Any

import torch
from torch import nn

from culm.pipeline.checkpoints.digest import hash_layer
from culm.pipeline.errors import JobError
from culm.pipeline.job import Job
from culm.pipeline.user_code.data import Microbatches
from culm.pipeline.user_code.devices import device_of
from culm.pipeline.user_code.imports import RAISED, described
from culm.pipeline.user_code.model import ModelSource
from culm.pipeline.user_code.sharing import kept_between, tensors_of

TRIES = 8  # a layer may leave itself out by chance, as LayerDrop does


def check_job(job: Job) -> None:
    """Runs one microbatch forward and backward through every layer and the loss. Raises JobError naming the layer."""
    device_of(job)
    source = ModelSource(job)
    source.outlines()
    x, target = _first_microbatch(job, source.dataset())
    trained = False  # whether a layer so far has parameters to train
    for index in range(source.layer_count):
        layer = _build(source, index)
        name = f"layer {index} ({type(layer).__name__})"
        x = _run(layer, name, x, trained)
        trained = trained or any(p.requires_grad for p in layer.parameters())
    if not trained:
        what = "no layer has a parameter that requires a gradient: there is nothing to train"
        raise JobError(what, f"model.layers, {job.model.layers}", "leave some of them unfrozen")
    _run_loss(source, x, target)
    _check_optimizer(source, job)


def refuse_loss(loss: Any, output: torch.Tensor) -> None:
    """Raises JobError for a loss that would train nothing of the model, or not all of it.

    ``output``: of the last layer. If it has no graph nothing trains; one process alone would raise as well.
    """
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise JobError("the loss is not a single number", "train.loss", "return the mean over the microbatch")
    if not loss.is_floating_point():
        raise JobError(f"the loss has dtype {loss.dtype}", "train.loss", "return a floating point number")
    if not output.requires_grad:  # a layer passes a gradient on now and then, or ``check_job`` would have refused it
        what = "the model's output has no graph: no parameter would train on this microbatch"
        mend = "let every forward pass on what depends on the parameters, without detach, item or no_grad"
        raise JobError(what, "model.layers", mend)
    if not loss.requires_grad:
        what = "the loss has no graph: no gradient goes back from it"
        raise JobError(what, "train.loss", "compute it from the output with torch, without detach, item or no_grad")


def _first_microbatch(job: Job, dataset: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Raises JobError where it is not a pair of tensors."""
    mend = "let every item be an (input, target) pair of tensors, all alike in shape"
    try:
        found = Microbatches(job, dataset).microbatch(0, 0, 0)
    except RAISED as error:
        what = f"the dataset gives no microbatch of (input, target): {described(error)}"
        raise JobError(what, "data.dataset", mend) from error
    for part, name in zip(found, ("input", "target"), strict=True):
        if not isinstance(part, torch.Tensor):
            raise JobError(f"a sample's {name} is a {type(part).__name__}, not a tensor", "data.dataset", mend)
    return found


def _build(source: ModelSource, index: int) -> nn.Module:
    """The layer, which has to come out the same, and of its own, each time that it is built."""
    layer, again = source.build(index), source.build(index)
    kept = kept_between(layer, again)
    if kept:
        raise source.keeps(index, kept)
    if hash_layer(index, dict(tensors_of(layer))) != hash_layer(index, dict(tensors_of(again))):
        what = f"layer {index} ({type(layer).__name__}) has different initial values each time it is built"
        mend = "draw them from torch's, Python's or numpy's global generator, which Culm seeds"
        raise JobError(what, "model.layers", mend)
    return layer


def _run(layer: nn.Module, name: str, x: torch.Tensor, trained: bool) -> torch.Tensor:
    """The layer's output, detached. x: [B, ...]; ``trained``: whether layers before it wait for a gradient."""
    for _ in range(TRIES):
        leaf = _leaf(x, trained)
        try:
            y = layer(leaf.clone())  # in training the input is no leaf either, so it may be written in place
        except RAISED as error:
            what, mend = f"{name} raised {described(error)}", "correct the layer or what feeds it"
            if "deterministic implementation" in str(error):
                mend = "set job.threads to 1, or use another operation: with more threads its bits may vary"
            raise JobError(what, "model.layers", mend) from error
        if not isinstance(y, torch.Tensor):
            what = f"{name} returned a {type(y).__name__}, not a tensor"
            raise JobError(what, "model.layers", "let every layer take one tensor and return one")
        waiting: list[torch.Tensor] = [leaf] if trained else [p for p in layer.parameters() if p.requires_grad]
        buffers = hash_layer(0, dict(layer.named_buffers()))
        reaches = not waiting or _reaches(y, waiting, name)
        if hash_layer(0, dict(layer.named_buffers())) != buffers:
            what = f"the backward of {name} changes its buffers: their values would depend on where the model is cut"
            mend = "keep what changes buffers, such as a BatchNorm, out of checkpoint()"
            raise JobError(what, "model.layers", mend)
        if reaches:
            return y.detach()
    mend = "pass on what depends on it, without detach, item or no_grad, or freeze them with requires_grad_(False)"
    if trained:
        what = f"{name} passes no gradient on: the parameters of the layers before it would never change"
    else:
        what = f"the output of {name} does not depend on its parameters: they would never change"
    raise JobError(what, "model.layers", mend)


def _reaches(y: torch.Tensor, waiting: list[torch.Tensor], name: str) -> bool:
    """Whether a gradient of the output reaches any of these."""
    if not y.requires_grad:
        return False
    try:
        found = torch.autograd.grad([y], waiting, [torch.ones_like(y)], allow_unused=True)
    except RAISED as error:
        what = f"the backward of {name} raised {described(error)}"
        raise JobError(what, "model.layers", "correct the layer") from error
    return any(gradient is not None for gradient in found)


def _run_loss(source: ModelSource, x: torch.Tensor, target: torch.Tensor) -> None:
    output = _leaf(x, True)
    try:
        loss = source.loss(output, target)
    except RAISED as error:
        what = f"the loss raised {described(error)}"
        raise JobError(what, "train.loss", "let it take the last layer's output and the target") from error
    refuse_loss(loss, output)
    if not _reaches(loss, [output], "the loss"):
        what = "the loss does not depend on the last layer's output"
        raise JobError(what, "train.loss", "compute it from the output with torch, without detach, item or no_grad")


def _leaf(x: torch.Tensor, wants_gradient: bool) -> torch.Tensor:
    return x.detach().requires_grad_(wants_gradient and (x.is_floating_point() or x.is_complex()))


def _check_optimizer(source: ModelSource, job: Job) -> None:
    """Takes a step on nothing, as every node does before it joins."""
    shapes = [([min(size, 4) for size in p.shape], p.dtype) for p in source.parameters_like()]
    parameters = [torch.zeros(shape, dtype=dtype, requires_grad=True) for shape, dtype in shapes]
    optimizer = source.optimizer(parameters)
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        what = f"the step of {job.train.optimizer} wants a closure that computes the loss again"
        raise JobError(what, "train.optimizer", "use an optimizer that needs gradients alone")
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    try:
        optimizer.step()
    except RAISED as error:
        what = f"the first step of {job.train.optimizer} raised {described(error)}"
        raise JobError(what, "train.optimizer", "correct the optimizer or its arguments, or use another") from error
