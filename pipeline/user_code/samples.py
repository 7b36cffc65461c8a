"""What a dataset gives, in a few words: how many samples, and a hash of some microbatches of its first epoch.

Any node may have to load the samples of a step, from a dataset that it opened itself. So all of them have to give the
same: the nodes compare these words (rule 23), and so does a job's check before anything starts.
"""

import hashlib
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from culm.pipeline.checkpoints.digest import hash_layer
from culm.pipeline.identity_parts import samples_in_words
from culm.pipeline.job import Job
from culm.pipeline.tensors.pytrees import as_text, parts_of
from culm.pipeline.user_code.data import AnyMicrobatches, EvaluatedMicrobatches, Section, microbatches_of
from culm.pipeline.user_code.imports import RAISED
from culm.pipeline.user_code.iterable import is_iterable

# The first microbatch, the last and those between: where the first ones are alike, another order shows later. They do
# not depend on the number of steps, since a run may be resumed with more. Of an iterable dataset the first ones.
LOADED = 3
# What another attempt may mend is an OSError, but for these.
LASTING = (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)


def samples_of(
    job: Job, section: Section, dataset: Any, load: Callable[[Callable[[], str]], str] = lambda ask: ask()
) -> str:
    """``1797 samples, 0123456789abcdef``. Random numbers are drawn from the streams from which a step draws them.

    ``section``: whose dataset it is; of an evaluation's the samples that are evaluated count.
    ``load``: calls what it is given, which loads one microbatch; it may call again where that raises.
    A dataset that knows a hash of all that it reads has it as its ``contents``; of an iterable one nobody knows how
    many samples it has.
    Raises what the dataset raises, but for a sample further on that no attempt would give: the run may never need it.
    """
    length, last = _extent(job, section, dataset)
    data = microbatches_of(job, section, dataset)
    contents = getattr(dataset, "contents", "")  # something else of the user's may have this name
    digest = hashlib.sha256((contents if isinstance(contents, str) else "").encode())
    for place in sorted({i * last // (LOADED - 1) for i in range(LOADED)}):
        try:
            digest.update(load(partial(_hash, job, data, place)).encode())
        except RAISED as error:
            if place == 0 or (isinstance(error, OSError) and not isinstance(error, LASTING)):
                raise
            digest.update(type(error).__name__.encode())
    return samples_in_words(length, digest.hexdigest()[:16])


def _extent(job: Job, section: Section, dataset: Any) -> tuple[int | None, int]:
    """How many samples it has, if that is known, and the place of the last microbatch to be looked at."""
    if section == "evaluate":
        samples = job.evaluations.samples
        return samples, -(-samples // job.evaluations.size) - 1
    if is_iterable(dataset):
        return None, LOADED - 1
    return len(dataset), len(dataset) // job.data.microbatch - 1


def _hash(job: Job, data: AnyMicrobatches, place: int) -> str:
    """Of the microbatch at this place of the epoch, or of the evaluation: dtypes, shapes and values."""
    trained = not isinstance(data, EvaluatedMicrobatches)
    of_step, index = divmod(place, job.pipeline.microbatches if trained else job.evaluations.microbatches)
    step, pipeline = divmod(of_step, job.pipeline.pipelines)
    found: dict[str, torch.Tensor] = {}
    kinds: list[str] = []
    for name, tree in zip(("input", "target"), data.microbatch(step, pipeline, index), strict=True):
        tensors, structure = parts_of(tree)
        found |= {name if structure == 0 else f"{name}.{i}": tensor for i, tensor in enumerate(tensors)}
        kinds += [f"{tensor.dtype} {tuple(tensor.shape)}" for tensor in tensors]
        kinds += [as_text(structure)] if structure != 0 else []
    return f"{kinds} {hash_layer(place, found)}"
