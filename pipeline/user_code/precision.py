"""In which precision forwards compute: the job's [train] precision."""

# Under "bf16-mixed" torch.autocast chooses, for each operation of a forward, bfloat16 or float32. Parameters, their
# gradients, the optimizer's state and all sums stay float32; a layer hands on what it gives.
#
# autocast keeps the bfloat16 copy of a leaf that requires a gradient until the context ends. So a leaf that is used
# twice has one copy, whose gradient is added up in bfloat16, and any other tensor has two. In one process a layer's
# input is no leaf; at the beginning of a stage it would be one. ``as_within`` takes care that a cut changes no bit.

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch

from culm.pipeline.job import Job
from culm.pipeline.user_code.devices import device_of

Context = Callable[[], AbstractContextManager[Any]]


def precision_of(job: Job) -> Context:
    """Gives the context of one forward, of a layer or of the loss."""
    if job.train.precision == "fp32":
        return nullcontext
    return partial(torch.autocast, device_of(job).type, dtype=torch.bfloat16)


def as_within(job: Job, x: torch.Tensor) -> torch.Tensor:
    """A stage's input as it would be in one process, for the layer that takes it."""
    return x.view_as(x) if job.train.precision != "fp32" and x.requires_grad else x
