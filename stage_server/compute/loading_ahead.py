"""Worker processes that take samples from the dataset before they are wanted, beside the compute thread."""

# The node says what its next forwards will take, in order (``want``), and takes it when a forward runs (``take``). A
# worker seeds all generators for each microbatch, as the node does itself, so it does not matter who loads what. A
# dataset is opened in each worker, and compared with what this node told of it.
#
#     node                                                  worker
#     want(2, 3, 4)    ─▶ tasks of the pool ──────────────▶ microbatch 2, as bytes
#     take(2)          ◀─ waits, if it is not here yet ◀──── done
#
# At most ``AHEAD`` microbatches a worker are under way or here. What a plan has taken away is dropped.
#
# A worker ends when its node does, however that ends: it holds one end of a pipe, and the node the other.

import logging
import os
import pickle
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import torch

from culm.pipeline.errors import JobError
from culm.pipeline.job import Job, job_to_toml, parse_job
from culm.pipeline.tensors.pytrees import Pytree
from culm.pipeline.user_code.data import Microbatches, dataset_of
from culm.pipeline.user_code.imports import RAISED, described
from culm.stage_server.compute.loading import Untold, opened, patiently
from culm.stage_server.worker.work import Load

log = logging.getLogger("culm.compute")

AHEAD = 2  # microbatches for each worker: one that it loads, and one that is here
BROKEN_MOST = 3  # times in a row that workers may end by themselves, as where memory is short

Samples = tuple[Pytree, Pytree]


class LoadingAhead:
    """Of one node. One thread calls it at a time."""

    def __init__(self, job: Job, told: Callable[[], str | None]) -> None:
        """``told``: gives what this node told of its dataset (``loading.samples_told``)."""
        self._job = job
        self._told = told
        self._tasks: dict[Load, Future[bytes]] = {}
        self._pool: ProcessPoolExecutor | None = None
        self._lifeline: Connection | None = None
        self._broken = 0

    def want(self, loads: Iterable[Load]) -> None:
        """What the node will take next, in order. Others that were wanted before are dropped."""
        wanted = [load for load, _ in zip(loads, range(AHEAD * self._job.data.workers), strict=False)]
        for load in self._tasks.keys() - set(wanted):
            self._tasks.pop(load).cancel()
        for load in wanted:
            if load not in self._tasks:
                self._tasks[load] = self._begin(load)

    def take(self, load: Load) -> Samples:
        """The microbatch; waits for it. Raises what the dataset raises, or in its place a JobError that tells it."""
        while True:
            task = self._tasks.pop(load, None) or self._begin(load)
            try:
                found = task.result()
            except BrokenProcessPool as error:
                self._begin_anew(error)
                continue
            self._broken = 0
            return _given(*pickle.loads(found))  # of a process of this node's own

    def close(self) -> None:
        """Ends the workers, whatever they do."""
        if self._lifeline is not None:
            self._lifeline.close()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        self._pool = self._lifeline = None

    def _begin(self, load: Load) -> "Future[bytes]":
        if self._pool is None:
            # Not forked: this process has threads, and may have a card.
            context = get_context("spawn")
            held, self._lifeline = context.Pipe(duplex=False)
            begin = partial(_begin_worker, held, job_to_toml(self._job), self._told())
            self._pool = ProcessPoolExecutor(self._job.data.workers, context, begin)
        try:
            return self._pool.submit(_load, *load)
        except BrokenProcessPool as error:
            self._begin_anew(error)
            return self._begin(load)

    def _begin_anew(self, error: BrokenProcessPool) -> None:
        self._broken += 1
        if self._broken > BROKEN_MOST:
            what = f"processes that load samples end by themselves: {error}"
            mend = "see whether this machine has memory for them, or set data.workers to 0"
            raise JobError(what, f"data.dataset, {self._job.data.dataset}", mend) from error
        log.warning("a process that loads samples has ended by itself: all of them begin anew")
        self._tasks.clear()
        self.close()


# ---- in a worker ----------------------------------------------------------------------------------------------------

_microbatches: Callable[[], Microbatches]


def _begin_worker(held: Connection, job_toml: str, told: str | None) -> None:
    """``held``: ends this process when the other end goes."""
    threading.Thread(target=_end_with, args=(held,), daemon=True).start()
    torch.set_num_threads(1)
    job = parse_job(job_toml)
    made: list[Microbatches] = []

    def microbatches() -> Microbatches:
        if not made:
            made.append(Microbatches(job, opened(job, partial(dataset_of, job), told)))
        return made[0]

    global _microbatches
    _microbatches = microbatches


def _end_with(held: Connection) -> None:
    with suppress(EOFError, OSError):
        held.recv_bytes()  # nothing is ever sent
    os._exit(0)


def _load(step: int, pipeline: int, microbatch: int) -> bytes:
    """The samples, or what was raised, as bytes: else tensors of a worker that has ended could not be read."""
    given: Any
    try:
        take = partial(_microbatches().microbatch, step, pipeline, microbatch)
        kind, given = "samples", patiently(take, f"microbatch {microbatch}")
    except OSError as error:
        kind, given = "storage", (error.errno, str(error))
    except Untold as error:
        kind, given = "untold", (str(error),)
    except JobError as error:
        kind, given = "job", (error.what, error.where, error.mend)
    except RAISED as error:
        what = f"loading microbatch {microbatch} raised {described(error)}"
        kind, given = "job", (what, "data.dataset", "correct the dataset, or what it reads")
    return pickle.dumps((kind, given))


def _given(kind: str, given: Any) -> Samples:
    """What came from a worker: the samples, or what was raised there."""
    errors: dict[str, Callable[..., Exception]] = {"storage": OSError, "untold": Untold, "job": JobError}
    if kind in errors:
        raise errors[kind](*given)
    samples: Samples = given
    return samples
