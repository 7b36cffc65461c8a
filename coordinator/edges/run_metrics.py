"""What the coordinator tells Prometheus: its status as it is, and what its event log adds up to."""

from bisect import bisect_left
from collections import Counter as Count
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from culm.pipeline.money.codec import Entry
from culm.pipeline.money.kinds import Committed, Lost, Paused, Planned, Recovered, RolledBack, Unpaused
from culm.protos import coordinator_pb2 as pb

# Prometheus asks now and then, on a thread of the metrics' own server. ``look`` asks the event loop, where the leader
# lives. The event log has its events added up here as they come, and its summary has the sums: of a long run the log no
# longer keeps what a successor would have to add up again.

NODE_STATES = ("joining", "spare", "active", "draining", "detached")
STEP_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0)
RESUME_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

Look = Callable[[], tuple[pb.GetStatusResponse, Sequence[Metric]]]


class Counter:
    """As Prometheus means it; its client's own cannot be set to where a coordinator before has ended."""

    def __init__(self, name: str, words: str) -> None:
        self._name, self._words = name, words
        self.value = 0.0

    def inc(self, by: float = 1.0) -> None:
        self.value += by

    def collect(self) -> Metric:
        return CounterMetricFamily(self._name, self._words, self.value)


class Histogram:
    """As Prometheus means it, likewise."""

    def __init__(self, name: str, words: str, buckets: Sequence[float]) -> None:
        self._name, self._words, self._buckets = name, words, buckets
        self.counts = [0] * (len(buckets) + 1)  # of each bucket alone; the last: above all of them
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self._buckets, value)] += 1
        self.sum += value

    def collect(self) -> Metric:
        buckets = list(zip([*map(str, self._buckets), "+Inf"], accumulate(self.counts), strict=True))
        return HistogramMetricFamily(self._name, self._words, buckets, self.sum)


class Tally:
    """Adds up the event log, over all coordinators of the run: a successor's numbers go on where these end."""

    def __init__(self) -> None:
        self.lost = Counter("culm_lost_nodes", "Nodes lost.")
        self.rollbacks = Counter("culm_rollbacks", "Times that the run went back and lost work.")
        self.redone = Counter("culm_redone_instructions", "Instructions of lost nodes that heirs ran again.")
        self.resumes = Histogram(
            "culm_resume_seconds", "From losing a node to its heir's first instruction.", RESUME_BUCKETS
        )
        self.steps = Histogram("culm_step_seconds", "From one commit to the next.", STEP_BUCKETS)
        self._begun: float | None = None  # the running step, in unix time: by the commit before, or by the first plan
        self._next: int | None = None  # the running step's number; None: any
        self._paused = False  # a pause is in effect: no step runs

    def take(self, entry: Entry) -> None:
        event = entry.event
        match event:
            case Committed():
                self._commit(event.step, entry.time)
            case Planned() if self._begun is None:
                self._begun = entry.time
            case Lost():
                self.lost.inc()
            case Recovered():
                self.redone.inc(event.redone)
                self.resumes.observe(event.resume_ms / 1e3)
            case RolledBack():
                if event.work_lost:
                    self.rollbacks.inc()
                self._begun = self._next = None
            case Paused():
                self._paused = True
            case Unpaused() if self._paused:  # else the pause was only asked for, and the step runs on
                self._paused = False
                if self._begun is not None:
                    self._begun = entry.time

    def _commit(self, step: int, at: float) -> None:
        # A leader that died may have left commits off the record: then it is not known when this step began.
        if self._begun is not None and self._next in (None, step):
            self.steps.observe(max(0.0, at - self._begun))
        self._begun, self._next, self._paused = at, step + 1, False

    def collect(self) -> list[Metric]:
        return [each.collect() for each in (self.lost, self.rollbacks, self.redone, self.resumes, self.steps)]

    def to_document(self) -> dict[str, Any]:
        """All of it as JSON-able data. Stores hold documents of coordinators before: no name here ever changes."""
        return {
            **{name: getattr(self, name).value for name in ("lost", "rollbacks", "redone")},
            **{name: [getattr(self, name).counts, getattr(self, name).sum] for name in ("resumes", "steps")},
            "running": [self._begun, self._next],
            "paused": self._paused,
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "Tally":
        """What ``to_document`` was made from. Raises KeyError, TypeError or ValueError for what is none."""
        tally = cls()
        for counter, name in ((tally.lost, "lost"), (tally.rollbacks, "rollbacks"), (tally.redone, "redone")):
            counter.value = float(document[name])
        for histogram, name in ((tally.resumes, "resumes"), (tally.steps, "steps")):
            counts, total = document[name]
            if len(counts) == len(histogram.counts):  # another version may have other buckets: it begins anew
                histogram.counts, histogram.sum = counts, total
        tally._begun, tally._next = document["running"]
        tally._paused = bool(document["paused"])
        return tally


class RunCollector(Collector):
    """The run's metrics. ``look`` gives the status, and what the event log adds up to. See docs/metrics.md."""

    def __init__(self, look: Look) -> None:
        self._look = look

    def collect(self) -> Iterator[Metric]:
        status, totals = self._look()
        return iter((*totals, *gauges(status)))


def gauges(status: pb.GetStatusResponse) -> Iterator[Metric]:
    """The status as metrics."""
    yield GaugeMetricFamily("culm_step", "Steps committed.", status.step)
    yield GaugeMetricFamily("culm_steps", "Steps asked for; of a run that ended early, trained.", status.steps)
    yield GaugeMetricFamily("culm_loss", "Loss of the last committed step; NaN before the first.", status.loss)
    yield GaugeMetricFamily(
        "culm_samples_per_second", "Samples a second over the last steps.", status.samples_per_second
    )
    wanted = "Tensor workers that the run wants, where the job leaves that to it."
    yield GaugeMetricFamily("culm_workers_wanted", wanted, status.workers_wanted)
    yield GaugeMetricFamily("culm_term", "Term of the leading coordinator.", status.term)
    yield GaugeMetricFamily("culm_generation", "Generation of the present plan.", status.generation)
    yield GaugeMetricFamily("culm_checkpoint_step", "Steps in the newest whole checkpoint.", status.checkpoint)
    fault = bool(status.checkpoint_fault)
    yield GaugeMetricFamily("culm_checkpoint_fault", "1 while no checkpoint can be written, 0 else.", fault)
    yield GaugeMetricFamily("culm_cost_dollars", "What the run has cost so far.", status.cost)
    yield GaugeMetricFamily(
        "culm_stalled_seconds",
        "Since the last commit, where that is much longer than usual; 0 else.",
        status.stalled_seconds,
    )
    # A paused run whose nodes were let go is in the phase "waiting", but no node that is started would help it.
    waits = status.phase == "waiting"
    paused = status.phase == "paused" or (waits and status.HasField("pause"))
    yield GaugeMetricFamily("culm_waiting", "1 while the run lacks nodes, 0 else or if paused.", waits and not paused)
    yield GaugeMetricFamily("culm_paused", "1 while the run is paused, 0 else.", paused)
    nodes = GaugeMetricFamily("culm_nodes", "Nodes that take part, by state.", labels=("state",))
    counts = Count(node.state for node in status.nodes)
    for state in NODE_STATES:
        nodes.add_metric((state,), counts[state])
    yield nodes
    exposure = GaugeMetricFamily(
        "culm_exposure_seconds", "For how long the stage has been without a hot standby.", labels=("stage",)
    )
    for stage, seconds in sorted(status.exposure.items()):
        exposure.add_metric((str(stage),), seconds)
    yield exposure
