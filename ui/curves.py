"""The curves of a run, as columns that a chart takes: by step, by tokens or by time, thinned to what a screen shows.

Of many points of a curve each bin keeps its mean, its least and its greatest value: a spike of one step stays visible.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from culm.pipeline.counting import of_chunks
from culm.ui.history import History
from culm.ui.incidents import Incident

AXES = ("step", "tokens", "time")
RANGES = {"all": math.inf, "last 5 min": 300.0, "last hour": 3600.0, "last 6 h": 21600.0, "last day": 86400.0}
BINS = 240
MARKS = 200  # incidents in a chart
RATE_BINS = 120  # of a speed: steps in a bin are counted
Columns = dict[str, list[Any]]


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One chart: a curve with its spread, and points."""

    name: str
    x: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]
    points: list[tuple[float, float]] = field(default_factory=list)  # evaluations: (x, value)
    form: str = ".3~g"  # of the numbers at its axis, as d3-format has it
    newest: float | None = None  # the last value itself, which the curve's last bin has the mean of

    @property
    def last(self) -> float | None:
        if self.newest is not None:
            return self.newest
        return self.mean[-1] if self.mean else self.points[-1][1] if self.points else None


@dataclass(frozen=True)
class View:
    """Which part of a run is shown, over what."""

    history: History
    axis: str = "step"
    since: float = 0.0  # unix seconds
    until: float = math.inf
    zero: float | None = None  # with the axis "time": seconds since then; None: moments

    def first(self) -> int:
        return bisect_left(self.history.times, self.since)

    def end(self) -> int:
        return bisect_left(self.history.times, self.until) if self.until < math.inf else len(self.history.times)

    def at_step(self, step: int, at: float) -> float:
        """Where on the axis something stands that happened in a step, at a time. Milliseconds where it is a time."""
        if self.axis == "time":
            return at * 1e3 if self.zero is None else at - self.zero
        return float(step * (per_step(self.history) if self.axis == "tokens" else 1))

    def xs(self) -> list[float]:
        a, b, history = self.first(), self.end(), self.history
        if self.axis == "time":
            times = history.times[a:b]
            return [t * 1e3 for t in times] if self.zero is None else [t - self.zero for t in times]
        factor = per_step(history) if self.axis == "tokens" else 1
        return [float(step * factor) for step in history.steps[a:b]]


def per_step(history: History) -> int:
    """Tokens of a step; samples, where nobody knows tokens."""
    return history.tokens_per_step or history.samples_per_step or 1


def axis_title(history: History, axis: str, zone: str = "") -> str:
    if axis == "tokens":
        return "tokens" if history.tokens_per_step else "samples"
    if axis == "step":
        return of_chunks(history.chunks).step
    return f"time ({zone})" if axis == "time" and zone else axis


def axes(chunks: int) -> tuple[str, ...]:
    """Over what curves are offered. Of a graph nobody counts samples."""
    return tuple(axis for axis in AXES if not chunks or axis != "tokens")


def binned(name: str, xs: Sequence[float], ys: Sequence[float], bins: int = BINS) -> Curve:
    """The curve, in so many bins of equally many points; what is not finite is left out."""
    good = [(x, y) for x, y in zip(xs, ys, strict=True) if math.isfinite(y)]
    stride = max(1, -(-len(good) // bins))
    found = Curve(name=name, x=[], mean=[], low=[], high=[], newest=good[-1][1] if good else None)
    for begin in range(0, len(good), stride):
        part = good[begin : begin + stride]
        values = [y for _, y in part]
        found.x.append(part[-1][0])
        low, high = min(values), max(values)
        found.mean.append(low if low == high else sum(values) / len(values))  # a mean of equal numbers is rounded
        found.low.append(low)
        found.high.append(high)
    return found


def curves(view: View) -> list[Curve]:
    """All that there is: the loss first, then the speed, metrics, the learning rate and the gradient's norm."""
    history, xs, a, b = view.history, view.xs(), view.first(), view.end()
    loss = binned("loss", xs, history.losses[a:b])
    found = [_with_points(loss, view, "loss"), _speed(view, xs)]
    trained = set(history.metrics)
    for name in sorted(trained | {n for each in history.evaluations.values() for n in each} - {"loss"}):
        found.append(_with_points(_metric(view, name), view, name))
    if any(not math.isnan(rate) for rate in history.rates[-1:]):
        found.append(binned("learning rate", xs, history.rates[a:b]))
    if any(history.norms[-1:]):
        found.append(binned("gradient norm", xs, history.norms[a:b]))
    return [curve for curve in found if curve.x or curve.points]


def _with_points(curve: Curve, view: View, name: str) -> Curve:
    history = view.history
    told = [
        (view.at_step(step, history.evaluated_at[step]), values[name])
        for step, values in sorted(history.evaluations.items())
        if name in values and math.isfinite(values[name]) and view.since <= history.evaluated_at[step] < view.until
    ]
    return replace(curve, points=told[-BINS:])


def _metric(view: View, name: str) -> Curve:
    history = view.history
    metric = history.metrics.get(name)
    if metric is None:
        return Curve(name=name, x=[], mean=[], low=[], high=[])
    times = dict(zip(history.steps, history.times, strict=True))
    told = [(s, v) for s, v in zip(metric.steps, metric.values, strict=True) if s in times]
    inside = [(s, v) for s, v in told if view.since <= times[s] < view.until]
    return binned(name, [view.at_step(s, times[s]) for s, _ in inside], [v for _, v in inside])


def _speed(view: View, xs: Sequence[float]) -> Curve:
    """Samples or epochs a second, from one bin of commits to the next.

    Commits that the log has left out count by their steps.
    """
    history, a, b = view.history, view.first(), view.end()
    steps, times = history.steps[a:b], history.times[a:b]
    of = of_chunks(history.chunks)
    found = Curve(name=f"{of.trained} a second", x=[], mean=[], low=[], high=[], form="~s")
    stride = max(1, -(-len(steps) // RATE_BINS))
    for begin in range(0, len(steps) - 1, stride):
        end = min(begin + stride, len(steps) - 1)
        took = times[end] - times[begin]
        if took > 0:
            rate = (steps[end] - steps[begin]) * history.samples_per_step / of.samples / took
            for column in (found.mean, found.low, found.high):
                column.append(rate)
            found.x.append(xs[end])
    return found


def marks(view: View) -> list[tuple[float, Incident]]:
    """Where incidents stand on the axis: the newest of those that are within the view."""
    inside = [i for i in view.history.incidents if view.since <= i.time < view.until]
    return [(view.at_step(i.step, i.time), i) for i in inside[-MARKS:]]


def since_of(history: History, chosen: str, now: float) -> float:
    """From when on the last so many seconds of a range are shown: those of a run that has ended count from its end."""
    seconds = RANGES.get(chosen, math.inf)
    return 0.0 if seconds == math.inf else min(now, history.last or now) - seconds
