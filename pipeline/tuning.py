"""How many tensor workers a graph's run should have: from its queues, its task times and its money. Pure."""

# The caller looks at one window at a time, such as an epoch, and asks ``tune`` what to do. More workers help only where
# the graph servers' cores stand idle while tensor tasks wait for a worker. Everything else is a reason against them:
#
#     what was seen                                      what follows
#     the dollar bound is passed                         fewer, at once
#     nothing to do, and nothing waits                   half as many
#     since workers came, no more is done, or a dollar   back
#       buys less
#     since workers went, less is done, and a dollar     back
#       buys no more for it
#     tensor tasks wait, cores stand idle                more: as many as there is work for, at most twice as many
#     tensor tasks wait, cores are busy                  as many: graph work is the narrow place
#     workers stand idle                                 fewer
#     workers are busy, and cores idle                   fewer, on trial: workers may hold each other up, on the network
#
# Noise moves nothing, for four reasons. A decision rests on two whole windows or more of the same number of workers,
# and on two that point the same way. Between "too few" and "too many" lies a wide band. Steps of less than a tenth are
# not made. And it is remembered which number was too few and which was too many. Until the work itself changes, the
# next number is sought halfway between: so the search ends.

from dataclasses import dataclass, replace
from math import ceil, floor, inf, sqrt

from culm.pipeline.errors import JobError

WINDOWS = 3  # of one number of workers, before it is judged. The first, in which it changed, does not count
WAITING = 0.25  # tasks that wait, for each that is worked on: above it there are too few workers
IDLE_CORES = 0.05  # share of the graph cores' time: below it more workers cannot help
IDLE_WORKERS = 0.4  # share of the workers' time: above it there are too many
ROOM = 1.25  # workers for each that has a task, after shrinking; and growth where tasks come in bursts
ON_TRIAL = 1.5  # times as many workers as remain on trial
STEP = 0.1  # smaller steps are not made
GAIN = 1.03  # a change of as many times the tasks a second counts as one
CHANGED = 1.5  # the work has changed if its demand is as many times more, or less


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What was seen in one stretch of time. Means over that time, of all servers together."""

    seconds: float
    tasks: int  # tensor tasks that were done
    task_seconds: float  # for which a task holds its worker, without the latency
    waiting: float  # tensor tasks without a worker
    idle_cores: float  # share of the graph cores' time in which they had nothing to do, 0 to 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the operator allows, and what things cost. Dollars are for an hour."""

    least: int = 1
    most: int = 10_000
    latency: float = 0.0  # seconds from asking for a worker until it begins
    worker_dollars: float = 0.0
    server_dollars: float = 0.0  # of all graph servers together
    paid_idle: bool = True  # False for a function service: a worker without a task costs nothing
    dollars: float = inf  # that all workers together may cost, if none is idle

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            what = f"the number of tensor workers is to be between {self.least} and {self.most}"
            raise JobError(what, "graph.workers", "set the least to 1 or more, and the most to that or more")

    @property
    def affordable(self) -> int:
        """The most workers that both the number and the dollars allow; one is always allowed."""
        paid = self.dollars / self.worker_dollars if self.worker_dollars else inf
        return max(1, min(self.most, floor(paid) if paid < inf else self.most))


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A decision, and why."""

    workers: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """What is remembered. Means are over the windows since the number of workers last changed."""

    workers: int
    windows: int = 0
    rate: float = 0.0  # tasks a second
    working: float = 0.0  # workers that have a task, or are coming for one
    waiting: float = 0.0
    paid: float = 0.0  # workers that cost money
    idle_cores: float = 0.0
    leaning: int = 0  # 1: the last window asked for more, -1: for fewer
    came_from: "Tuning | None" = None  # as it was before the last move
    too_few: int = 0  # this many did fewer tasks a second than more did; 0: not known
    too_many: int = 0  # this many did no more than fewer did; 0: not known
    demand: float = 0.0  # of this number of workers, when it was first judged; 0: not yet


def tune(before: Tuning, seen: Window, limits: Limits) -> tuple[Tuning, Wanted]:
    """Takes one window in. The number that is wanted is the new state's ``workers``."""
    now = _forgetting(_taken_in(before, seen, limits))
    affordable = limits.affordable
    if now.workers > affordable:
        words = f"{now.workers} workers cost more than {limits.dollars:.2f} $ an hour allow"
        if affordable == limits.most:
            words = f"{now.workers} workers are more than the {limits.most} that are allowed"
        return _moved(now, affordable, words)
    if now.workers < limits.least:
        return _moved(now, limits.least, f"{limits.least} are the least")
    if now.windows < WINDOWS:
        return now, Wanted(workers=now.workers, reason="waiting for what this number of workers brings")
    if now.rate == 0.0 and now.waiting == 0.0:
        fewer = max(limits.least, now.workers // 2)
        return _once_more(now, fewer, "there is no tensor work, and none waits")
    if now.came_from is not None:
        judged, wanted = _judged(now, now.came_from, limits)
        if wanted is not None:
            return judged, wanted
        now = judged
    if now.waiting > WAITING * max(now.working, 1.0):
        return _more(now, limits)
    if now.working < (1.0 - IDLE_WORKERS) * now.workers:
        fewer = max(limits.least, ceil(ROOM * now.working), ceil(sqrt(now.too_few * now.workers)))
        words = f"of {now.workers} workers {now.working:.1f} have a task"
        return _once_more(now, min(fewer, now.workers), words)
    words = "workers are busy, and few tasks wait"
    if now.idle_cores > IDLE_CORES and limits.worker_dollars:
        fewer = max(limits.least, ceil(now.workers / ON_TRIAL), ceil(sqrt(now.too_few * now.workers)))
        return _once_more(now, min(fewer, now.workers), f"{words}; perhaps fewer hold each other up less")
    return replace(now, leaning=0), Wanted(workers=now.workers, reason=words)


def _judged(now: Tuning, earlier: Tuning, limits: Limits) -> tuple[Tuning, Wanted | None]:
    """Goes back if the last move has brought nothing."""

    def bought(of: Tuning) -> float:
        paid = limits.server_dollars + limits.worker_dollars * of.paid
        return of.rate / paid if paid else of.rate

    faster, cheaper = now.rate / max(earlier.rate, 1e-9), bought(now) / max(bought(earlier), 1e-9)
    back = min(max(earlier.workers, limits.least), limits.affordable)
    if earlier.workers < now.workers and (faster < GAIN or cheaper * GAIN < 1.0):
        what = "did no more tasks a second than" if faster < GAIN else "buy less for a dollar than"
        reason = f"{now.workers} workers {what} {earlier.workers}"
        return _moved(replace(now, too_many=now.workers), back, reason, back=True)
    if earlier.workers > now.workers and faster * GAIN < 1.0 and cheaper < GAIN:
        reason = f"{now.workers} workers did fewer tasks a second than {earlier.workers}"
        return _moved(replace(now, too_few=now.workers), back, reason, back=True)
    return replace(now, came_from=None), None


def _more(now: Tuning, limits: Limits) -> tuple[Tuning, Wanted]:
    """Tasks wait: whether more workers are worth their money."""
    waits = f"{now.waiting:.1f} tensor tasks wait"
    if now.idle_cores < IDLE_CORES:
        words = f"{waits}, but graph cores are busy {100 * (1 - now.idle_cores):.0f} % of the time"
        return replace(now, leaning=0), Wanted(workers=now.workers, reason=words)
    # Where fewer have a task in the mean than there are, tasks come in bursts.
    wanted = min(max(ceil(now.working + now.waiting), ceil(ROOM * now.workers)), 2 * now.workers)
    reason = f"{waits}, and graph cores stand idle {100 * now.idle_cores:.0f} % of the time"
    halfway = floor(sqrt(now.workers * now.too_many)) if now.too_many > now.workers else wanted
    for most, words in (
        (limits.affordable, "no more are allowed"),
        (_worth(now, limits), "more would cost more than they save"),
        (halfway, f"{now.too_many} did no more"),
    ):
        if most < wanted:
            wanted, reason = max(most, now.workers), f"{waits}, but {words}"
    return _once_more(now, wanted, reason)


def _worth(now: Tuning, limits: Limits) -> int:
    """The most workers with which a dollar buys no less than now."""
    if not limits.worker_dollars or not limits.paid_idle:
        return limits.most  # what it has brought is looked at afterwards
    faster = 1.0 / max(1e-9, 1.0 - now.idle_cores)  # at best: then the cores are never idle
    paid = limits.server_dollars + now.workers * limits.worker_dollars
    return floor((faster * paid - limits.server_dollars) / limits.worker_dollars + 1e-9)


def _taken_in(before: Tuning, seen: Window, limits: Limits) -> Tuning:
    """With the window in the means."""
    if before.windows == 0:
        return replace(before, windows=1)
    count = before.windows  # the first one is left out
    rate = seen.tasks / seen.seconds if seen.seconds > 0.0 else 0.0
    working = rate * (seen.task_seconds + limits.latency)  # Little's law
    paid = before.workers if limits.paid_idle else rate * seen.task_seconds

    def mean(old: float, new: float) -> float:
        return old + (new - old) / min(count, 8)

    return replace(
        before,
        windows=count + 1,
        rate=mean(before.rate, rate),
        working=mean(before.working, working),
        waiting=mean(before.waiting, seen.waiting),
        paid=mean(before.paid, paid),
        idle_cores=mean(before.idle_cores, seen.idle_cores),
    )


def _forgetting(now: Tuning) -> Tuning:
    """What was learnt of other work counts no more."""
    demand = now.working + now.waiting
    if now.windows < WINDOWS:
        return now
    if not now.demand:
        return replace(now, demand=demand)
    if not now.demand / CHANGED <= demand <= now.demand * CHANGED:
        return replace(now, demand=demand, too_few=0, too_many=0)
    return now


def _once_more(now: Tuning, workers: int, reason: str) -> tuple[Tuning, Wanted]:
    """Moves if the window before leant the same way, and the step is no small one."""
    if abs(workers - now.workers) < max(1.0, STEP * now.workers):
        return replace(now, leaning=0), Wanted(workers=now.workers, reason=f"{reason}; nothing better is near")
    way = 1 if workers > now.workers else -1
    if now.leaning != way:
        return replace(now, leaning=way), Wanted(workers=now.workers, reason=f"{reason}; a second window is to agree")
    return _moved(now, workers, reason)


def _moved(now: Tuning, workers: int, reason: str, back: bool = False) -> tuple[Tuning, Wanted]:
    judged = now.windows >= WINDOWS and not back
    came_from = replace(now, came_from=None) if judged else None
    moved = Tuning(workers=workers, came_from=came_from, too_few=now.too_few, too_many=now.too_many)
    return moved, Wanted(workers=workers, reason=reason)
