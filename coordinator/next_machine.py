"""What one node more, or one less, would change of a step: what the coordinator would do then. Pure, with a reason."""

# The same code decides here as at a commit: who is usable, what a situation is (``situations``), who takes a lost
# node's stages over (``placement``), which shape pays (``repartition``). It is asked of a state in which a node is
# there twice, or is not there. So nothing here can say what the coordinator would not do.
#
#     the state with another node    settle, propose          its step, in ratio to the present one
#     the state as it is             settle, propose          what is to come anyhow: the measure of the two others
#     the state without a node       promote, settle, propose
#
# One more is like the commonest of the nodes. One less is the node whose going costs least: a spare, or else the one
# that gives least for its price. Whether the market would take that one is another matter.

from collections import Counter
from dataclasses import dataclass, replace

from culm.coordinator.decisions import budget_of, zones_of
from culm.coordinator.membership import usable
from culm.coordinator.placement import place, promote, settle
from culm.coordinator.repartition import propose, shape_in_words
from culm.coordinator.situations import situation_of
from culm.coordinator.state import Node, Phase, State
from culm.coordinator.step_cost import Rates, Situation, estimate, rates
from culm.pipeline.counting import counted
from culm.pipeline.plan import Stages
from culm.pipeline.text import natural_order

ANOTHER = "one more"  # its name; no node has a name with a space
# Rounds of ``settle``, each of which begins to move one duty at most. It moves few for one node; with many stages each
# round takes its time.
MOST_ROUNDS = 8


@dataclass(frozen=True, slots=True)
class Change:
    """``before`` and ``after``: seconds of a step with as many nodes as now, and with another number, in ratio to the
    present step.

    ``before`` is not 1 where the coordinator is about to change the shape anyhow.
    """

    node: str  # that there would be twice, or that would go
    before: float
    after: float
    dollars_per_hour: float  # more than now
    why: str  # what the coordinator would do, in words


def changes(state: State, now: float) -> tuple[Change | None, Change | None]:
    """Of one node more, and of one less. None where nobody can tell: no step runs, or no node would be left."""
    names = natural_order(usable(state))
    if state.plan is None or state.phase not in (Phase.RUNNING, Phase.PAUSED) or not names or not state.layer_costs:
        return None, None
    situation = situation_of(state, now)
    present = estimate(state.plan.stages, situation)
    nominal = rates(present, situation)
    length = nominal.length(present)
    if not length:  # layers without parameters, whose times nobody has measured
        return None, None
    to_come = state.plan.target or _to_come(state, state.plan.stages, situation)[0]
    before = _length(to_come, situation, nominal) / length
    found: list[Change | None] = []
    for other, node, price in (_with_another(state, names), _without_one(state, names, situation)):
        if other is None:
            found.append(None)
            continue
        then = situation_of(other, now)
        stages, why = _to_come(other, _taken_over(other, state.plan.stages), then)
        after = _length(stages, then, nominal) / length
        # The shape alone: what the rest compares with is the cluster of then, not of now.
        shape = why.partition(":")[0]
        found.append(Change(node, before, after, price, shape or _kept_in_words(stages, to_come, node, then)))
    return found[0], found[1]


def _with_another(state: State, names: list[str]) -> tuple[State | None, str, float]:
    kinds = Counter(_kind(state.nodes[name]) for name in names)
    common = max(kinds.values())
    like = next(state.nodes[name] for name in names if kinds[_kind(state.nodes[name])] == common)
    another = replace(like, node=ANOTHER, incarnation=like.incarnation + 1)
    return replace(state, nodes={**state.nodes, ANOTHER: another}), like.node, like.price.per_hour


def _without_one(state: State, names: list[str], situation: Situation) -> tuple[State | None, str, float]:
    assert state.plan is not None
    if len(names) < 2:
        return None, "", 0.0
    owners = {owner for stage in state.plan.stages for owner in stage.distinct_owners}

    def worth(name: str) -> tuple[bool, float, int]:
        """The least goes; of equals the last by name."""
        speed = 1.0 / situation.slowness.get(name, 1.0)
        return name in owners, speed / max(state.nodes[name].price.per_hour, 1e-9), -names.index(name)

    least = min(names, key=worth)
    nodes = {name: node for name, node in state.nodes.items() if name != least}
    return replace(state, nodes=nodes), least, -state.nodes[least].price.per_hour


def _kind(node: Node) -> tuple[object, ...]:
    return node.machine.provider, node.machine.instance_type, node.price.per_hour, node.memory_bytes, node.pace.known


def _taken_over(state: State, stages: Stages) -> Stages:
    """The stages once nodes that are gone have handed over what they held."""
    gone = {name for stage in stages for name in stage.holders()} - set(state.nodes)
    if not gone:
        return stages
    after, _ = promote(stages, gone, state.layer_costs, budget_of(state))
    if after is not None:
        return after
    # Somebody has to be seeded first, or all begin anew from a checkpoint: either way all of them share the work.
    situation = situation_of(state, 0.0)
    return place(
        situation.nodes,
        situation.layer_costs,
        len(stages),
        copies=situation.copies,
        zones=situation.zones,
        pipelines=situation.pipelines,
        parameters=situation.layer_parameters,
        passed=situation.passed,
        whole_pipelines=situation.whole_pipelines,
    )


def _to_come(state: State, stages: Stages, situation: Situation) -> tuple[Stages, str]:
    """What commits will make of the stages once all that is to be seeded is; and why, where the shape changes."""
    zones, budget = zones_of(state), budget_of(state)
    for _ in range(MOST_ROUNDS):
        seeded = {(s, b.node) for s, stage in enumerate(stages) for b in stage.standbys}
        settled, _ = settle(stages, situation.nodes, seeded, (), state.copies_wanted, zones, state.layer_costs, budget)
        if settled == stages:
            break
        stages = settled
    proposal = propose(stages, situation)
    return proposal if proposal is not None else (stages, "")


def _length(stages: Stages, situation: Situation, nominal: Rates) -> float:
    return nominal.length(estimate(stages, situation))


def _kept_in_words(stages: Stages, before: Stages, node: str, then: Situation) -> str:
    """Of nodes that make no other shape."""
    shape, part, nodes = shape_in_words(stages, then), "stage", len(then.nodes)
    if then.whole_pipelines:
        shape, part = counted(then.pipelines, "chunk"), "chunk"
    owners = len({owner for stage in stages for owner in stage.distinct_owners})
    if all(node not in stage.distinct_owners for stage in before):
        return f"{node} runs no {part}: {shape} stay on {owners} nodes"
    spare = f", and {nodes - owners} nodes would run none" if nodes - owners > 1 else ""
    spare = ", and one node would run none" if nodes - owners == 1 else spare
    if nodes == 1:
        return f"the only node that is left would run {shape}"
    return f"no other shape of {nodes} nodes pays: {shape} on {owners} of them{spare}"
