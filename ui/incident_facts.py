"""What is told of an incident beside its time line, in words: the same in a browser and in a terminal. Pure."""

from datetime import tzinfo

from culm.pipeline.money.example_prices import WORDS as EXAMPLE_PRICES
from culm.pipeline.money.kinds import Differed
from culm.protos import coordinator_pb2 as pb
from culm.ui.incidents import Incident
from culm.ui.words import moment, money, span

ORIGINS = {
    "lost": "last sign of life",
    "rollback": "last sign of life",
    "differed": "last commit",
    "handover": "notice",
    "coordinator": "last event before",
    "stall": "last commit",
}


def origin_of(incident: Incident) -> str:
    """What all its times count from, in words."""
    return "last commit" if incident.kind == "rollback" and not incident.node else ORIGINS[incident.kind]


def facts(
    incident: Incident,
    charge: pb.InterruptionCost | None,
    over: bool,
    zone: tzinfo,
    made_up: bool = False,
    step: str = "step",
) -> list[tuple[str, str]]:
    """``charge``: what it cost, where that is known; ``over``: the run is; ``made_up``: the prices are examples.

    ``step``: what a step is called; on a graph it is an epoch.
    """
    found = [("origin", f"{moment(incident.origin, zone)} ({origin_of(incident)})"), (step, f"{incident.step:,}")]
    event = incident.story[0].event
    if isinstance(event, Differed):
        found.append(("what differs", event.what))
        found.append(("nodes that differ", event.nodes or "one of them has gone"))
        found.append(("computes wrongly", event.found or "nobody can say yet"))
    if incident.back_to is not None:
        found.append(("went back to", f"{step} {incident.back_to:,}"))
    if incident.stages:
        found.append(("stages that it ran", incident.stages))
    if incident.heir:
        found.append(("heir", incident.heir))
    if incident.kind in ("lost", "handover"):
        found.append(("notice", span(incident.notice_seconds) if incident.notice_seconds is not None else "none"))
    if incident.redone is not None:
        found.append(("instructions redone", str(incident.redone)))
    if charge is not None:
        found.append(("time lost", f"{charge.seconds:.2f} s"))
        found.append(("cost", f"{money(charge.dollars)}{f' at {EXAMPLE_PRICES}' if made_up else ''}"))
    elif over and incident.kind != "handover":
        found.append(("cost", "no commit followed, which would have told it"))
    elif incident.kind != "handover":
        found.append(("cost", "not known yet: the next commit tells it"))
    if to_do := _to_do(incident, over):
        found.append(("to be done", to_do))
    return found


def _to_do(incident: Incident, over: bool) -> str:
    """What whoever looks at a lost node wants to know first."""
    if not incident.lost:
        return ""
    if over:
        return "nothing: the run is over"
    if incident.kind == "differed":
        return f"take {incident.node} out of service: its next run may compute wrongly as well"
    if incident.back_ms is not None:
        return f"nothing: {incident.node} is back"
    if incident.restored_ms is not None:
        return "nothing now; another node would bring the speed of before back (culm add)"
    return "add a node, if none comes by itself (culm add): a stage has a single copy"
