"""How many tensor workers a graph's run wants, where the job leaves that to it. Pure."""

# Graph servers tell with their heartbeats what workers did for them so far: sums. The difference of two looks is a
# window of ``pipeline.tuning``, which says what to do. A window counts only where as many workers are there as are
# wanted: a worker takes seconds to start, and what fewer do says nothing about more. Nothing of this is persisted: a
# coordinator that takes over begins with the workers that it finds.

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from culm.coordinator.node_prices import NodePrice
from culm.pipeline.resources import Resources, TensorWorkers
from culm.pipeline.tuning import Limits, Tuning, Window, tune

WINDOW_SECONDS = 4.0
PATIENCE_SECONDS = 60.0  # for workers that are wanted and do not come, or do not go: then those that are there count
HOUR = 3600.0

Seen = Mapping[tuple[str, int], Resources]  # by graph server and incarnation


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the job says of workers, where it leaves their number to the run."""

    first: int  # how many it begins with
    most: int
    threads: int  # that a graph server computes with


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorWork:
    """What is known of workers. ``tuning``: None until some were there."""

    tuning: Tuning | None = None
    reason: str = ""  # of the number that is wanted
    seen: Seen = field(default_factory=dict)  # as the window began
    since: float = 0.0
    wanted_since: float = 0.0

    def wanted(self, bounds: Bounds) -> int:
        return self.tuning.workers if self.tuning is not None else bounds.first


def looked(work: TensorWork, bounds: Bounds, seen: Seen, prices: Collection[NodePrice], now: float) -> TensorWork:
    """Takes in what servers have told by ``now``. Whether another number is wanted shows in ``wanted``."""
    same = seen.keys() == work.seen.keys()
    if now - work.since < WINDOW_SECONDS or (same and not _passed(work.seen, seen)):
        return work
    fresh = replace(work, seen=seen, since=now)
    if not seen or not same:
        return fresh
    there = round(sum(_work(of).share for of in seen.values()))
    late = now - work.wanted_since > PATIENCE_SECONDS
    if work.tuning is None:
        if there != bounds.first and not (there and late):
            return replace(fresh, wanted_since=work.wanted_since or now)
        return replace(fresh, tuning=Tuning(workers=there), wanted_since=now)
    if there != work.tuning.workers:
        if not (there and late):
            return fresh
        return replace(fresh, tuning=Tuning(workers=there), wanted_since=now, reason=f"{there} workers are there")
    window, gigabytes = _window(work, seen, bounds, there)
    limits = Limits(
        most=bounds.most,
        worker_dollars=gigabytes * HOUR * max((price.per_gb_second for price in prices), default=0.0),
        server_dollars=sum(price.per_hour for price in prices),
    )
    tuning, wanted = tune(work.tuning, window, limits)
    changed = wanted.workers != work.tuning.workers
    return replace(fresh, tuning=tuning, reason=wanted.reason, wanted_since=now if changed else work.wanted_since)


def _window(work: TensorWork, seen: Seen, bounds: Bounds, there: int) -> tuple[Window, float]:
    """What happened since the last look, and the gigabytes that a worker has."""
    seconds = _passed(work.seen, seen)
    tasks, busy, waited, billed, cores = 0, 0.0, 0.0, 0.0, 0.0
    for who, of in seen.items():
        before, after = _work(work.seen[who]), _work(of)
        tasks += after.done - before.done
        busy += after.seconds - before.seconds
        waited += after.waited_seconds - before.waited_seconds
        billed += after.gigabyte_seconds - before.gigabyte_seconds
        cores += of.cpu_seconds - work.seen[who].cpu_seconds
    window = Window(
        seconds=seconds,
        tasks=tasks,
        task_seconds=busy / tasks if tasks else 0.0,
        waiting=waited / seconds,
        idle_cores=min(1.0, max(0.0, 1.0 - cores / (seconds * bounds.threads * len(seen)))),
    )
    return window, billed / (seconds * there)


def _passed(before: Seen, after: Seen) -> float:
    """Seconds between two looks, by the servers' own clocks; 0: they have told nothing new."""
    return min((of.seconds - before[who].seconds for who, of in after.items()), default=0.0)


def _work(of: Resources) -> TensorWorkers:
    return of.tensor_workers if of.tensor_workers is not None else TensorWorkers()
