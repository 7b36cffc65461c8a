"""A function over many items, on the processors of this machine or on a Ray cluster: same items, same results.

For what is simulated many times, as in ``culm plan``. The results come in the order of the items, wherever each was
computed; so nothing that is made of them depends on how many workers there are.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import active_children, get_context, resource_tracker
from typing import Any, Protocol, TypeVar

from culm.local.nursery import die_with_parent
from culm.terminal import interrupts

PROCESSES, RAY = "processes", "ray"
WAYS = (PROCESSES, RAY)
HELP = f"what computes: {PROCESSES} of this machine, or {RAY}, the cluster at RAY_ADDRESS; default: {PROCESSES}"
Item = TypeVar("Item")
Result = TypeVar("Result")


class Spread(Protocol):
    def __call__(self, one: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
        """The results in the order of the items, each as soon as it is there. What ``one`` raises is raised here."""
        ...


@contextmanager
def spread(on: str = PROCESSES, chunk: int = 1, processes: int | None = None) -> Iterator[Spread]:
    """``chunk``: items that a worker is given at once. ``processes``: how many; default: one for each processor.

    Raises JobError where there is no such Ray. Whoever leaves by an exception, such as Ctrl-C, ends what is computed:
    a run of years may take minutes.
    """
    if on == RAY:
        from culm.engines.ray_cluster import connected

        ray = connected("")
        try:
            yield partial(_on_ray, ray, chunk)
        finally:
            ray.shutdown()  # it ends what has not come to its end
        return
    resource_tracker.ensure_running()  # otherwise the next lines start it, and that unblocks the signals
    # A process whose parent is interrupted as it starts ends with a traceback. A semaphore that is half made by then
    # is told of as leaked.
    with interrupts.held():
        count, context = processes or os.cpu_count(), get_context("spawn")
        made = ProcessPoolExecutor(count, context, initializer=_end_with, initargs=(os.getpid(),))
    with made as pool:
        try:
            yield partial(_on_processes, pool, chunk)
        except BaseException:
            for child in active_children():
                child.kill()
            raise


def _end_with(parent: int) -> None:
    """In a worker: whoever is killed leaves none that computes for nobody."""
    die_with_parent()
    if os.getppid() != parent:  # it was killed before
        os._exit(1)


def _on_processes(
    pool: ProcessPoolExecutor, chunk: int, one: Callable[[Item], Result], items: Sequence[Item]
) -> Iterator[Result]:
    with interrupts.held():
        under_way = [pool.submit(_several, one, part) for part in _parts(items, chunk)]
    for found in under_way:
        yield from found.result()


def _on_ray(ray: Any, chunk: int, one: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
    several, sent = ray.remote(_several), ray.put(one)
    under_way = [several.remote(sent, part) for part in _parts(items, chunk)]
    for found in under_way:
        yield from ray.get(found)


def _parts(items: Sequence[Item], chunk: int) -> list[Sequence[Item]]:
    return [items[first : first + chunk] for first in range(0, len(items), chunk)]


def _several(one: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    return [one(item) for item in items]
