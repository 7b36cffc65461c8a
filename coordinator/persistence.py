"""What outlives a coordinator: the parts of its state that a successor needs, as plain JSON-able data."""

from dataclasses import replace
from typing import Any

from coordinator import links
from coordinator.commands import Commit
from coordinator.state import Node, Phase, Settings, State
from pipeline.plan import Member, Plan, Redundancy, stages_from_lists, stages_to_lists

Document = dict[str, Any]


def to_document(state: State) -> Document:
    """The state without what nodes repeat when they attach again."""
    return {
        "phase": state.phase.value,
        "era": state.era,
        "committed": state.committed,
        "generation": state.generation,
        "plan": _plan_to(state.plan) if state.plan else None,
        "layer_costs": list(state.layer_costs),
        "fingerprint": state.fingerprint,
        "fenced": sorted([node, incarnation] for node, incarnation in state.fenced),
        "last_commit": _commit_to(state.last_commit) if state.last_commit else None,
        "exposed": sorted(state.exposed_since),
        "checkpoints": [list(checkpoint) for checkpoint in state.checkpoints],
        "parted": {node: parted.peer for node, parted in state.parted.items()},
    }


def from_document(document: Document, settings: Settings, term: int, now: float) -> State:
    """The state under a new term; the plan's members count as detached since now and may come back."""
    plan = _plan_from(document["plan"]) if document["plan"] else None
    nodes = {
        m.node: Node(m.node, m.incarnation, m.address, 0, m.zone, False, None, now, now)
        for m in (plan.members.values() if plan else ())
        if (m.node, m.incarnation) not in {(a, b) for a, b in document["fenced"]}
    }
    return State(
        settings=settings,
        term=term,
        phase=Phase(document["phase"]),
        era=document["era"],
        committed=document["committed"],
        generation=document["generation"],
        plan=plan,
        layer_costs=tuple(document["layer_costs"]),
        fingerprint=document["fingerprint"],
        nodes=nodes,
        fenced=frozenset((node, incarnation) for node, incarnation in document["fenced"]),
        last_commit=_commit_from(document["last_commit"]) if document["last_commit"] else None,
        exposed_since=dict.fromkeys(document["exposed"], now),
        checkpoints=tuple((step, folder) for step, folder in document["checkpoints"]),
        parted={node: links.parted(peer, settings, now) for node, peer in document["parted"].items()},
        took_over_at=now if plan is not None else None,
        detail="waiting for the nodes to attach again",
    )


def _plan_to(plan: Plan) -> Document:
    return {
        "term": plan.term,
        "generation": plan.generation,
        "era": plan.era,
        "step": plan.step,
        "reason": plan.reason,
        "origin": [plan.origin_step, plan.origin],
        "stages": stages_to_lists(plan.stages),
        "target": stages_to_lists(plan.target),
        "redundancy": [plan.redundancy.eager, plan.redundancy.ship_every] if plan.redundancy is not None else None,
        "members": [[m.node, m.incarnation, m.address, m.zone] for m in plan.members.values()],
    }


def _plan_from(document: Document) -> Plan:
    origin_step, origin = document["origin"]
    stages, target = stages_from_lists(document["stages"]), stages_from_lists(document["target"])
    members = {m[0]: Member(*m) for m in document["members"]}
    order = (document["term"], document["generation"], document["era"], document["step"])
    chosen = Redundancy(*document["redundancy"]) if document.get("redundancy") else None
    return Plan(*order, stages, members, document["reason"], origin_step, origin, target, chosen)


def _commit_to(commit: Commit) -> Document:
    return {
        "term": commit.term,
        "era": commit.era,
        "step": commit.step,
        "scale": commit.scale.hex(),
        "loss": commit.loss.hex(),
        "next_plan": _plan_to(commit.next_plan) if commit.next_plan else None,
    }


def _commit_from(document: Document) -> Commit:
    scale, loss = float.fromhex(document["scale"]), float.fromhex(document["loss"])
    plan = _plan_from(document["next_plan"]) if document["next_plan"] else None
    return Commit(document["term"], document["era"], document["step"], scale, loss, plan)


def without_volatile(state: State) -> State:
    """The state as it looks after a round trip, for comparison."""
    return replace(
        state,
        nodes={},
        evidence={},
        facts={},
        following={},
        norms={},
        losses=(),
        open_losses=(),
        review=None,
        took_over_at=None,
        changed_at=0.0,
        losses_at=(),
    )
