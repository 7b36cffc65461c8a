"""What an evaluation tells of a microbatch: sums and counts of the loss and of each metric."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from culm.pipeline.errors import JobError
from culm.pipeline.job import Job
from culm.pipeline.tensors.as_sent import between_layers
from culm.pipeline.tensors.bits import digest_of
from culm.pipeline.tensors.layout import copy_of
from culm.pipeline.tensors.pytrees import Pytree, mapped
from culm.pipeline.user_code.forwards import Forwards
from culm.pipeline.user_code.imports import RAISED, described
from culm.pipeline.user_code.losses import taken
from culm.pipeline.user_code.metrics import Metrics, Numbers, sum_and_count
from culm.pipeline.user_code.model import ModelSource
from culm.pipeline.user_code.modes import evaluation_mode
from culm.pipeline.user_code.streams import stream_seed
from culm.pipeline.user_code.trial import Trial


class Held(NamedTuple):
    """A microbatch of an evaluation: whose, which one, and what it holds."""

    pipeline: int
    number: int
    x: Pytree
    target: Pytree


class Measures:
    """The job's loss and metrics."""

    def __init__(self, job: Job, loss: Callable[[Pytree, Pytree], Any]) -> None:
        """Raises JobError for a metric that cannot be imported."""
        assert job.evaluate is not None, "the job evaluates nothing"
        self._job = job
        self._precision = Forwards(job).precision
        self._loss = loss
        self._metrics = Metrics(job.evaluate.metrics, "evaluate")

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
            told = sum_and_count((returned, *counts) if counts else returned, samples, "train.loss")
            return (*told, *self._metrics.numbers(output, target, samples))


def check_evaluation(source: ModelSource, job: Job, x: Pytree, microbatches: Sequence[Held]) -> None:
    """Runs microbatches of the evaluation through every layer, the loss and the metrics. Raises JobError.

    ``x``: an input of training. On that each layer has to compute the same before and after it is evaluated.
    """
    forwards, inputs = Forwards(job), [held.x for held in microbatches]
    for index in range(source.layer_count):
        layer = source.build(index)
        name, seed = f"layer {index} ({type(layer).__name__})", stream_seed(job.job.seed, 0, 0, 0, index)
        trial, parameters = Trial(layer, name, False, False, forwards), _bits_of(layer)
        before = trial.run(x, seed, backward=False)
        inputs = [_evaluated(forwards, layer, name, each) for each in inputs]
        if written := [key for key, bits in _bits_of(layer).items() if parameters.get(key) != bits]:
            what = f"{name} changes its parameter {written[0]} in an evaluation"
            raise JobError(what, "evaluate", "leave parameters as they are: what eval() merges belongs into an export")
        if trial.run(x, seed, backward=False).bits != before.bits:
            what = f"{name} computes something else in training once it was evaluated"
            raise JobError(what, "evaluate", "let train() undo what eval() does, and keep nothing else from a forward")
        x = before.output
    measures = Measures(job, source.loss)
    for held, output in zip(microbatches, inputs, strict=True):
        try:
            measures.of(held.pipeline, held.number, output, held.target)
        except JobError:
            raise
        except RAISED as error:
            what = f"the loss raised {described(error)} in an evaluation"
            raise JobError(what, "evaluate.dataset", "let it take what evaluate.dataset gives") from error


@torch.no_grad()
def _evaluated(forwards: Forwards, layer: nn.Module, name: str, x: Pytree) -> Pytree:
    try:
        with evaluation_mode(layer):
            return between_layers(forwards.once(layer, mapped(copy_of, x)))
    except RAISED as error:
        what = f"{name} raised {described(error)} in an evaluation"
        mend = "let it take what evaluate.dataset gives, in evaluation mode"
        raise JobError(what, "evaluate.dataset", mend) from error


def _bits_of(layer: nn.Module) -> dict[str, str]:
    return {name: digest_of(parameter) for name, parameter in layer.named_parameters()}
