"""The job's metrics: what each tells of a microbatch, a sum and over how many it is."""

from collections.abc import Mapping
from typing import Any

import torch

from culm.pipeline.errors import JobError
from culm.pipeline.tensors.pytrees import Pytree, mapped
from culm.pipeline.user_code.imports import RAISED, described, load_callable
from culm.pipeline.user_code.losses import MOST_COUNTED

Numbers = tuple[float, ...]


class Metrics:
    """Of one section of the job file."""

    def __init__(self, named: Mapping[str, str], section: str) -> None:
        """``named``: callables by name. Raises JobError for one that cannot be imported."""
        self._section = section
        self._named = [(name, load_callable(metric, f"{section}.metrics.{name}")) for name, metric in named.items()]

    def numbers(self, output: Pytree, target: Pytree, samples: int) -> Numbers:
        """Sum and count of each, in order. A mean counts for as many as the microbatch has ``samples``.

        Raises JobError. A metric gets the output without its graph.
        """
        if not self._named:
            return ()
        return self._numbers(mapped(torch.Tensor.detach, output), target, samples)

    @torch.no_grad()
    def _numbers(self, output: Pytree, target: Pytree, samples: int) -> Numbers:
        found: list[float] = []
        for name, metric in self._named:
            where = f"{self._section}.metrics.{name}"
            try:
                returned = metric(output, target)
            except RAISED as error:
                what = f"the metric {name} raised {described(error)}"
                raise JobError(what, where, "correct it, or name another") from error
            found += sum_and_count(returned, samples, where)
        return tuple(found)


def sum_and_count(given: Any, samples: int, where: str) -> Numbers:
    """What a mean over the samples, or a pair (sum, count), tells. Raises JobError."""
    is_pair = isinstance(given, tuple) and len(given) == 2
    number, count = (_number(x, where) for x in (given if is_pair else (given, samples)))
    if not 0.0 <= count <= MOST_COUNTED:
        raise JobError(f"it gives the count {count:g}", where, "return how many summands the sum has, 0 or more")
    return (number, count) if is_pair else (number * count, count)


def _number(given: Any, where: str) -> float:
    try:
        if isinstance(given, str | bytes):
            raise TypeError
        return float(given)
    except (TypeError, ValueError, RuntimeError) as error:
        what = f"it returned a {type(given).__name__} that is not a single number"
        raise JobError(what, where, "return the mean over the microbatch's samples, or a pair (sum, count)") from error
