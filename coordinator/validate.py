"""What must always be true of the coordinator's state. Pure."""

from culm.coordinator.state import Phase, State


def validate(state: State) -> None:
    """Raises AssertionError, in words, if the state breaks an invariant. Run after every report in tests."""
    plan = state.plan
    assert len(state.layer_seconds) in (0, len(state.layer_costs)), "a cut goes by the times of all layers, or of none"
    assert len(state.layer_bytes) in (0, len(state.layer_costs)), "memory is asked for all layers, or for none"
    assert 0 <= state.committed <= state.end, f"{state.committed} steps committed of {state.end}"
    last = state.last_commit
    assert last is None or last.step < state.committed, f"{last} is on record, {state.committed} steps count (rule 8)"
    strangers = set(state.facts) - set(state.nodes)
    assert not strangers, f"facts of {strangers} count, who are gone (rule 6)"
    assert not {(n.node, n.incarnation) for n in state.nodes.values()} & state.fenced, (
        "a fenced incarnation is a member"
    )
    over = bool(state.ending.released)
    assert not over or (plan is None and state.phase is Phase.DONE), f"released, but {state.phase.value} with a plan"
    assert plan is not None or over or state.phase in (Phase.WAITING, Phase.FAILED), (
        f"no plan while {state.phase.value}"
    )
    if plan is None:
        return
    assert plan.era == state.era, f"the plan is of era {plan.era}, the state of {state.era}"
    assert plan.origin == state.origin, f"the plan is by {plan.origin}, the era by {state.origin} (rule 14)"
    paused = state.phase is Phase.PAUSED
    assert not paused or (plan.pause is not None and plan.pause == state.pause), f"{state.pause}, and {plan.pause} told"
    assert paused or plan.pause is None or state.phase is not Phase.RUNNING, f"running, and {plan.pause} in the plan"
    assert plan.early_stop == state.ending.early_stop, f"{plan.early_stop} in the plan, {state.ending.early_stop} known"
    assert plan.generation == state.generation or plan.order < (state.term, state.generation), (
        f"the plan is {plan.order}, of a state that made no more than ({state.term}, {state.generation})"
    )
    assert [r for s in plan.stages for r in s.layers] == list(range(plan.stages[-1].end_layer)), "layers in order, once"
    gone = [n for stage in plan.target for n in stage.holders() if n not in state.nodes]
    assert not gone, f"the stages to be are for {gone}, who are lost (rule 20)"
    for s, stage in enumerate(plan.stages):
        holders = [*dict.fromkeys(stage.owners), *(b.node for b in stage.standbys)]
        assert len(set(holders)) == len(holders), f"stage {s} names a holder twice: {holders}"
        for node in holders:
            assert node in plan.members, f"{node} holds stage {s} but is no member"
            assert node in state.nodes, f"stage {s} is with {node}, which is lost"
            assert plan.members[node].incarnation == state.nodes[node].incarnation, f"{node} is another incarnation now"
        reducers = stage.bucket_count if len(stage.distinct_owners) > 1 else 0
        named = stage.buckets.reducers
        assert len(named) == reducers, f"stage {s} has {len(named)} reducers of {reducers} (rule 20)"
        assert set(named) <= set(stage.owners), f"stage {s} has reducers that do not own it (rule 20)"
        exposed = state.settings.redundancy and len(stage.required()) < 2
        assert exposed == (s in state.exposed_since), f"stage {s}: exposure is not on record"
