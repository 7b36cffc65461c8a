"""What the UI remembers of the event log: the numbers of steps, what happened, and what was decided and why."""

import math
from array import array
from dataclasses import dataclass, field, fields

from culm.pipeline.money.codec import Entry
from culm.pipeline.money.kinds import (
    FREQUENT,
    Checkpointed,
    Committed,
    Dismissed,
    Done,
    Evaluated,
    Failed,
    Fetched,
    Joined,
    Left,
    Lost,
    Measured,
    Planned,
    Released,
    RolledBack,
    Used,
)
from culm.pipeline.money.ledger import USES
from culm.ui.incidents import Incident, Incidents
from culm.ui.trends import Sample, Trends, resources_of


def _numbers() -> "array[float]":
    return array("d")


def _counts() -> "array[int]":
    return array("q")


@dataclass(eq=False, kw_only=True)
class Metric:
    """One metric of the samples that were trained on."""

    steps: "array[int]" = field(default_factory=_counts)
    values: "array[float]" = field(default_factory=_numbers)


@dataclass(eq=False, kw_only=True)
class History:
    """Takes the events of one run in their order."""

    # Of each commit. Invariant: all five are of one length, and the steps ascend.
    steps: "array[int]" = field(default_factory=_counts)
    losses: "array[float]" = field(default_factory=_numbers)
    times: "array[float]" = field(default_factory=_numbers)
    rates: "array[float]" = field(default_factory=_numbers)  # learning rates; NaN: none is told
    norms: "array[float]" = field(default_factory=_numbers)  # of the gradient; 0: none is told
    metrics: dict[str, Metric] = field(default_factory=dict)
    # By how many steps the weights were trained: the loss and each metric. Told again after a rollback, with the same.
    evaluations: dict[int, dict[str, float]] = field(default_factory=dict)
    evaluated_at: dict[int, float] = field(default_factory=dict)  # unix seconds
    notable: list[Entry] = field(default_factory=list)
    gone: dict[str, float] = field(default_factory=dict)  # nodes lost and not back, and when
    # (unix seconds, how many nodes take part from then on), whenever one comes or goes.
    population: list[tuple[float, int]] = field(default_factory=list)
    trends: Trends = field(default_factory=Trends)
    checkpoint: Checkpointed | None = None  # the newest whole one
    begun: float = 0.0  # the first plan, unix seconds; 0: there was none yet
    last: float = 0.0  # the newest event, unix seconds
    samples_per_step: int = 0
    tokens_per_step: int = 0
    chunks: int = 0  # of the graph; 0: the job trains on none
    done: Entry | None = None
    failed: Entry | None = None
    fetched: Entry | None = None
    released: Entry | None = None
    _here: set[str] = field(default_factory=set)
    _incidents: Incidents = field(default_factory=Incidents)

    @property
    def incidents(self) -> list[Incident]:
        return self._incidents.found

    @property
    def learning_rate(self) -> float | None:
        """Of the newest step, where one is told."""
        return self.rates[-1] if self.rates and not math.isnan(self.rates[-1]) else None

    def take(self, entry: Entry) -> None:
        event = entry.event
        if isinstance(event, Planned) and self.done is not None and entry.step < self.steps_done():
            # The job was begun anew in the same log: what was before belongs to another run.
            self._forget()
        self.last = entry.time
        if not isinstance(event, FREQUENT):
            self.notable.append(entry)
        self._incidents.take(entry)
        self._count_nodes(entry)
        match event:
            case Committed():
                self._committed(entry, event)
            case Measured():
                self._measured(event)
            case Evaluated():
                self.evaluations[event.step] = {"loss": event.loss, **event.metrics}
                self.evaluated_at[event.step] = entry.time
            case Joined():
                self.gone.pop(event.node, None)
            case Lost():
                self.gone[event.node] = entry.time
            case RolledBack():
                self._drop_from(event.step)
                self.done = self.released = self.fetched = self.failed = None
            case Planned():
                self.failed = None  # its job was mended, and a coordinator that started again tries again
                self.begun = self.begun or entry.time
                self.samples_per_step, self.tokens_per_step = event.samples_per_step, event.tokens_per_step
                self.chunks = event.chunks or 0
            case Used():
                busy = sum(getattr(event, use) for use in USES)
                sent, seen = sum(event.sent.values()), resources_of(event)
                sample = Sample(
                    incarnation=event.incarnation, at=entry.time, bubble=event.bubble, busy=busy, sent=sent, took=seen
                )
                self.trends.take(event.node, sample)
            case Checkpointed():
                self.checkpoint = event
            case Done():
                self.done = entry
            case Failed():
                self.failed = entry
            case Fetched():
                self.fetched = entry
            case Released():
                self.released = entry

    def _count_nodes(self, entry: Entry) -> None:
        event, before = entry.event, len(self._here)
        if isinstance(event, Joined):
            self._here.add(event.node)
        elif isinstance(event, Lost | Left | Dismissed):
            self._here.discard(event.node)
        if len(self._here) != before:
            self.population.append((entry.time, len(self._here)))

    def _forget(self) -> None:
        fresh = History()
        for each in fields(self):
            setattr(self, each.name, getattr(fresh, each.name))

    def steps_done(self) -> int:
        return self.steps[-1] + 1 if self.steps else 0

    def _committed(self, entry: Entry, event: Committed) -> None:
        # A coordinator may die before its commit is in the log: then the next one tells it again.
        self._drop_from(event.step)
        self.steps.append(event.step)
        self.losses.append(event.loss)
        self.times.append(entry.time)
        self.rates.append(math.nan if event.learning_rate is None else event.learning_rate)
        self.norms.append(event.norm)

    def _measured(self, event: Measured) -> None:
        for name, value in event.metrics.items():
            metric = self.metrics.setdefault(name, Metric())
            while metric.steps and metric.steps[-1] >= event.step:
                metric.steps.pop(), metric.values.pop()
            metric.steps.append(event.step)
            metric.values.append(value)

    def _drop_from(self, step: int) -> None:
        while self.steps and self.steps[-1] >= step:
            self.steps.pop()
            for series in (self.losses, self.times, self.rates, self.norms):
                series.pop()
