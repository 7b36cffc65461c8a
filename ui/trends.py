"""What nodes did and took over time: bubbles, bytes, processors, memory, accelerators. Pure, and bounded in memory."""

# Nodes tell sums since their process started. Two sums give what was between them, however far apart they are. So a
# sample in the middle may be left out, and nothing is counted wrongly.

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from math import isnan, nan
from statistics import fmean, quantiles
from typing import NamedTuple, Protocol

from culm.pipeline.money.kinds import Used
from culm.pipeline.resources import Resources, TensorWorkers
from culm.ui.tensor_work import TensorWork

GAP_SECONDS = 1.5  # between two samples of a node at least
SAMPLES = 240  # kept of a node; of too many every second one of the older half goes
NODES = 1_000  # of which samples are kept; who was heard of longest ago goes first
LEAST_SECONDS = 0.5  # between two looks of a node
BINS = 60  # of a chart
LINES = 8  # nodes with a line each; of more, the middle, the spread and the worst
WORST = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    incarnation: int
    at: float  # unix seconds, of the coordinator's clock
    bubble: float  # seconds since the process started
    busy: float  # seconds of everything
    sent: int  # bytes
    took: Resources = field(default_factory=Resources)  # as of the node's last look, which may be some seconds older


class Point(NamedTuple):
    name: str  # a node, or "median"
    at: float
    value: float
    low: float
    high: float


@dataclass(eq=False)
class Trends:
    _samples: dict[str, list[Sample]] = field(default_factory=dict)
    work: TensorWork = field(default_factory=TensorWork)

    def take(self, node: str, sample: Sample) -> None:
        if sample.took.tensor_workers is not None:
            self.work.take(node, sample.incarnation, sample.took.tensor_workers)
        kept = self._samples.pop(node, [])
        self._samples[node] = kept
        if kept and kept[-1].incarnation == sample.incarnation and sample.at - kept[-1].at < GAP_SECONDS:
            return
        kept.append(sample)
        if len(kept) > SAMPLES:
            del kept[1 : len(kept) // 2 : 2]
        if len(self._samples) > NODES:
            del self._samples[next(iter(self._samples))]

    def bubble_share(self, begin: float, end: float) -> dict[str, list[tuple[float, float]]]:
        """Of each node: (unix seconds, share of its time in bubbles)."""
        return self._rates(
            begin, end, lambda a, b: (b.bubble - a.bubble) / (b.busy - a.busy) if b.busy > a.busy else None
        )

    def sent_per_second(self, begin: float, end: float) -> dict[str, list[tuple[float, float]]]:
        """Of each node: (unix seconds, bytes a second)."""
        return self._rates(begin, end, lambda a, b: (b.sent - a.sent) / (b.at - a.at) if b.at > a.at else None)

    def cpu_share(self, begin: float, end: float) -> dict[str, list[tuple[float, float]]]:
        """Of each node: (unix seconds, share of the processors that it may use). By the node's own clock."""
        return self._rates(begin, end, _cpu_share)

    def memory_share(self, begin: float, end: float) -> dict[str, list[tuple[float, float]]]:
        """Of each node: (unix seconds, what it takes of the host memory that it may use)."""
        return self._rates(begin, end, lambda a, b: _share(b.took.resident_bytes, b.took.memory_bytes))

    def accelerator_share(self, begin: float, end: float) -> dict[str, list[tuple[float, float]]]:
        """Of each node with one that tells: (unix seconds, share of the time in which it computes)."""
        return self._rates(begin, end, lambda a, b: b.took.accelerator_busy)

    def accelerator_memory_share(self, begin: float, end: float) -> dict[str, list[tuple[float, float]]]:
        """Of each node with one: (unix seconds, what is taken of its memory)."""
        return self._rates(begin, end, lambda a, b: _share(b.took.accelerator_used_bytes, b.took.accelerator_bytes))

    def tasks_waiting(self, begin: float, end: float) -> dict[str, list[tuple[float, float]]]:
        """Of each graph server: (unix seconds, tasks that no worker had taken)."""
        return self._rates(begin, end, lambda a, b: _told_of(b, "waiting"))

    def workers(self, begin: float, end: float) -> dict[str, list[tuple[float, float]]]:
        """Of each graph server: (unix seconds, tensor workers that offered themselves)."""
        return self._rates(begin, end, lambda a, b: _told_of(b, "workers"))

    def tasks_per_second(self, begin: float, end: float) -> dict[str, list[tuple[float, float]]]:
        """Of each graph server: (unix seconds, tasks a second that workers did)."""
        return self._rates(begin, end, lambda a, b: _work_rate(a, b, "done"))

    def workers_at_work(self, begin: float, end: float) -> dict[str, list[tuple[float, float]]]:
        """Of each graph server: (unix seconds, how many workers had a task of it, in the mean)."""
        return self._rates(begin, end, lambda a, b: _work_rate(a, b, "seconds"))

    def _rates(self, begin: float, end: float, rate: "Rate") -> dict[str, list[tuple[float, float]]]:
        width = max(1.0, (end - begin) / BINS)
        found: dict[str, list[tuple[float, float]]] = {}
        for node, samples in self._samples.items():
            first = max(0, bisect_right(samples, begin, key=lambda s: s.at) - 1)
            points: list[tuple[float, float]] = []
            before = samples[first] if samples else None
            for sample in samples[first + 1 :]:
                assert before is not None
                if sample.incarnation != before.incarnation:
                    if points:
                        points.append((sample.at, nan))  # the line breaks off: it was another process
                    before = sample
                elif sample.at - before.at >= (width / 2 if sample is samples[-1] else width):
                    value = rate(before, sample)
                    if value is not None and begin <= sample.at <= end:
                        points.append((sample.at, max(0.0, value)))
                    before = sample
            if points:
                found[node] = points
        return found


def resources_of(event: Used) -> Resources:
    """What an event of the log says; zeros, where the log is older than that."""
    names = (each.name for each in fields(Resources) if hasattr(event, each.name))
    return Resources(**{name: getattr(event, name) for name in names}, tensor_workers=_tensor_workers(event))


def _tensor_workers(event: Used) -> TensorWorkers | None:
    if event.workers is None:
        return None
    return TensorWorkers(
        workers=event.workers,
        waiting=event.tasks_waiting or 0,
        done=event.tasks_done or 0,
        repeated=event.tasks_repeated or 0,
        seconds=event.worker_seconds or 0.0,
        gigabyte_seconds=event.gigabyte_seconds or 0.0,
    )


def _cpu_share(before: Sample, after: Sample) -> float | None:
    # The log rounds what it says of a look that an open page has seen as well: that is no time between two looks.
    passed = after.took.seconds - before.took.seconds
    took = after.took.cpu_seconds - before.took.cpu_seconds
    return _share(took, passed * after.took.processors) if passed >= LEAST_SECONDS else None


def _told_of(sample: Sample, what: str) -> float | None:
    """Of tensor workers; None: the node is no graph server."""
    work = sample.took.tensor_workers
    return float(getattr(work, what)) if work is not None else None


def _work_rate(before: Sample, after: Sample, what: str) -> float | None:
    passed = after.took.seconds - before.took.seconds
    a, b = _told_of(before, what), _told_of(after, what)
    return (b - a) / passed if a is not None and b is not None and passed >= LEAST_SECONDS else None


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


class Rate(Protocol):
    """What is computed from two sums."""

    def __call__(self, before: Sample, after: Sample) -> float | None: ...


def told(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Without the breaks between processes."""
    return [(at, value) for at, value in points if not isnan(value)]


def lines(series: Mapping[str, list[tuple[float, float]]], begin: float, end: float) -> list[Point]:
    """Few nodes: a line each. Many: the median with what nine nodes of ten lie in, and the worst few by name."""
    if len(series) <= LINES:
        return [Point(node, at, value, value, value) for node, points in sorted(series.items()) for at, value in points]
    width = max(1e-9, (end - begin) / BINS)
    bins: dict[int, list[float]] = {}
    for points in series.values():
        for at, value in told(points):
            bins.setdefault(int((at - begin) / width), []).append(value)
    found = []
    for index, values in sorted(bins.items()):
        if len(values) < max(2, len(series) // 4):
            continue  # few nodes told anything in this bin
        cuts = quantiles(values, n=20, method="inclusive")
        found.append(Point("median", begin + (index + 0.5) * width, cuts[9], cuts[0], cuts[18]))
    worst = sorted(series, key=lambda node: -fmean(value for _, value in told(series[node])))[:WORST]
    return found + [Point(node, at, value, value, value) for node in worst for at, value in series[node]]
