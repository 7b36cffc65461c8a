"""Loading samples with patience, and what this node tells of its dataset before it takes part.

A dataset is opened twice on a node that loads samples: at the start, to tell what it gives, and when the node has to
load for the first time. In between it is let go of, since most nodes load nothing, and it may take much memory. What
it gives then is compared with what was told: the files may be other ones by now, or a dataset may draw its order anew.

A storage may be away while the node starts, and be back when the node has to load. Nobody knows then whether the node
loads what the others do. So its process joins anew: it tells its samples before it takes part, as every node does.
"""

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeVar

from culm.pipeline.bookmark import Bookmark, Known, bookmark_for
from culm.pipeline.checkpoints import bookmark_file
from culm.pipeline.errors import JobError
from culm.pipeline.job import Job
from culm.pipeline.tensors.pytrees import Pytree
from culm.pipeline.user_code.data import (
    AnyMicrobatches,
    IterableMicrobatches,
    Section,
    dataset_of,
    microbatches_of,
    name_of,
    sections_of,
)
from culm.pipeline.user_code.imports import RAISED, described, note
from culm.pipeline.user_code.samples import LASTING, samples_of
from culm.stage_server.worker.work import Load

log = logging.getLogger("culm.compute")

PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0)  # seconds between two attempts to load samples

T = TypeVar("T")
Around = Callable[[], AbstractContextManager[None]]
Samples = tuple[Pytree, Pytree]  # of a microbatch: input and target


def patiently(load: Callable[[], T], what: str) -> T:
    """Asks again for a while: a storage that fails for a moment is no fault of the job, or of this machine."""
    for pause in PAUSES:
        try:
            return load()
        except LASTING:
            raise
        except (OSError, JobError) as error:
            if not _may_pass(error):
                raise
            log.warning("cannot load %s, trying again: %s", what, error)
            time.sleep(pause)
    return load()


def _may_pass(error: OSError | JobError) -> bool:
    cause = error.__cause__ if isinstance(error, JobError) else error  # a dataset's constructor has failed
    return isinstance(cause, OSError) and not isinstance(cause, LASTING)


class Untold(Exception):
    """The dataset gives samples now, and gave none when this node had to tell them."""


# What a node told of its datasets, by section of the job file; of one that gave nothing, nothing. None: nobody compares
# them.
Told = Mapping[Section, str] | None


def samples_told(job: Job) -> Told:
    """What the datasets give on this node; nothing where one gives none, which matters only if the node has to load.

    None where nobody compares it: no dataset is opened then.
    """
    if job.job.hardware == "any":  # machines of other kinds may decode or scale to other bits
        return None
    return {section: _told(job, section) for section in sections_of(job)}


_PARTS: Mapping[Section, str] = {"data": "samples", "evaluate": "evaluation"}


def parts_of(told: Told) -> dict[str, str]:
    """Of the run's identity; without a dataset that gives nothing, or that nobody compares."""
    return {_PARTS[section]: text for section, text in (told or {}).items() if text}


def _told(job: Job, section: Section) -> str:
    try:
        return _asked(job, section, patiently(partial(dataset_of, job, section), "the dataset"))
    except RAISED as error:
        why = str(error) if isinstance(error, JobError) else described(error)
        log.warning("this node could not load samples, and tells none: it joins anew if it has to load: %s", why)
        return ""


class Loading:
    """The job's microbatches. Each dataset is opened when somebody first takes a sample of it."""

    def __init__(self, job: Job, told: Told, around: Around = nullcontext, known: Callable[[], Known] = Known) -> None:
        """``around``: what is around every piece of loading, each of which may take long; ``known``: bookmarks."""
        self._job = job
        self._told = told
        self._around = around
        self._known = known
        self._opened: dict[Section, AnyMicrobatches] = {}

    def load(self, load: Load) -> Samples:
        """Raises what the dataset raises; Untold, and JobError unless it gives what this node told of it."""
        section: Section = "evaluate" if load.evaluated else "data"
        take = partial(self._of(section).microbatch, load.step, load.pipeline, load.microbatch)
        with self._around():
            try:
                return patiently(take, f"microbatch {load.microbatch}")
            except RAISED as error:
                note(error, f"{section}.dataset, {name_of(self._job, section)}")
                raise

    def _of(self, section: Section) -> AnyMicrobatches:
        if section not in self._opened:
            told = self._told[section] if self._told is not None else None
            dataset = opened(self._job, section, told, self._around)
            self._opened[section] = microbatches_of(
                self._job,
                section,
                dataset,
                lambda step: bookmark_for(step, self._known(), bookmark_file.read),
                told or "",
            )
        return self._opened[section]

    @property
    def reads_in_order(self) -> bool:
        """Whether the dataset that is trained on is iterable. Opens it."""
        return isinstance(self._of("data"), IterableMicrobatches)

    def take_bookmark(self) -> Bookmark | None:
        """Of an iterable dataset, where a step's samples have all been read since the last call."""
        data = self._opened.get("data")
        return data.take_bookmark() if isinstance(data, IterableMicrobatches) else None


def opened(job: Job, section: Section, told: str | None, around: Around = nullcontext) -> Any:
    """The section's dataset, to load from. ``told``: what this node said of it when it started; None: nothing.

    Raises Untold, and JobError unless the dataset gives that now.
    """
    with around():
        dataset = patiently(partial(dataset_of, job, section), "the dataset")
    if told is None:
        return dataset
    now = _asked(job, section, dataset, around)
    if not told:
        raise Untold("its dataset gives samples now, and gave none when this node started: nobody has compared them")
    if now != told:
        what = f"the dataset gives other samples ({now}) than when this node started ({told})"
        mend = "leave its files as they are, draw from the generators that Culm seeds, and sort what a folder lists"
        raise JobError(what, f"{section}.dataset, {name_of(job, section)}", mend)
    return dataset


def _asked(job: Job, section: Section, dataset: Any, around: Around = nullcontext) -> str:
    def load(microbatch: Callable[[], str]) -> str:
        with around():
            return patiently(microbatch, "samples to compare")

    return samples_of(job, section, dataset, load)
