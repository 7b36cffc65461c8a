"""Tries a job's model on two microbatches, so that a mistake in it shows before anything starts."""

import inspect
from typing import Any

import torch

from culm.pipeline.errors import JobError
from culm.pipeline.job import Job
from culm.pipeline.user_code.data import Microbatches
from culm.pipeline.user_code.devices import device_of
from culm.pipeline.user_code.imports import RAISED, described
from culm.pipeline.user_code.model import ModelSource
from culm.pipeline.user_code.repeats import Sample, ask_again


def check_job(job: Job) -> None:
    """Runs two microbatches through every layer and the loss, each more than once. Raises JobError naming the layer."""
    device_of(job)
    source = ModelSource(job)
    source.outlines()
    dataset = source.dataset()
    keys = [(0, 0, 0), (0, 0, 1) if job.pipeline.microbatches > 1 else (1, 0, 0)]
    ask_again(source, job, *(Sample(key, *_microbatch(job, dataset, key)) for key in keys))
    _check_optimizer(source, job)


def _microbatch(job: Job, dataset: Any, key: tuple[int, int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """By step, pipeline and number. Raises JobError where it is not a pair of tensors."""
    mend = "let every item be an (input, target) pair of tensors, all alike in shape"
    try:
        found = Microbatches(job, dataset).microbatch(*key)
    except RAISED as error:
        what = f"the dataset gives no microbatch of (input, target): {described(error)}"
        raise JobError(what, "data.dataset", mend) from error
    for part, name in zip(found, ("input", "target"), strict=True):
        if not isinstance(part, torch.Tensor):
            raise JobError(f"a sample's {name} is a {type(part).__name__}, not a tensor", "data.dataset", mend)
    return found


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
