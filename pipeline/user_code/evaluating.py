"""What an evaluation tells of a microbatch: sums and counts of the loss and of each metric."""

from collections.abc import Callable
from typing import Any

import torch

from culm.pipeline.errors import JobError
from culm.pipeline.job import Job
from culm.pipeline.tensors.lazy import between_layers
from culm.pipeline.tensors.pytrees import Pytree
from culm.pipeline.user_code.forwards import Forwards
from culm.pipeline.user_code.imports import RAISED, described, load_callable
from culm.pipeline.user_code.losses import MOST_COUNTED, taken
from culm.pipeline.user_code.model import ModelSource

Numbers = tuple[float, ...]


class Measures:
    """The job's loss and metrics."""

    def __init__(self, job: Job, loss: Callable[[Pytree, Pytree], Any]) -> None:
        """Raises JobError for a metric that cannot be imported."""
        assert job.evaluate is not None, "the job evaluates nothing"
        self._job = job
        self._precision = Forwards(job).precision
        self._loss = loss
        self._metrics = [
            (name, load_callable(x, f"evaluate.metrics.{name}")) for name, x in job.evaluate.metrics.items()
        ]

    @torch.no_grad()
    def of(self, pipeline: int, microbatch: int, output: Pytree, target: Pytree) -> Numbers:
        """Sum and count of the loss, then of each metric, as ``culm.pipeline.tally`` has them. Raises JobError.

        A loss or metric that is a mean counts for as many as the microbatch has samples.
        """
        samples = len(self._job.evaluations.samples_of(pipeline, microbatch))
        if not samples:
            return (0.0,) * self._job.tally_form.evaluated
        with self._precision():
            returned, counts = taken(self._loss(output, target), self._job)
            numbers = [*_sum_and_count((returned, *counts) if counts else returned, samples, "train.loss")]
            for name, metric in self._metrics:
                where = f"evaluate.metrics.{name}"
                try:
                    given = metric(output, target)
                except RAISED as error:
                    raise JobError(f"the metric {name} raised {described(error)}", where, "correct it") from error
                numbers += _sum_and_count(given, samples, where)
        return tuple(numbers)


def _sum_and_count(given: Any, samples: int, where: str) -> Numbers:
    """What a mean over the samples, or a pair (sum, count), tells. Raises JobError."""
    is_pair = isinstance(given, tuple) and len(given) == 2
    number, count = (_number(x, where) for x in (given if is_pair else (given, samples)))
    if not 0.0 <= count <= MOST_COUNTED:
        raise JobError(f"it gives the count {count:g}", where, "return how many summands the sum has, 0 or more")
    return (number, count) if is_pair else (number * count, count)


def _number(given: Any, where: str) -> float:
    try:
        return float(given)
    except (TypeError, ValueError, RuntimeError) as error:
        what = f"it returned a {type(given).__name__} that is not a single number"
        raise JobError(what, where, "return the mean over the microbatch's samples, or a pair (sum, count)") from error


def check_evaluation(source: ModelSource, job: Job, x: Pytree, target: Pytree) -> None:
    """Runs a microbatch of the evaluation through every layer, the loss and the metrics. Raises JobError."""
    forwards, h = Forwards(job), x
    with torch.no_grad():
        for index in range(source.layer_count):
            layer = source.build(index).eval()
            try:
                h = between_layers(forwards.once(layer, h))
            except RAISED as error:
                what = f"layer {index} ({type(layer).__name__}) raised {described(error)} in an evaluation"
                mend = "let it take what evaluate.dataset gives, in evaluation mode"
                raise JobError(what, "evaluate.dataset", mend) from error
        try:
            Measures(job, source.loss).of(0, 0, h, target)
        except JobError:
            raise
        except RAISED as error:
            what = f"the loss raised {described(error)} in an evaluation"
            raise JobError(what, "evaluate.dataset", "let it take what evaluate.dataset gives") from error
