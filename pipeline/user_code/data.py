"""Samples: which ones a microbatch holds, as a pure function, so that any node can take them again."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, Literal

import torch
from torch.utils.data import default_collate

from culm.pipeline.bookmark import Bookmark
from culm.pipeline.errors import JobError
from culm.pipeline.job import Job
from culm.pipeline.tensors.as_sent import samples_as_sent
from culm.pipeline.tensors.pytrees import Pytree
from culm.pipeline.user_code.devices import settle
from culm.pipeline.user_code.forwards import cast_inputs
from culm.pipeline.user_code.imports import RAISED, called, described, load_callable, note
from culm.pipeline.user_code.iterable import check_iterable, is_iterable, reader_of
from culm.pipeline.user_code.permutation import place_of
from culm.pipeline.user_code.streams import epoch_seed, sample_seed, seed_all

MOST_NAMED = 5  # keys, in a refusal
MOST_IN_MEMORY = 1 << 24  # samples whose order is kept: 128 MiB an epoch

Section = Literal["data", "evaluate"]  # of the job file, that names a dataset


def sections_of(job: Job) -> tuple[Section, ...]:
    """Those that name one in this job."""
    return ("data",) if job.evaluate is None else ("data", "evaluate")


def name_of(job: Job, section: Section) -> str:
    """The callable that makes the section's dataset."""
    return _asked(job, section)[0]


def _asked(job: Job, section: Section) -> tuple[str, dict[str, Any]]:
    if section == "data":
        return job.data.dataset, job.data.args
    assert job.evaluate is not None, "the job evaluates nothing"
    return job.evaluate.dataset, job.evaluate.args


def dataset_of(job: Job, section: Section = "data") -> Any:
    """The section's dataset, made under the job's seed: map-style, or of [data] iterable. Raises JobError."""
    name, args = _asked(job, section)
    where = f"{section}.dataset"
    make = load_callable(name, where)
    seed_all(job.job.seed)
    try:
        made = called(make, deepcopy(args), where)  # it is made more than once, and may write into them
    except JobError as error:  # of a dataset of Culm's own, which knows of [data] alone
        raise JobError(error.what, error.where.replace("data.", f"{section}.", 1), error.mend) from error
    settle(job)
    if section == "data" and is_iterable(made):
        check_iterable(job, made)
        return made
    mend = "return a map-style Dataset with __len__ and __getitem__"
    try:
        length = len(made) if hasattr(made, "__getitem__") else 0
    except RAISED as error:
        raise JobError(f"the length of the dataset raised {described(error)}", where, mend) from error
    if length == 0:
        raise JobError(f"{name!r} returns no dataset with samples", where, mend)
    if section == "data" and job.data.microbatch > length:
        what = f"a microbatch has {job.data.microbatch} samples, and the whole dataset has {length}"
        raise JobError(what, "data.microbatch", f"set it to {length} or less")
    if section == "evaluate" and job.evaluations.samples > length:
        what = f"{job.evaluations.samples} samples are to be evaluated, and the whole dataset has {length}"
        raise JobError(what, "evaluate.samples", f"set it to {length} or less")
    return made


def microbatches_of(
    job: Job,
    section: Section,
    dataset: Any,
    known: Callable[[int], Bookmark | None] = lambda version: None,
    told: str = "",
) -> "AnyMicrobatches":
    """The microbatches of one of the job's datasets.

    ``known``: bookmarks, as ``Reader`` asks for them; ``told``: what the node tells of the dataset's samples.
    """
    if section == "evaluate":
        return EvaluatedMicrobatches(job, dataset)
    return IterableMicrobatches(job, known, told) if is_iterable(dataset) else Microbatches(job, dataset)


def _collate_of(job: Job) -> Callable[[list[Any]], tuple[Pytree, Pytree]]:
    if not job.data.collate:
        return _stacked
    where, collate = f"data.collate, {job.data.collate}", load_callable(job.data.collate, "data.collate")

    def pair(samples: list[Any]) -> tuple[Pytree, Pytree]:
        found = collate(samples)
        mend = "return a pair (input, target); the input may be a dict, as in ({'tokens': x, 'mask': m}, labels)"
        _refuse_no_pair(found, "it returned", where, mend)
        return found  # type: ignore[no-any-return]

    return pair


def _stacked(samples: list[Any]) -> tuple[Pytree, Pytree]:
    mend = "let every item be a pair (input, target), of which the input may be a dict, or name a data.collate"
    _refuse_no_pair(samples[0], "an item of the dataset is", "data.dataset", mend)
    return default_collate(samples)  # type: ignore[no-any-return]


def _refuse_no_pair(found: Any, what: str, where: str, mend: str) -> None:
    if isinstance(found, Mapping):  # which would be unpacked into its keys
        raise JobError(f"{what} a dict with the keys {', '.join(map(str, list(found)[:MOST_NAMED]))}", where, mend)
    if isinstance(found, list | tuple) and len(found) != 2:
        raise JobError(f"{what} {len(found)} parts", where, mend)


def _sample(dataset: Any, index: int) -> Any:
    try:
        return dataset[index]
    except RAISED as error:
        note(error, f"sample {index}")
        raise


class EvaluatedMicrobatches:
    """Those of an evaluation, which are the same ones each time. Random numbers are drawn alike, too."""

    def __init__(self, job: Job, dataset: Any) -> None:
        self._job = job
        self._dataset = dataset
        self._collate = _collate_of(job)

    def microbatch(self, step: int, pipeline: int, index: int) -> tuple[Pytree, Pytree]:
        """As ``Microbatches.microbatch``, whatever the step. The last one may have fewer samples."""
        evaluations = self._job.evaluations
        # A microbatch that counts nothing has to hold something all the same.
        samples = evaluations.samples_of(pipeline, index) or evaluations.samples_of(0, 0)
        # Step 0 evaluates nothing, and trains on the microbatches before these.
        seed_all(sample_seed(self._job.job.seed, 0, pipeline, self._job.pipeline.microbatches + index))
        inputs, targets = self._collate([_sample(self._dataset, i) for i in samples])
        return samples_as_sent(cast_inputs(self._job, inputs)), samples_as_sent(targets)


class IterableMicrobatches:
    """Those of an iterable dataset. Step t takes the next samples that it gives, pipeline by pipeline."""

    def __init__(self, job: Job, known: Callable[[int], Bookmark | None], told: str) -> None:
        self._job = job
        self._collate = _collate_of(job)
        # Opened by the reader alone: of one that was read before nobody knows where it is.
        self._reader = reader_of(job, lambda: dataset_of(job), known, told=told)

    def microbatch(self, step: int, pipeline: int, index: int) -> tuple[Pytree, Pytree]:
        """As ``Microbatches.microbatch``."""
        samples = self._reader.microbatch(step, pipeline * self._job.pipeline.microbatches + index)
        seed_all(sample_seed(self._job.job.seed, step, pipeline, index))  # also where the samples were here already
        inputs, targets = self._collate(samples)
        return samples_as_sent(cast_inputs(self._job, inputs)), samples_as_sent(targets)

    def take_bookmark(self) -> Bookmark | None:
        """The one that reading has come to since the last call."""
        return self._reader.take_bookmark()


class Microbatches:
    """The microbatches of a job. Step t takes the next samples of the epoch's permutation, pipeline by pipeline."""

    def __init__(self, job: Job, dataset: Any, draws: int | None = None) -> None:
        """``draws``: the seed of what samples draw, if it is not the job's. Their order is the same with any."""
        self._job = job
        self._dataset = dataset
        self._length = len(dataset)
        self._seed = job.job.seed
        self._draws = self._seed if draws is None else draws
        self._collate = _collate_of(job)
        self._shuffle = job.data.shuffle
        self._size = job.data.microbatch
        self._microbatches = job.pipeline.microbatches
        self._per_step = job.samples_per_step
        # Epoch -> its order: the newest two, since a microbatch may begin in one epoch and end in the next. No cache
        # around a method: it would hold this object, and with it a dataset that nobody uses any more.
        self._orders: dict[int, torch.Tensor] = {}

    def microbatch(self, step: int, pipeline: int, index: int) -> tuple[Pytree, Pytree]:
        """``(input, target)``, samples stacked along the first dimension, or as the job's ``collate`` gives them."""
        seed_all(sample_seed(self._draws, step, pipeline, index))
        first = step * self._per_step + (pipeline * self._microbatches + index) * self._size
        inputs, targets = self._collate([_sample(self._dataset, self._sample(first + i)) for i in range(self._size)])
        return samples_as_sent(cast_inputs(self._job, inputs)), samples_as_sent(targets)

    def _sample(self, position: int) -> int:
        epoch, place = divmod(position, self._length)
        if not self._shuffle:
            return place
        if self._length > MOST_IN_MEMORY:
            return place_of(place, self._length, epoch_seed(self._seed, epoch))
        return int(self._order(epoch)[place])

    def _order(self, epoch: int) -> torch.Tensor:
        if epoch not in self._orders:
            generator = torch.Generator().manual_seed(epoch_seed(self._seed, epoch))
            newest = list(self._orders.items())[-1:]
            self._orders = {**dict(newest), epoch: torch.randperm(self._length, generator=generator)}
        return self._orders[epoch]


AnyMicrobatches = Microbatches | IterableMicrobatches | EvaluatedMicrobatches
