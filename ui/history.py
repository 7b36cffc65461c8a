"""What the UI remembers of the event log: the loss curve, what happened to nodes, and what was decided and why."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from culm.pipeline.money.ledger import ENDS
from culm.pipeline.plan import stages_from_lists
from culm.protos import coordinator_pb2 as pb

ROUTINE = ("commit", "usage")  # too many to list


@dataclass(eq=False)
class Preemption:
    """One node that went, and how the others went on. Times in milliseconds from its loss; None: not (yet) known."""

    node: str
    time: float  # unix seconds
    step: int
    kind: str  # "loss", "rollback" or "handover"
    why: str
    stages: str = ""
    notice_seconds: float | None = None  # from the notice to the end
    detect_ms: float | None = None  # silence before it was declared lost
    promote_ms: float | None = None  # until the next plan
    resume_ms: float | None = None  # until the heir's first instruction
    restored_ms: float | None = None  # until every stage has a hot standby again
    redone: int | None = None  # instructions


@dataclass(eq=False)
class History:
    """Takes the events of one run in their order."""

    steps: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    preemptions: list[Preemption] = field(default_factory=list)
    notable: list[pb.ListEventsResponse] = field(default_factory=list)
    gone: dict[str, float] = field(default_factory=dict)  # nodes lost and not back, and when
    _notices: dict[str, float] = field(default_factory=dict)

    def take(self, event: pb.ListEventsResponse) -> None:
        facts = event.fields
        if event.kind not in ROUTINE:
            self.notable.append(event)
        if event.kind == "commit":
            # It may be known of a coordinator that died before it had put it on record: the next one tells it again.
            self._drop_from(int(facts["step"]))
            self.steps.append(int(facts["step"]))
            self.losses.append(float(facts["loss"]))
            self.times.append(event.time)
        elif event.kind in ("draining", "warned"):
            self._notices[facts["node"]] = event.time
        elif event.kind == "joined":
            self.gone.pop(facts["node"], None)
        elif event.kind == "rollback":
            self._rolled_back(int(facts["step"]))
        elif event.kind == "plan":
            self._planned(event)
        elif event.kind in ("resumed", "recovered"):
            self._went_on(event.kind, facts)
        if event.kind in ENDS:
            self._ended(event)

    def _drop_from(self, step: int) -> None:
        while self.steps and self.steps[-1] >= step:
            for series in (self.steps, self.losses, self.times):
                series.pop()

    def _rolled_back(self, step: int) -> None:
        self._drop_from(step)
        for preemption in self.preemptions[-1:]:
            preemption.kind = "rollback"

    def _ended(self, event: pb.ListEventsResponse) -> None:
        facts, node = event.fields, event.fields["node"]
        noticed = self._notices.pop(node, None)
        notice = event.time - noticed if noticed is not None else None
        if event.kind == "lost":
            self.gone[node] = event.time
            loss = Preemption(node, event.time, event.step, "loss", facts["evidence"], facts["stages"], notice)
            loss.detect_ms = float(facts["detect_ms"])
            self.preemptions.append(loss)
        elif event.kind == "left":
            why = facts["why"]
            self.preemptions.append(
                Preemption(node, event.time, event.step, "handover", why, notice_seconds=notice, redone=0)
            )

    def _planned(self, event: pb.ListEventsResponse) -> None:
        stages = stages_from_lists(json.loads(event.fields.get("stages", "[]")))
        whole = bool(stages) and all(stage.hot_standby() is not None for stage in stages)
        for loss in reversed(self.preemptions):
            if loss.restored_ms is not None:
                break
            if loss.kind == "handover":
                continue
            passed = (event.time - loss.time) * 1e3
            if loss.promote_ms is None:
                loss.promote_ms = passed
            if whole:
                loss.restored_ms = passed

    def _went_on(self, kind: str, facts: Mapping[str, str]) -> None:
        for loss in reversed(self.preemptions):
            if loss.node == facts["node"] and loss.kind == "loss":
                if kind == "resumed":
                    loss.resume_ms = max(loss.resume_ms or 0.0, float(facts["resume_ms"]))
                else:
                    loss.redone = (loss.redone or 0) + int(facts["redone"])
                return
