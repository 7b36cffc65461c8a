"""What went wrong in a run, or had to be handed over: one incident each, folded from the event log."""

# An incident begins with one event, whose number names it in links. All its moments count from one origin:
#
#     origin           on record       plan          resumed           recovered          restored
#       |-- detect_ms ----|-- promote_ms -|               |                   |                  |
#                         |-- resume_ms ------------------|                   |                  |
#                         |-- recovered_ms -----------------------------------|                  |
#                         |-- restored_ms ---------------------------------------------------------|
#
#     kind          origin                           resumed                        restored
#     ----          ------                           -------                        --------
#     lost          the node's last sign of life     its heir's first instruction   two copies of every stage again
#     handover      the notice                       (nothing stopped)
#     rollback      as of the lost node, else the    the first commit after         two copies of every stage
#                   last commit before
#     differed      the last commit before           the first commit after         two copies of every stage
#     coordinator   the last event before            the first commit after
#     stall         the last commit before           the commit that ended it

from collections.abc import Iterable
from dataclasses import dataclass, field

from culm.pipeline.money.codec import Entry
from culm.pipeline.money.kinds import (
    Committed,
    Differed,
    Done,
    Draining,
    Failed,
    Hot,
    Joined,
    Left,
    Lost,
    Moving,
    Planned,
    Recovered,
    Released,
    Resumed,
    RolledBack,
    Stalled,
    TookOver,
    Warned,
)
from culm.protos import coordinator_pb2 as pb

STORY = 60  # entries of the log that an incident keeps
KEPT = 2_000  # incidents; the oldest go first
TITLES = {
    "lost": "{node} was lost",
    "handover": "{node} handed over and left",
    "rollback": "The run went back to step {step}",
    "differed": "Nodes computed differently",
    "coordinator": "Another coordinator took over",
    "stall": "No step was committed",
}


@dataclass(eq=False, kw_only=True)
class Incident:
    """Times are milliseconds since it was on record; None: not known, or not yet."""

    sequence: int  # of the event that it began with
    kind: str
    node: str  # empty where it was none; of ``differed`` those that are found to compute wrongly
    time: float  # on record, unix seconds
    step: int
    why: str
    stages: str = ""
    heir: str = ""
    notice_seconds: float | None = None  # from the notice to the end
    detect_ms: float | None = None  # from the origin until it was on record
    promote_ms: float | None = None  # until the next plan
    resume_ms: float | None = None  # until work went on
    recovered_ms: float | None = None  # until the step was committed
    restored_ms: float | None = None  # until every stage had two copies again
    back_ms: float | None = None  # until a node of its name joined again
    redone: int | None = None  # instructions
    story: list[Entry] = field(default_factory=list)

    @property
    def origin(self) -> float:
        """Unix seconds: what all moments count from."""
        return self.time - (self.detect_ms or 0.0) / 1e3

    @property
    def title(self) -> str:
        if self.kind == "differed" and self.node:
            return f"{self.node} computed wrongly"
        first = self.story[0].event if self.story else None
        if isinstance(first, TookOver) and first.coordinator:
            return f"Coordinator {first.coordinator} took over"
        return TITLES[self.kind].format(node=self.node, step=self.step)

    @property
    def lost(self) -> bool:
        """Whether it took a node away without notice."""
        return self.kind in ("lost", "rollback", "differed") and bool(self.node)

    @property
    def back_to(self) -> int | None:
        """The step that the run went back to."""
        return next((e.event.step for e in self.story if isinstance(e.event, RolledBack)), None)

    def after_origin(self, ms: float | None) -> float | None:
        """A moment that counts from when it was on record, in milliseconds after the origin."""
        return None if ms is None else (self.detect_ms or 0.0) + ms

    def moments(self) -> list[tuple[str, float]]:
        """What happened, and how many milliseconds after the origin."""
        first = {"handover": "left", "stall": "noticed", "coordinator": "the next one leads", "differed": "found"}
        again = {"lost": f"{self.heir or 'its heir'} begins", "stall": "committed"}
        since = self.detect_ms or 0.0
        found = [(first.get(self.kind, "declared lost" if self.node else "decided"), since)]
        later = (
            ("plan without it" if self.node and self.kind != "differed" else "new plan", self.promote_ms),
            (again.get(self.kind, "training goes on"), self.resume_ms),
            ("step committed", self.recovered_ms),
            ("redundancy restored", self.restored_ms),
            (f"{self.node} is back", self.back_ms),
        )
        return [*found, *((what, since + ms) for what, ms in later if ms is not None)]

    def charge(self, interruptions: Iterable[pb.InterruptionCost]) -> pb.InterruptionCost | None:
        """What it cost, once that is known. A lost node that led to a rollback is charged as one."""
        back = ("rollback", "lost")
        kinds = {"rollback": back, "differed": back}.get(self.kind, (self.kind,))
        near = [x for x in interruptions if x.kind in kinds and (not x.node or x.node == self.node)]
        return min(
            (x for x in near if abs(x.time - self.time) < 1.0), key=lambda x: abs(x.time - self.time), default=None
        )


@dataclass(eq=False, kw_only=True)
class Incidents:
    """Takes the events of one run in their order."""

    found: list[Incident] = field(default_factory=list)
    _notices: dict[str, float] = field(default_factory=dict)
    _draining: set[str] = field(default_factory=set)
    _last: float = 0.0  # the time of the event before
    _committed: float = 0.0  # that of the last commit
    _over: bool = False  # the nodes may go: who leaves is no incident

    def take(self, entry: Entry) -> None:
        event = entry.event
        match event:
            case Warned():
                self._notices[event.node] = entry.time
            case Draining():  # again where its deadline has moved
                if event.node not in self._draining:
                    self._notices[event.node] = entry.time
                    self._draining.add(event.node)
            case Differed():
                self._begin(entry, "differed", event.found, entry.text, self._since(self._committed, entry.time))
            case Lost() if self._is_found(event.node):
                self.found[-1].story.append(entry)
            case Lost() if not self._over:
                self._begin(entry, "lost", event.node, event.evidence, event.detect_ms, event.stages)
            case Left() if not self._over:
                self._begin(entry, "handover", event.node, event.why, self._noticed_ms(event.node, entry.time))
                self.found[-1].redone = 0
            case RolledBack():
                self._rolled_back(entry)
            case TookOver() if self._committed:
                self._begin(entry, "coordinator", "", entry.text, self._since(self._last, entry.time))
            case Stalled():
                self._begin(entry, "stall", "", entry.text, self._since(self._committed, entry.time))
            case Planned():
                self._planned(entry, event)
            case Resumed() | Recovered():
                self._went_on(entry, event)
            case Committed() | Moving():
                self._committed_at(entry)
            case Joined():
                self._tell(entry)
                self._joined(entry, event.node)
            case Hot() | Failed():
                self._tell(entry)
            case Done() | Released():
                self._over = True
        self._last = entry.time

    @staticmethod
    def _since(before: float, now: float) -> float | None:
        return (now - before) * 1e3 if before else None

    def _noticed_ms(self, node: str, now: float) -> float | None:
        return self._since(self._notices.get(node, 0.0), now)

    def _begin(self, entry: Entry, kind: str, node: str, why: str, detect_ms: float | None, stages: str = "") -> None:
        noticed = self._notices.pop(node, None)
        self._draining.discard(node)
        begun = Incident(
            sequence=entry.sequence,
            kind=kind,
            node=node,
            time=entry.time,
            step=entry.step,
            why=why,
            stages=stages,
            detect_ms=detect_ms,
            notice_seconds=entry.time - noticed if noticed is not None else None,
            story=[entry],
        )
        self.found.append(begun)
        del self.found[:-KEPT]

    def _is_found(self, node: str) -> bool:
        """Whether the node is given up since it computes wrongly: that is told after the rollback."""
        last = self.found[-1] if self.found else None
        if last is None or last.kind != "differed" or last.promote_ms is not None:
            return False
        return node in last.node.split(", ")

    def _rolled_back(self, entry: Entry) -> None:
        self._over = False
        last = self.found[-1] if self.found else None
        if last is not None and last.kind == "differed" and last.back_to is None and last.promote_ms is None:
            last.story.append(entry)
            return
        if last is not None and last.kind == "lost" and last.recovered_ms is None and last.restored_ms is None:
            last.kind, last.step = "rollback", entry.step
            last.story.append(entry)
        else:
            self._begin(entry, "rollback", "", entry.text, self._since(self._committed, entry.time))

    def _open(self) -> Iterable[Incident]:
        """Those that are not over, the newest first."""
        for incident in reversed(self.found):
            if incident.kind in ("lost", "rollback", "differed"):
                if incident.restored_ms is not None:
                    return
                yield incident

    def _planned(self, entry: Entry, event: Planned) -> None:
        whole = bool(event.stages) and all(len(stage.required()) > 1 for stage in event.stages)
        self._tell(entry)
        for incident in self._open():
            passed = (entry.time - incident.time) * 1e3
            if incident.promote_ms is None:
                incident.promote_ms = passed
            if whole:
                incident.restored_ms = passed

    def _went_on(self, entry: Entry, event: Resumed | Recovered) -> None:
        self._tell(entry)
        for lost in reversed(self.found):
            if lost.node == event.node and lost.kind == "lost":
                if isinstance(event, Resumed):
                    lost.resume_ms = max(lost.resume_ms or 0.0, event.resume_ms)
                    lost.heir = event.heir or lost.heir
                else:
                    lost.redone = (lost.redone or 0) + event.redone
                    lost.recovered_ms = (entry.time - lost.time) * 1e3
                return

    def _joined(self, entry: Entry, node: str) -> None:
        gone = next((x for x in reversed(self.found) if x.node == node and x.lost), None)
        if gone is not None and gone.back_ms is None:
            gone.back_ms = (entry.time - gone.time) * 1e3

    def _committed_at(self, entry: Entry) -> None:
        for incident in self.found[-1:]:
            if incident.kind in ("rollback", "differed", "coordinator", "stall") and incident.resume_ms is None:
                incident.resume_ms = (entry.time - incident.time) * 1e3
        if isinstance(entry.event, Committed):
            self._committed = entry.time

    def _tell(self, entry: Entry) -> None:
        for incident in self._open():
            if len(incident.story) < STORY:
                incident.story.append(entry)
