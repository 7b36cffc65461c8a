"""What the UI remembers of the event log: the loss curve, what happened to nodes, and what was decided and why."""

from dataclasses import dataclass, field

from culm.pipeline.money.codec import Entry
from culm.pipeline.money.kinds import (
    FREQUENT,
    Committed,
    Dismissed,
    Draining,
    Evaluated,
    Joined,
    Left,
    Lost,
    Planned,
    Recovered,
    Resumed,
    RolledBack,
    Warned,
)


@dataclass(eq=False, kw_only=True)
class Preemption:
    """A node that went, and how the others went on. Times are milliseconds since it was lost; None: not known yet."""

    node: str
    time: float  # unix seconds
    step: int
    kind: str  # "lost", "rollback" or "handover"
    why: str
    stages: str = ""
    notice_seconds: float | None = None  # from the notice to the end
    detect_ms: float | None = None  # silence before it was declared lost
    promote_ms: float | None = None  # until the next plan
    resume_ms: float | None = None  # until the heir's first instruction
    restored_ms: float | None = None  # until every stage has a hot standby again
    redone: int | None = None  # instructions


@dataclass(eq=False, kw_only=True)
class History:
    """Takes the events of one run in their order."""

    steps: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    learning_rate: float | None = None  # of the newest step, where one is told
    # By how many steps the weights were trained: the loss and each metric. Told again after a rollback, with the same.
    evaluations: dict[int, dict[str, float]] = field(default_factory=dict)
    preemptions: list[Preemption] = field(default_factory=list)
    notable: list[Entry] = field(default_factory=list)
    gone: dict[str, float] = field(default_factory=dict)  # nodes lost and not back, and when
    _notices: dict[str, float] = field(default_factory=dict)
    _draining: set[str] = field(default_factory=set)

    def take(self, entry: Entry) -> None:
        event = entry.event
        if not isinstance(event, FREQUENT):
            self.notable.append(entry)
        match event:
            case Committed():
                # A coordinator may die before its commit is in the log: then the next one tells it again.
                self._drop_from(event.step)
                self.steps.append(event.step)
                self.losses.append(event.loss)
                self.times.append(entry.time)
                self.learning_rate = event.learning_rate
            case Evaluated():
                self.evaluations[event.step] = {"loss": event.loss, **event.metrics}
            case Warned():
                self._notices[event.node] = entry.time
            case Draining():  # again where its deadline has moved
                if event.node not in self._draining:
                    self._notices[event.node] = entry.time
                    self._draining.add(event.node)
            case Joined():
                self.gone.pop(event.node, None)
            case RolledBack():
                self._rolled_back(event.step)
            case Planned():
                self._planned(entry.time, event)
            case Resumed() | Recovered():
                self._went_on(event)
            case Lost() | Left() | Dismissed():
                self._ended(entry, event)

    def _drop_from(self, step: int) -> None:
        while self.steps and self.steps[-1] >= step:
            for series in (self.steps, self.losses, self.times):
                series.pop()

    def _rolled_back(self, step: int) -> None:
        self._drop_from(step)
        for preemption in self.preemptions[-1:]:
            preemption.kind = "rollback"

    def _ended(self, entry: Entry, event: Lost | Left | Dismissed) -> None:
        noticed = self._notices.pop(event.node, None)
        self._draining.discard(event.node)
        notice = entry.time - noticed if noticed is not None else None
        if isinstance(event, Lost):
            self.gone[event.node] = entry.time
            lost = Preemption(
                node=event.node,
                time=entry.time,
                step=entry.step,
                kind="lost",
                why=event.evidence,
                stages=event.stages,
                notice_seconds=notice,
            )
            lost.detect_ms = event.detect_ms
            self.preemptions.append(lost)
        elif isinstance(event, Left):
            left = Preemption(
                node=event.node,
                time=entry.time,
                step=entry.step,
                kind="handover",
                why=event.why,
                notice_seconds=notice,
                redone=0,
            )
            self.preemptions.append(left)

    def _planned(self, at: float, event: Planned) -> None:
        whole = bool(event.stages) and all(stage.hot_standby() is not None for stage in event.stages)
        for lost in reversed(self.preemptions):
            if lost.restored_ms is not None:
                break
            if lost.kind == "handover":
                continue
            passed = (at - lost.time) * 1e3
            if lost.promote_ms is None:
                lost.promote_ms = passed
            if whole:
                lost.restored_ms = passed

    def _went_on(self, event: Resumed | Recovered) -> None:
        for lost in reversed(self.preemptions):
            if lost.node == event.node and lost.kind == "lost":
                if isinstance(event, Resumed):
                    lost.resume_ms = max(lost.resume_ms or 0.0, event.resume_ms)
                else:
                    lost.redone = (lost.redone or 0) + event.redone
                return
