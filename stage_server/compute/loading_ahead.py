"""Worker processes that take samples from the dataset before they are wanted, beside the compute thread."""

# The node says what its next forwards will take, in order (``want``), and takes it when a forward runs (``take``). Each
# worker has a pipe of its own, and one microbatch at a time:
#
#     node                                          worker
#     want(2, 3, 4)    ── step, pipeline, 2 ──────▶ loads it
#     take(2)          ◀─ samples, or an error ──── ... as bytes, and of an iterable dataset a bookmark
#
# A worker seeds all generators for each microbatch, as the node does itself, so it does not matter who loads what. It
# opens the dataset for itself, and compares it with what this node told of it. At most ``AHEAD`` microbatches a worker
# are under way or here, and what a plan has taken away is dropped. A worker ends when its node does, also where that is
# killed.

import atexit
import logging
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from multiprocessing import connection, get_context, parent_process
from typing import Any

import torch

from culm.pipeline.bookmark import Bookmark, Known
from culm.pipeline.errors import JobError
from culm.pipeline.job import Job, job_to_toml, parse_job
from culm.pipeline.tensors.layout import copy_of
from culm.pipeline.tensors.pytrees import mapped
from culm.pipeline.user_code.devices import settle
from culm.pipeline.user_code.imports import RAISED, described
from culm.stage_server.compute.loading import Loading, Samples, Told, Untold
from culm.stage_server.worker.work import Load

log = logging.getLogger("culm.compute")

AHEAD = 2  # microbatches for each worker: one that it loads, and one that is here
ENDED_MOST = 3  # times in a row that workers may end by themselves, as where memory is short


class LoadingAhead:
    """Of one node. One thread calls it."""

    def __init__(self, job: Job, told: Callable[[], Told], known: Callable[[], Known] = Known) -> None:
        """``told``: gives what this node told of its datasets (``loading.samples_told``); ``known``: bookmarks."""
        self._job = job
        self._told = told
        self._known = known
        self._bookmark: Bookmark | None = None
        self._workers: list[_Worker] = []
        self._wanted: list[Load] = []  # nobody has begun with them yet
        self._here: dict[Load, bytes] = {}
        self._ended = 0  # workers that ended by themselves, since a microbatch came

    def want(self, loads: Iterable[Load]) -> None:
        """What the node will take next, in order. What was wanted before and is not among them is dropped."""
        wanted = [load for load, _ in zip(loads, range(AHEAD * self._job.data.workers), strict=False)]
        self._gather(0.0)
        self._here = {load: found for load, found in self._here.items() if load in wanted}
        self._wanted = [load for load in wanted if load not in self._here and load not in self._under_way()]
        self._give_out()

    def take(self, load: Load) -> Samples:
        """The microbatch; waits for it. Raises what the dataset raises, or in its place a JobError that tells it."""
        self._gather(0.0)
        if load not in self._here and load not in self._under_way():
            self._wanted = [load, *(other for other in self._wanted if other != load)]
        while load not in self._here:
            self._give_out()
            self._gather(None)
        self._ended = 0
        kind, given, bookmark = pickle.loads(self._here.pop(load))  # of a process of this node's own
        self._bookmark = bookmark or self._bookmark
        return _given(kind, given)

    def take_bookmark(self) -> Bookmark | None:
        """As ``Loading.take_bookmark``."""
        found, self._bookmark = self._bookmark, None
        return found

    def close(self) -> None:
        """Ends the workers, whatever they do."""
        for worker in self._workers:
            worker.end()
        self._workers.clear()

    def _under_way(self) -> set[Load]:
        return {worker.load for worker in self._workers if worker.load is not None}

    def _give_out(self) -> None:
        """Gives workers that have nothing to do what is wanted next."""
        while len(self._workers) < self._job.data.workers:
            self._workers.append(_Worker(self._job, self._told()))
        for worker in self._workers:
            if self._wanted and worker.load is None:
                worker.begin(self._wanted.pop(0), self._known())

    def _gather(self, seconds: float | None) -> None:
        """Takes what workers have loaded. Waits for some of it, ``seconds`` at most, or for as long as it takes."""
        pipes = {worker.pipe: worker for worker in self._workers if worker.load is not None}
        for pipe in connection.wait(list(pipes), seconds) if pipes else ():
            worker = pipes[pipe]  # type: ignore[index]
            load, found = worker.load, worker.finish()
            assert load is not None
            if found is not None:
                self._here[load] = found
            else:
                self._workers.remove(worker)
                self._wanted.insert(0, load)
                self._refuse_or_go_on()

    def _refuse_or_go_on(self) -> None:
        self._ended += 1
        if self._ended > ENDED_MOST:
            what = "processes that load samples end by themselves"
            mend = "see whether this machine has memory for them, or set data.workers to 0"
            raise JobError(what, f"data.dataset, {self._job.data.dataset}", mend)
        log.warning("a process that loads samples has ended by itself; another one takes its place")


class _Worker:
    """One process. ``load``: what it is loading."""

    def __init__(self, job: Job, told: Told) -> None:
        # Not forked: this process has threads, and may have a card.
        context = get_context("spawn")
        self.load: Load | None = None
        self.pipe, theirs = context.Pipe()
        # No daemon: those may have no processes of their own, and a dataset may have workers.
        self._process = context.Process(target=_work, args=(theirs, job_to_toml(job), told), name="loads", daemon=False)
        self._process.start()
        atexit.register(self._process.kill)  # or Python would wait for it, where nobody has ended it
        theirs.close()

    def begin(self, load: Load, known: Known) -> None:
        self.load = load
        with suppress(OSError):  # it has ended: ``finish`` says so
            self.pipe.send((load, known))

    def finish(self) -> bytes | None:
        """What it has loaded; None: it has ended by itself."""
        self.load = None
        try:
            return self.pipe.recv_bytes()
        except (EOFError, OSError):
            self.end()
            return None

    def end(self) -> None:
        self.pipe.close()
        self._process.kill()  # it may be in the middle of user code, which may take long
        self._process.join()
        atexit.unregister(self._process.kill)


# ---- in a worker ----------------------------------------------------------------------------------------------------


def _work(pipe: "connection.Connection[Any, Any]", job_toml: str, told: Told) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all of a terminal's processes; the node ends this one
    threading.Thread(target=_end_with_parent, daemon=True).start()
    known, job = Known(), parse_job(job_toml)
    settle(job)  # a dataset may compute when it is made: by other threads it would get other bits than the node did
    loading = Loading(job, told, known=lambda: known)
    while True:
        try:
            wanted, known = pipe.recv()
        except (EOFError, OSError):  # the node has ended
            return
        pipe.send_bytes(_tried(loading, wanted))


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(0)


def _tried(loading: Loading, load: Load) -> bytes:
    """The samples, or what was raised, and a bookmark or None. As bytes: tensors in memory that is shared end with
    their process.
    """
    given: Any
    try:
        kind, given = "samples", tuple(mapped(_alone, part) for part in loading.load(load))
        return pickle.dumps((kind, given, loading.take_bookmark()))
    except OSError as error:
        kind, given = "storage", (error.errno, str(error))
    except Untold as error:
        kind, given = "untold", (str(error),)
    except JobError as error:
        kind, given = "job", (error.what, error.where, error.mend)
    except RAISED as error:
        what = f"{load} raised {described(error)}"
        where = "evaluate.dataset" if load.evaluated else "data.dataset"
        kind, given = "job", (what, where, "correct the dataset, or what it reads")
    return pickle.dumps((kind, given, None))


def _alone(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without what else lies in its memory, all of which would go along."""
    return copy_of(tensor) if tensor.untyped_storage().nbytes() > tensor.nbytes else tensor


def _given(kind: str, given: Any) -> Samples:
    """What came from a worker: the samples, or what was raised there."""
    errors: dict[str, Callable[..., Exception]] = {"storage": OSError, "untold": Untold, "job": JobError}
    if kind in errors:
        raise errors[kind](*given)
    samples: Samples = given
    return samples
