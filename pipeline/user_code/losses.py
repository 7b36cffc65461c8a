"""What the job's loss returns: where the backward begins, and the numbers that are told of the microbatch."""

import math
from collections.abc import Sequence
from typing import Any

import torch

from culm.pipeline.errors import JobError
from culm.pipeline.job import Job
from culm.pipeline.user_code.trial import leaves_behind

MOST_COUNTED = 1e15  # in a microbatch: far above any, and a sum of all is finite


def taken(returned: Any, job: Job) -> tuple[Any, tuple[Any, ...]]:
    """The loss, and what it is a sum over if the job says that it is one: ``(sum, count)``. Raises JobError."""
    if job.train.reduction == "mean":
        return returned, ()
    if not isinstance(returned, tuple) or len(returned) != 2:
        what = f'the loss returned a {type(returned).__name__}, and train.reduction is "sum"'
        raise JobError(what, "train.loss", "return a pair: the sum over the microbatch, and over how many it is")
    return returned[0], (returned[1],)


def refuse_parameters(loss: torch.Tensor, outputs: Sequence[torch.Tensor]) -> None:
    """Raises JobError for a loss with parameters to train: optimizers have those of layers alone.

    outputs: what the loss was given of the last layer. Another tensor that it makes, and begins its sum with, may
    require a gradient as well.
    """
    leaves = [leaf for leaf in leaves_behind([loss]) if isinstance(leaf, torch.nn.Parameter)]
    if strangers := [leaf for leaf in leaves if not any(leaf is output for output in outputs)]:
        what = f"the loss has a parameter of shape {list(strangers[0].shape)} that requires a gradient"
        mend = "let the last layer have it and return what the loss needs, or freeze it with requires_grad_(False)"
        raise JobError(f"{what}, and would never be trained", "train.loss", mend)


def tally_of(loss: torch.Tensor, counts: tuple[Any, ...]) -> tuple[float, ...]:
    """The microbatch's numbers, as ``culm.pipeline.tally`` has them. Raises JobError for a count that is none."""
    return (loss.item(), *map(_count, counts))


def _count(count: Any) -> float:
    try:
        number = float(count)
    except (TypeError, ValueError, RuntimeError):
        number = math.nan
    if not 0.0 <= number <= MOST_COUNTED:
        mend = "return how many summands the loss has, such as the number of tokens that count"
        raise JobError(f"the loss gives the count {str(count)[:80]}", "train.loss", mend)
    return number
