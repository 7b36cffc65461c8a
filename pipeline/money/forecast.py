"""When a run ends, what the rest of it costs, and how far off that may be. Pure; docs/cost.md has an example."""

# The rest of a run is taken to go as it has gone so far:
#
#     calm      the steps that are left, at the mean of the calm steps so far
#     seconds   calm / (1 - share of the time that interruptions took), less what the step under way has had
#     dollars   seconds at what everything costs now, and transfer by the step as so far
#
# Where a lost node, or a new one, has changed the shape, the present shape is taken to last as long again as it has
# lasted. For so many steps its own mean counts, and for the others the mean of all shapes: until a lost node is
# replaced steps are longer, and the more often that happens the more of them there are.
#
# What was seen is a sample of what comes. Where n steps were seen, and their sum varies by V, the sum of the S steps
# that are left is off by V * (S / n + (S / n)^2): the first for how they fall, the second for how well their mean is
# known. The same holds of interruptions, with the sum of their squared seconds for V, as long as they come by chance.
# And all of it drifts, by DRIFT.
#
# Nobody foresees an early stop, a pause, other prices, or nodes that come or go for good.

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import sqrt
from statistics import NormalDist

from culm.pipeline.money.calm_groups import LEAST_STEPS, CalmGroups, Groups
from culm.pipeline.money.interruptions import INTERRUPTIONS_KEPT, Interruption, Interruptions
from culm.pipeline.money.lives import HOUR, Lives
from culm.pipeline.money.trained_steps import TrainedSteps
from culm.pipeline.money.usage import Usage
from culm.protos import coordinator_pb2 as pb

WITHIN = 0.8  # the share of runs that come out between ``low`` and ``high``
NORMAL = NormalDist().inv_cdf((1.0 + WITHIN) / 2.0)
# Of a run on machines that others use as well steps came out 2 to 4 % off, however alike those before had been.
DRIFT = 0.03
MOST_LOST = 0.99  # share of the time: a log that lacks events may say more than all of it


@dataclass(frozen=True, slots=True)
class Rest:
    """Seconds from the beginning of the step under way: as expected, and the bounds of ``WITHIN``."""

    expected: float
    low: float
    high: float
    interrupted: float = 0.0  # the share of them that interruptions take


def rest(left: int, calm: CalmGroups, interruptions: Iterable[Interruption] = (), seen_seconds: float = 0.0) -> Rest:
    """Of so many steps. ``seen_seconds``: in which the interruptions happened."""
    parts = _parts(left, calm)
    seconds = sum(steps * groups.mean for steps, groups in parts)
    lost, squares = _sums(interruptions)
    share = min(lost / seen_seconds, MOST_LOST) if lost else 0.0
    whole = seconds / (1.0 - share)
    known = [groups.variance for _, groups in parts]
    of_steps = sum(_off(v, steps / groups.steps) for (v, _), (steps, groups) in zip(known, parts, strict=True))
    of_steps += (DRIFT * seconds) ** 2
    of_interruptions = _off(squares, whole / seen_seconds) if lost else 0.0
    likely = _students(min(count for _, count in known) - 1)
    spread = likely * sqrt(of_steps + of_interruptions)
    # What steps take alone bounds it from below: no interruption gives time back.
    low = max(whole - spread, seconds - likely * sqrt(of_steps), 0.0)
    return Rest(whole, low, whole + spread, share)


def _parts(left: int, calm: CalmGroups) -> list[tuple[int, Groups]]:
    """How many of the steps that are left are taken to be like which."""
    present, whole = calm.present, calm.whole
    if present.steps == whole.steps:  # the shape has never changed
        return [(left, whole.newest(left))]
    count = min(left, present.steps) if present.steps >= LEAST_STEPS else 0
    parts = [(count, present), (left - count, whole)]
    return [(steps, groups) for steps, groups in parts if steps]


def forecast(
    *,
    at: float,
    over: str,
    waits: str,
    paused_at: float | None,
    dollars_per_hour: float,
    lives: Lives,
    steps: TrainedSteps,
    calm: CalmGroups,
    interruptions: Interruptions,
    usage: Usage,
) -> pb.Forecast:
    """As of ``at`` in unix seconds: with figures where they can be known, and always with what they rest on.

    ``over``: why no step is to come, in words; ``waits``: why none runs at present. ``paused_at``: since when a pause
    lasts.
    """
    waits = "the run is paused, and this counts from when it goes on" if paused_at is not None else waits
    left = max(0, steps.asked - steps.committed)
    known = calm.whole
    found = pb.Forecast(steps_left=left)
    found.why = over or _why_not(steps, left, known, waits)
    if found.why:
        return found
    assert steps.begun is not None  # else no step were known
    assert steps.since is not None
    charged = [x for x in interruptions.charged if x.kind != "pause"]
    # Where interruptions were left out, what is seen begins with the first that was kept.
    since = charged[0].time if len(interruptions.charged) == INTERRUPTIONS_KEPT and charged else steps.begun
    pauses = sum(x.seconds for x in interruptions.charged if x.kind == "pause" and x.time >= since)
    seconds = rest(left, calm, charged, (paused_at if paused_at is not None else at) - since - pauses)
    each = rest(1, calm).expected
    # A step that takes longer than usual is taken to end now.
    paused, _ = interruptions.pauses_since(steps.since.time)
    gone = 0.0 if waits else min(max(0.0, at - steps.since.time - paused), each)
    values = [max(0.0, x - gone) for x in (seconds.expected, seconds.low, seconds.high)]
    found.step_seconds, found.interrupted = each, seconds.interrupted
    _set(found.seconds, values)
    if not waits:
        _set(found.ends_at, [at + x for x in values])
    unpriced = [life.node for life in lives.open.values() if not life.priced]
    # While a run waits nodes may go. Those that are left cost less than all that it goes on with.
    gone_nodes = max(0, steps.owners - len(lives.open)) if waits else 0
    if len(unpriced) < len(lives.open) and not gone_nodes:
        transfer = left * usage.transfer_dollars / max(1, steps.counted())
        _set(found.dollars, [x * dollars_per_hour / HOUR + transfer for x in values])
    of_present = f", {calm.present.steps} of them of the present shape" if calm.present.steps < known.steps else ""
    said = [f"from {known.steps} calm steps{of_present}", _counted(len(charged))]
    said.append(_away(gone_nodes) if gone_nodes else _prices(unpriced, len(lives.open)))
    found.why = "; ".join(filter(None, [*said, waits]))
    return found


def _why_not(steps: TrainedSteps, left: int, known: Groups, waits: str) -> str:
    """Why there are no figures, or nothing."""
    if steps.begun is None:
        return "training has not begun"
    if not steps.asked:
        return "the event log does not say how many steps the job has"
    if not left:
        return "every step is committed: the run is about to end"
    if known.steps >= LEAST_STEPS:
        return ""
    are = "1 calm step is" if known.steps == 1 else f"{known.steps} calm steps are"
    few = f"{are} known beside the first one, and a forecast takes {LEAST_STEPS}"
    return f"{few}; {waits}" if waits else few


def _counted(interruptions: int) -> str:
    if not interruptions:
        return "no interruption so far, so none is expected"
    return "1 interruption" if interruptions == 1 else f"{interruptions} interruptions"


def _away(nodes: int) -> str:
    are = "1 node that ran a stage is" if nodes == 1 else f"{nodes} nodes that ran stages are"
    return f"{are} gone, and nobody knows what the next cost"


def _prices(unpriced: Sequence[str], nodes: int) -> str:
    if len(unpriced) == nodes:
        return "no price is known"
    return f"{', '.join(unpriced)} count{'s' * (len(unpriced) == 1)} as free" if unpriced else ""


def _sums(interruptions: Iterable[Interruption]) -> tuple[float, float]:
    """Seconds lost, and the sum of their squares. What happened in one step is one: it shares what the step lost."""
    each = [sum(x.seconds for x in of_step) for _, of_step in groupby(interruptions, key=lambda x: x.step)]
    return sum(each), sum(x * x for x in each)


def _off(observed: float, ratio: float) -> float:
    """The variance of what comes about its forecast. ``observed``: that of what was seen; ``ratio``: how much comes."""
    return observed * (ratio + ratio * ratio)


def _students(freedom: int) -> float:
    """So many deviations to each side hold WITHIN of all cases: Student's t, to the first order in 1 / freedom."""
    return NORMAL + (NORMAL**3 + NORMAL) / (4.0 * freedom)


def _set(estimate: pb.Estimate, values: Sequence[float]) -> None:
    estimate.expected, estimate.low, estimate.high = values
