"""What the coordinator tells Prometheus: its status as it is, and what its event log adds up to."""

import threading
from collections import Counter as Count
from collections.abc import Callable, Iterator, Sequence

from prometheus_client import Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from culm.pipeline.money.codec import Entry, Reader
from culm.pipeline.money.kinds import Committed, Lost, Paused, Planned, Recovered, RolledBack, Unpaused
from culm.protos import coordinator_pb2 as pb

# Prometheus asks now and then, on a thread of the metrics' own server. ``look`` asks the event loop, where the leader
# lives. Of the event log only what is new is read, and added up here: a scrape costs as much as what has happened since
# the one before. A coordinator that takes over reads the log from its beginning, as far as it is kept.

NODE_STATES = ("joining", "spare", "active", "draining", "detached")
STEP_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0)
RESUME_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

Look = Callable[[int], tuple[pb.GetStatusResponse, Sequence[pb.ListEventsResponse]]]


class Tally:
    """Adds up the event log, which outlives a coordinator: so a successor's numbers go on where these end."""

    def __init__(self) -> None:
        self.lost = Counter("culm_lost_nodes", "Nodes lost.", registry=None)
        self.rollbacks = Counter("culm_rollbacks", "Times that the run went back and lost work.", registry=None)
        self.redone = Counter(
            "culm_redone_instructions", "Instructions of lost nodes that heirs ran again.", registry=None
        )
        self.resumes = Histogram(
            "culm_resume_seconds",
            "From losing a node to its heir's first instruction.",
            registry=None,
            buckets=RESUME_BUCKETS,
        )
        self.steps = Histogram("culm_step_seconds", "From one commit to the next.", registry=None, buckets=STEP_BUCKETS)
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

    def collect(self) -> Iterator[Metric]:
        for metric in (self.lost, self.rollbacks, self.redone, self.resumes, self.steps):
            yield from metric.collect()


class RunCollector(Collector):
    """The run's metrics. ``look(n)`` gives the status and the events after the number ``n``. See docs/metrics.md."""

    def __init__(self, look: Look) -> None:
        self._look = look
        self._tally = Tally()
        self._reader = Reader("the run's metrics")
        self._seen = 0  # the number of the last event that was added up. Invariant: never falls, so none counts twice
        self._turn = threading.Lock()  # two may ask at once

    def collect(self) -> Iterator[Metric]:
        with self._turn:
            status, events = self._look(self._seen)
            for event in events:
                self._reader.read(event, self._tally.take)
                self._seen = event.sequence
            totals = list(self._tally.collect())
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
