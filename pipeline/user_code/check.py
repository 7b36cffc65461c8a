"""Tries a job's model on two microbatches, so that a mistake in it shows before anything starts."""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from culm.pipeline.errors import JobError
from culm.pipeline.job import Job
from culm.pipeline.tensors.bits import digest_of
from culm.pipeline.tensors.layout import is_plain
from culm.pipeline.tensors.pytrees import NotAPytree, Pytree, refuse_unsendable, tensors_in
from culm.pipeline.user_code.compiling import compiler_in_words, refuse_others, refuse_settings
from culm.pipeline.user_code.data import Microbatches, Section, dataset_of, microbatches_of, name_of
from culm.pipeline.user_code.devices import device_of
from culm.pipeline.user_code.evaluating import Held, check_evaluation
from culm.pipeline.user_code.graph.check import check_graph
from culm.pipeline.user_code.groups import refuse_unknown
from culm.pipeline.user_code.imports import RAISED, described
from culm.pipeline.user_code.iterable import check_reading_on, is_iterable
from culm.pipeline.user_code.model import ModelSource
from culm.pipeline.user_code.optimizers import OWN
from culm.pipeline.user_code.refusals import DENSE
from culm.pipeline.user_code.repeats import Sample, ask_again
from culm.pipeline.user_code.samples import samples_of
from culm.pipeline.user_code.shifts import refuse_copying, refuse_shift

Key = tuple[int, int, int]  # of a microbatch: its step, pipeline and number


def check_job(job: Job) -> None:
    """Runs two microbatches through every layer and the loss, each more than once. Raises JobError naming the layer."""
    device_of(job)
    source = ModelSource(job)
    source.outlines()
    if job.train.compile:
        refuse_settings()
        compiler_in_words()  # a machine without a compiler shows here
    keys = [(0, 0, 0), (0, 0, 1) if job.pipeline.microbatches > 1 else (1, 0, 0)]
    found = _microbatches(job, "data", keys)
    refuse_copying(job)
    for x, target in found:
        refuse_shift(job, "data", x, target)
    a, b = (Sample(key, x, target) for key, (x, target) in zip(keys, found, strict=True))
    if job.graph is not None:
        check_graph(source, job, source.dataset())
    else:
        with _inputs_named(job, "data", (a.x, b.x)):
            ask_again(source, job, a, b)
    if job.evaluate is not None:
        keys = [(0, 0, 0), (0, *job.evaluations.last)]
        held = zip(keys, _microbatches(job, "evaluate", keys), strict=True)
        microbatches = [Held(pipeline, number, x, target) for (_, pipeline, number), (x, target) in held]
        for each in microbatches:
            refuse_shift(job, "evaluate", each.x, each.target)
        with _inputs_named(job, "evaluate", [each.x for each in microbatches]):
            check_evaluation(source, job, a.x, microbatches)
    refuse_others()  # the last call of the loss or a metric, too
    _check_optimizer(source, job)


@contextmanager
def _inputs_named(job: Job, section: Section, inputs: Sequence[Pytree]) -> Iterator[None]:
    """Beside an IndexError of a layer or the loss, says which whole numbers it was given, and from which files."""
    try:
        yield
    except JobError as error:
        found = [tensor for x in inputs for tensor in tensors_in(x)]
        numbers = [
            tensor for tensor in found if tensor.numel() and not (tensor.is_floating_point() or tensor.is_complex())
        ]
        if not isinstance(error.__cause__, IndexError) or not numbers:
            raise
        least, most = min(int(tensor.min()) for tensor in numbers), max(int(tensor.max()) for tensor in numbers)
        read_as = getattr(dataset_of(job, section), "read_as", "")
        whence = f" (from {read_as})" if isinstance(read_as, str) and read_as else ""
        what = f"{error.what}; the input has whole numbers from {least} to {most}{whence}"
        mend = "make the vocabulary larger than the largest one, or correct the data"
        mend += ", or the dtype it is read as" if whence else ""
        mend += "; if it is larger, a table of positions may be shorter than the input"
        raise JobError(what, error.where, mend) from error


def _microbatches(job: Job, section: Section, keys: Sequence[Key]) -> list[tuple[Pytree, Pytree]]:
    """Every one has to come out the same whenever it is loaded, and wherever the dataset was made. Raises JobError."""
    dataset, where = dataset_of(job, section), f"{section}.dataset, {name_of(job, section)}"
    first = _microbatch(job, section, dataset, keys[0])
    as_given = _bits_of(first)
    found = [first, *(_microbatch(job, section, dataset, key) for key in keys[1:])]
    if _bits_of(first) != as_given:
        what = "the dataset or data.collate fills the memory of one microbatch with the next one"
        raise JobError(what, where, "return fresh tensors each time, as by .clone(): nodes load ahead")
    once, again = _samples(job, section, dataset), _samples(job, section, dataset)
    mend = "draw from torch's, Python's or numpy's global generator, which Culm seeds"
    if once != again:
        what = f"the dataset gives other samples when it is asked again ({again}, not {once})"
        raise JobError(what, where, f"{mend}, and let no sample change another")
    anew = section == "data" and not is_iterable(dataset)
    drawn = _drawn_anew(job, dataset, keys[0]) if anew else []
    del dataset  # two of them may be too large for this machine
    other = dataset_of(job, section)
    keeps = anew and drawn != _drawn_anew(job, other, keys[0])
    if keeps:  # or it gives other samples each time that it is made: as the next one shows, which has kept nothing
        del other
        other = dataset_of(job, section)
    if once != (told := _samples(job, section, other)):
        what = f"the dataset gives other samples each time that it is made ({told}, not {once})"
        raise JobError(what, where, f"{mend}, and sort what a folder or a set lists")
    if keeps:
        what = "the dataset keeps what it has drawn for a sample, and gives it again in later epochs"
        mend = "keep what a sample is made from, and draw each time: a node that takes over has kept nothing"
        raise JobError(what, where, mend)
    if is_iterable(other):
        check_reading_on(job, lambda: dataset_of(job))
    return found


def _drawn_anew(job: Job, dataset: Any, key: Key) -> list[str]:
    """Of a microbatch, as if a later epoch drew for its samples."""
    try:
        return _bits_of(Microbatches(job, dataset, draws=job.job.seed + 1).microbatch(*key))
    except RAISED as error:  # the run may never draw that
        return [type(error).__name__]


def _bits_of(microbatch: tuple[Pytree, Pytree]) -> list[str]:
    return [digest_of(tensor) for part in microbatch for tensor in tensors_in(part) if is_plain(tensor)]


def _samples(job: Job, section: Section, dataset: Any) -> str:
    """Raises JobError where a sample cannot be read at present, wherever it is in the dataset."""
    try:
        return samples_of(job, section, dataset)
    except RAISED as error:
        what = f"the dataset could not load one of its samples: {described(error)}"
        mend = "see that its storage answers, and that every item is an (input, target) pair of tensors"
        raise JobError(what, f"{section}.dataset, {name_of(job, section)}", mend) from error


def _microbatch(job: Job, section: Section, dataset: Any, key: Key) -> tuple[Pytree, Pytree]:
    """Raises JobError where it is not a pair of pytrees."""
    mend = "let every item be an (input, target) pair of tensors, all alike in shape, or name a data.collate"
    try:
        found = microbatches_of(job, section, dataset).microbatch(*key)
    except JobError:
        raise
    except RAISED as error:
        what = f"the dataset gives no microbatch of (input, target): {described(error)}"
        raise JobError(what, f"{section}.dataset", mend) from error
    for part, name in zip(found, ("input", "target"), strict=True):
        try:
            tensors = tensors_in(part)
            refuse_unsendable(part)
        except NotAPytree as error:
            raise JobError(
                f"a sample's {name} is or holds {error}, not a tensor", f"{section}.dataset", mend
            ) from error
        if not tensors and name == "input":
            raise JobError("a sample's input holds no tensor", f"{section}.dataset", mend)
        if name == "target" and not all(map(is_plain, tensors)):  # it goes from stage to stage
            raise JobError("a sample's target is sparse, nested or quantized", f"{section}.dataset", DENSE)
    return found


def _check_optimizer(source: ModelSource, job: Job) -> None:
    """Takes a step on nothing, as every node does before it joins."""
    for name in source.optimizers():
        shapes = [([min(size, 4) for size in p.shape], p.dtype) for p in source.parameters_like(name)]
        parameters = [torch.zeros(shape, dtype=dtype, requires_grad=True) for shape, dtype in shapes]
        optimizer = source.alone(name, parameters)
        options = source.groups().options_for(name)
        refuse_unknown(options, optimizer)
        for group in range(len(options) if name != OWN else 0):
            source.alone(name, parameters, group)  # it may refuse a value
        where, called = ("train.groups", name) if name != OWN else ("train.optimizer", job.train.optimizer)
        closure = inspect.signature(optimizer.step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            what = f"the step of {called} wants a closure that computes the loss again"
            raise JobError(what, where, "use an optimizer that needs gradients alone")
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        try:
            optimizer.step()
        except RAISED as error:
            what = f"the first step of {called} raised {described(error)}"
            raise JobError(what, where, "correct the optimizer or its arguments, or use another") from error
    if (schedule := source.schedule()) is not None:
        schedule.try_all()
