"""Iterable datasets, such as torchdata's StatefulDataLoader and Hugging Face's IterableDataset, as microbatches."""

import hashlib
import io
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset

from culm.pipeline.bookmark import MOST_BYTES, Bookmark
from culm.pipeline.errors import JobError
from culm.pipeline.job import Job
from culm.pipeline.reading import EXACT, Reader
from culm.pipeline.tensors.bits import digest_of
from culm.pipeline.tensors.layout import is_plain
from culm.pipeline.user_code.imports import RAISED, described
from culm.pipeline.user_code.streams import sample_seed, seed_all

log = logging.getLogger("culm.data")

WHERE = "data.dataset"
TRIED = 5  # microbatches from whose beginnings the dataset is read on

Make = Callable[[], Any]  # opens the dataset at its beginning


def is_iterable(made: Any) -> bool:
    """Whether a dataset is read in its order. One of both kinds counts as map-style."""
    return isinstance(made, IterableDataset) or (hasattr(made, "__iter__") and not hasattr(made, "__getitem__"))


class OpenedDataset:
    """The dataset as its reader goes through it, epoch by epoch. A microbatch may begin in one and end in the next."""

    def __init__(self, job: Job, made: Any, state: bytes) -> None:
        self._job = job
        self._made = made
        self._epoch = 0
        self._given = 0  # samples since it was opened, or since the epoch began
        self._goes_on = bool(state)  # the epoch began before it was opened
        if state:
            self._epoch, inner = _unpacked(state)
            self._set_epoch()
            made.load_state_dict(inner)
        self._iterator: Iterator[Any] | None = None

    def read(self, step: int, place: int) -> list[Any]:
        """The next microbatch's samples. What they draw depends on which microbatch it is, and on nothing before."""
        pipeline, index = divmod(place, self._job.pipeline.microbatches)
        seed_all(sample_seed(self._job.job.seed, step, pipeline, index))
        return [self._sample() for _ in range(self._job.data.microbatch)]

    def digest(self, samples: list[Any]) -> bytes:
        return "".join(map(_digest, samples)).encode()

    def state(self) -> bytes:
        return _packed(self._epoch, self._made.state_dict())

    def _sample(self) -> Any:
        while True:
            if self._iterator is None:
                self._iterator = iter(self._made)
            try:
                found = next(self._iterator)
            except StopIteration:
                self._next_epoch()
                continue
            self._given += 1
            return found

    def _next_epoch(self) -> None:
        if not self._given and not self._goes_on:
            raise JobError(f"epoch {self._epoch} of the dataset has no sample", WHERE, "let each iter() begin anew")
        self._epoch += 1
        self._given, self._goes_on, self._iterator = 0, False, None
        self._set_epoch()

    def _set_epoch(self) -> None:
        # Of torchdata's loader its dataset has one, such as Hugging Face's, which begins anew by the epoch's number.
        having: tuple[Any, ...] = (self._made, getattr(self._made, "dataset", None))
        for made in having:
            if self._epoch and hasattr(made, "set_epoch"):
                made.set_epoch(self._epoch)
                return


def reader_of(
    job: Job, make: Make, known: Callable[[int], Bookmark | None], microbatches: int | None = None, told: str = ""
) -> Reader[list[Any]]:
    """Of the job's dataset. ``microbatches``: from one bookmark to the next, if it is no step's.

    ``told``: what the node tells of the dataset's samples. A bookmark of other samples, as --allow data leaves them
    behind, is not used: the files may be other ones under the same names.
    """
    count, of = microbatches or job.pipeline.pipelines * job.pipeline.microbatches, _reading_of(job, told)

    def usable(step: int) -> Bookmark | None:
        found = known(step)
        if found is not None and found.of != of:
            log.warning("the job or its data have changed, so all samples of the steps before are read once more")
            return None
        return found

    return Reader(lambda state: OpenedDataset(job, make(), state), count, usable, of)


def _reading_of(job: Job, told: str) -> str:
    """A hash of what makes the samples of a step, as far as the job file and the first samples say it."""
    data, pipeline = job.data, job.pipeline
    said = [job.job.seed, data.dataset, data.args, data.microbatch, pipeline.pipelines, pipeline.microbatches, told]
    return hashlib.blake2b(repr(said).encode(), digest_size=8).hexdigest()


def check_iterable(job: Job, made: Any) -> None:
    """Raises JobError for what no node can read on where another has stopped."""
    if not (hasattr(made, "state_dict") and hasattr(made, "load_state_dict")):
        what = "the dataset is iterable, and has no state_dict and load_state_dict to read it on from where it was"
        mend = "use Hugging Face's IterableDataset or torchdata's StatefulDataLoader, write the two, or return a "
        raise JobError(what, WHERE, f"{mend}map-style Dataset")
    if job.data.shuffle:
        what = "the dataset is iterable, so its samples come in its own order"
        raise JobError(what, "data.shuffle", "set it to false, and let the dataset shuffle its files or shards")
    if job.data.workers > 1:
        what = f"the dataset is iterable, and would be read by {job.data.workers} processes, each of which reads all"
        raise JobError(what, "data.workers", "set it to 1, and give the dataset workers of its own")


def check_reading_on(job: Job, make: Make) -> None:
    """Reads some microbatches, and each of them once more from the state before it. Raises JobError if they differ."""
    whole = reader_of(job, make, lambda version: None, microbatches=1)
    bookmarks = [_read(whole, step) for step in range(TRIED)]
    for bookmark in bookmarks[1:]:
        again = reader_of(job, make, partial(_given, bookmark), microbatches=1)
        try:
            again.microbatch(bookmark.version, 0)
        except RAISED as error:
            if isinstance(error, JobError):
                raise
            raise JobError(f"the dataset does not go on from its state: {described(error)}", WHERE, EXACT) from error


def _given(bookmark: Bookmark, step: int) -> Bookmark:
    return bookmark


def _read(reader: Reader[list[Any]], step: int) -> Bookmark:
    reader.microbatch(step, 0)
    bookmark = reader.take_bookmark()
    assert bookmark is not None
    return bookmark


def _packed(epoch: int, state: Any) -> bytes:
    """Raises JobError for a state that cannot be told with every commit."""
    file = io.BytesIO()
    torch.save({"epoch": epoch, "state": state}, file)
    found = file.getvalue()
    mend = "let state_dict give numbers, texts, tensors, lists and dicts alone: where to go on, not what was read"
    if len(found) > MOST_BYTES:
        raise JobError(f"the dataset's state has {len(found)} bytes, more than {MOST_BYTES}", WHERE, mend)
    try:
        _unpacked(found)
    except RAISED as error:
        raise JobError(f"the dataset's state cannot be read back: {described(error)}", WHERE, mend) from error
    return found


def _unpacked(state: bytes) -> tuple[int, Any]:
    found = torch.load(io.BytesIO(state), weights_only=True)
    return int(found["epoch"]), found["state"]


def _digest(sample: Any, within: tuple[int, ...] = ()) -> str:
    """In which samples differ. ``within``: the objects that it is a part of, by their ids: one may hold itself."""
    inner = partial(_digest, within=(*within, id(sample)))
    if isinstance(sample, torch.Tensor) and is_plain(sample):
        return digest_of(sample)
    if isinstance(sample, np.ndarray):
        if sample.dtype.hasobject:  # its bytes are addresses
            return f"{sample.shape}{inner(sample.tolist())}"
        return f"{sample.dtype}{sample.shape}{hashlib.sha256(sample.tobytes()).hexdigest()}"
    if isinstance(sample, Mapping):
        return f"{{{''.join(f'{key!r}:{inner(value)},' for key, value in sample.items())}}}"
    if isinstance(sample, Sequence) and not isinstance(sample, str | bytes):
        return f"[{','.join(map(inner, sample))}]"
    if isinstance(sample, set | frozenset):  # in no order that two processes share
        return f"{{{','.join(sorted(map(inner, sample)))}}}"
    if sample is None or isinstance(sample, bool | int | float | str | bytes | np.generic):
        return repr(sample)
    if isinstance(sample, type):
        return sample.__qualname__
    return f"{type(sample).__qualname__}{'' if id(sample) in within else inner(_taken_apart(sample))}"


def _taken_apart(sample: Any) -> Any:
    """What an object consists of, as pickle would have it; None where it holds what no copy can, such as a file."""
    try:
        found = sample.__reduce_ex__(2)
        return found if isinstance(found, str) else [*found[:3], *(list(items or ()) for items in found[3:5])]
    except RAISED:
        return None
