"""Loading samples with patience, and what this node tells of its dataset before it takes part.

A dataset is opened twice on a node that loads samples: at the start, to tell what it gives, and when the node has to
load for the first time. In between it is let go of, since most nodes load nothing, and it may take much memory. What
it gives then is compared with what was told: the files may be other ones by now, or a dataset may draw its order anew.

A storage may be away while the node starts, and be back when the node has to load. Nobody knows then whether the node
loads what the others do. So its process joins anew: it tells its samples before it takes part, as every node does.
"""

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

from culm.pipeline.errors import JobError
from culm.pipeline.job import Job
from culm.pipeline.user_code.imports import RAISED, described
from culm.pipeline.user_code.model import ModelSource
from culm.pipeline.user_code.samples import LASTING, samples_of

log = logging.getLogger("culm.compute")

PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0)  # seconds between two attempts to load samples

T = TypeVar("T")
Around = Callable[[], AbstractContextManager[None]]


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


def samples_told(job: Job, source: ModelSource) -> str | None:
    """What the dataset gives on this node; nothing where it gives none, which matters only if the node has to load.

    None where nobody compares it: the dataset is not opened then.
    """
    if job.job.hardware == "any":  # machines of other kinds may decode or scale to other bits
        return None
    try:
        return _asked(job, patiently(source.dataset, "the dataset"))
    except RAISED as error:
        why = str(error) if isinstance(error, JobError) else described(error)
        log.warning("this node could not load samples, and tells none: it joins anew if it has to load: %s", why)
        return ""


def opened(job: Job, make: Callable[[], Any], told: str | None, around: Around = nullcontext) -> Any:
    """The dataset, to load from. ``around``: what is around every piece of loading, each of which may take long.

    Raises Untold, and JobError unless the dataset gives what this node told of it when it started.
    """
    with around():
        dataset = patiently(make, "the dataset")
    if told is None:
        return dataset
    now = _asked(job, dataset, around)
    if not told:
        raise Untold("its dataset gives samples now, and gave none when this node started: nobody has compared them")
    if now != told:
        what = f"the dataset gives other samples ({now}) than when this node started ({told})"
        mend = "leave its files as they are, draw from the generators that Culm seeds, and sort what a folder lists"
        raise JobError(what, f"data.dataset, {job.data.dataset}", mend)
    return dataset


def _asked(job: Job, dataset: Any, around: Around = nullcontext) -> str:
    def load(microbatch: Callable[[], str]) -> str:
        with around():
            return patiently(microbatch, "samples to compare")

    return samples_of(job, dataset, load)
