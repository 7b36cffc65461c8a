"""Every decision of the coordinator: ``advance(state, event, now) -> (state, commands)``, and nothing else.

Pure: no I/O, clock, randomness or lock. Commands are to be carried out in order.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from coordinator import checkpoints, membership, takeover
from coordinator.commands import Command, Persist, Publish, Record
from coordinator.commits import commit_if_ready
from coordinator.decisions import Decision, reason_of, with_plan, zones_of
from coordinator.events import (
    Available,
    CaughtUp,
    CheckpointBad,
    Checkpointed,
    Draining,
    Event,
    Heard,
    Heartbeat,
    Joined,
    Left,
    NodeFailed,
    PeerLost,
    Ready,
    Resumed,
    Saved,
    StreamBroken,
    Tick,
    Warned,
)
from coordinator.placement import place
from coordinator.state import Layers, Phase, Settings, State
from coordinator.zones import in_words


def begin(settings: Settings, term: int = 1) -> State:
    """The state of a run that has not begun."""
    return State(settings=settings, term=term)


def advance(state: State, event: Event, now: float) -> Decision:
    """Takes one event at the time ``now`` (seconds of any clock that never goes back) and decides.

    Unknown or outdated events change nothing.
    """
    return _HANDLERS[type(event)](state, event, now)


def _joined(state: State, event: Joined, now: float) -> Decision:
    return membership.join(state, event, now)


def _available(state: State, event: Available, now: float) -> Decision:
    node = state.nodes.get(event.node)
    if node is None or node.incarnation != event.incarnation:
        return state, ()
    refusal = membership.refusal(state, event)
    if refusal:
        return membership.dismiss(state, event.node, refusal)
    node = replace(node, available=True, version=event.version, heard_at=now)
    state = replace(
        state,
        nodes={**state.nodes, event.node: node},
        layer_costs=state.layer_costs or event.layer_costs,
        fingerprint=state.fingerprint or event.fingerprint,
    )
    state, learnt = takeover.learn(state, event, now)
    if state.plan is None:
        return begin_era(state, now)
    why = takeover.without_its_state(state, event)
    if why:
        state, sent_away = membership.send_away(state, event.node, why, now)
        return state, (*learnt, *sent_away)
    state = takeover.start_over(state, event)
    told = takeover.catch_up(state, event)
    state, ended = takeover.complete(state, now)
    return state, (*learnt, *told, *ended)


def _heartbeat(state: State, event: Heartbeat, now: float) -> Decision:
    return _heard(state, Heard(((now, event),)))


def _heard(state: State, event: Heard) -> Decision:
    nodes = dict(state.nodes)
    records: list[Command] = []
    for at, beat in event.heartbeats:
        node = nodes.get(beat.node)
        if node is None or node.incarnation != beat.incarnation:
            continue
        reported = abs(beat.slowness - node.slowness) >= 0.25 * node.slowness
        if reported:
            text = f"{beat.node} takes {beat.slowness:.1f} times what it took at first"
            fields = {"node": beat.node, "slowness": f"{beat.slowness:.2f}"}
            records.append(Record("slow", f"{text}: the cut is reconsidered, it goes on", fields))
        nodes[beat.node] = replace(
            node,
            heard_at=at,
            version=beat.version,
            instruction=beat.instruction,
            finished=beat.finished,
            running_seconds=beat.running_seconds,
            median_seconds=beat.median_seconds,
            deviation_seconds=beat.deviation_seconds,
            samples=beat.samples,
            slowness=beat.slowness if reported else node.slowness,
            times=beat.times,
            sent_bytes=beat.sent_bytes,
            bytes_per_second=beat.bytes_per_second,
        )
    return replace(state, nodes=nodes), tuple(records)


def _ready(state: State, event: Ready, now: float) -> Decision:
    node = state.nodes.get(event.node)
    if node is None or node.incarnation != event.incarnation:
        return state, ()
    if event.era != state.era or state.plan is None or event.step > state.committed:
        return state, ()
    if event.step < state.committed:
        # Too late for its step. A node being seeded has caught up all the same: the next commit waits for it, since
        # a node that nobody waits for may never be in time.
        return replace(state, following=_with_layers(state.following, event.node, event.layers)), ()
    losses = state.losses or event.losses  # first value wins: a fact is kept by key, never added up twice (rule 7)
    norms = {**dict(zip(event.layers, event.squared_norms, strict=True)), **state.norms}
    open_losses = tuple(
        replace(x, redone=event.redone) if (x.stage, x.heir) == (event.stage, event.node) else x
        for x in state.open_losses
    )
    state = replace(
        state,
        facts=_with_layers(state.facts, event.node, event.layers),
        norms=norms,
        losses=losses,
        open_losses=open_losses,
        nodes={**state.nodes, event.node: replace(node, heard_at=now)},
    )
    return commit_if_ready(state, now)


def _caught_up(state: State, event: CaughtUp, now: float) -> Decision:
    node = state.nodes.get(event.node)
    if node is None or node.incarnation != event.incarnation or event.era != state.era or state.plan is None:
        return state, ()
    layers = range(event.first_layer, event.end_layer)
    return replace(state, following=_with_layers(state.following, event.node, layers)), ()


def _with_layers(known: Layers, node: str, layers: range) -> Layers:
    return {**known, node: known.get(node, frozenset()) | frozenset(layers)}


def _resumed(state: State, event: Resumed, now: float) -> Decision:
    commands: list[Command] = []
    losses = []
    for loss in state.open_losses:
        if (loss.stage, loss.heir) == (event.stage, event.node) and loss.resumed_at is None:
            loss = replace(loss, resumed_at=now)
            ms = f"{(now - loss.at) * 1e3:.1f}"
            fields = {"node": loss.node, "heir": loss.heir, "stage": str(loss.stage), "resume_ms": ms}
            commands.append(Record("resumed", f"{loss.heir} resumed stage {loss.stage} after {ms} ms", fields))
        losses.append(loss)
    return replace(state, open_losses=tuple(losses)), tuple(commands)


def _peer_lost(state: State, event: PeerLost, now: float) -> Decision:
    return chain(membership.peer_lost(state, event, now), now)


def _stream_broken(state: State, event: StreamBroken, now: float) -> Decision:
    return chain(membership.stream_broken(state, event, now), now)


def _left(state: State, event: Left, now: float) -> Decision:
    node = state.nodes.get(event.node)
    if node is None or node.incarnation != event.incarnation:
        return state, ()
    return chain(membership.lose(state, {event.node: f"it left: {event.why}"}, now), now)


def _failed(state: State, event: NodeFailed, now: float) -> Decision:
    text = f"{event.node}: {event.why}"
    state = replace(state, phase=Phase.FAILED, detail=text)
    return state, (Record("failed", text, {"node": event.node, "why": event.why}),)


def _tick(state: State, event: Tick, now: float) -> Decision:
    state, ended = takeover.complete(state, now)
    state, commands = chain(membership.tick(state, now), now)
    return state, (*ended, *commands)


_HANDLERS: Mapping[type, Callable[..., Decision]] = {
    Joined: lambda s, e, n: chain(_joined(s, e, n), n),
    Available: lambda s, e, n: chain(_available(s, e, n), n),
    Heartbeat: _heartbeat,
    Heard: lambda s, e, n: _heard(s, e),
    Ready: _ready,
    CaughtUp: _caught_up,
    Resumed: _resumed,
    PeerLost: _peer_lost,
    StreamBroken: _stream_broken,
    Left: _left,
    Draining: lambda s, e, n: membership.drain(s, e, n),
    Warned: lambda s, e, n: membership.warn(s, e),
    Saved: lambda s, e, n: checkpoints.saved(s, e),
    Checkpointed: lambda s, e, n: checkpoints.checkpointed(s, e),
    CheckpointBad: lambda s, e, n: chain(checkpoints.bad(s, e), n),
    NodeFailed: _failed,
    Tick: _tick,
}


def chain(decision: Decision, now: float) -> Decision:
    """What follows at once from a change of members: a new era if a stage has no copy, or a commit that is now due."""
    state, commands = decision
    if state.phase is Phase.WAITING and state.plan is None:
        state, more = begin_era(state, now)
    else:
        state, more = commit_if_ready(state, now)
    return state, (*commands, *more)


def begin_era(state: State, now: float) -> Decision:
    """Places the model from its beginning once enough nodes are there."""
    if state.phase is not Phase.WAITING or state.plan is not None:
        return state, ()
    settings = state.settings
    nodes = [n.node for n in state.nodes.values() if n.available and not n.draining]
    needed = settings.nodes or settings.stages
    if state.era > 0:  # after a rollback: what is left goes on, but not without a standby while there may be one
        needed = min(needed, 2 if settings.redundancy and settings.stages > 1 else 1)
    if len(nodes) < needed:
        detail = f"waiting for {needed - len(nodes)} more node(s): {len(nodes)} of {needed} are there"
        if detail == state.detail:
            return state, ()
        return replace(state, detail=detail), (Record("waiting", detail),)
    zones = zones_of(state)
    stages = place(nodes, state.layer_costs, settings.stages, settings.redundancy, zones)
    reason = f"{len(nodes)} nodes for {settings.stages} stages, from step {state.committed}"
    if state.committed > 0:
        reason += f", by the checkpoint {state.checkpoints[-1][1]}"
    crossing = in_words(stages, zones, state.layer_costs)
    reason = reason_of([reason, crossing] if crossing else [reason])
    state, plan, records = with_plan(state, stages, reason, now)
    state = replace(state, phase=Phase.RUNNING, detail="training")
    return state, (Persist(), Publish(plan), *records)


def validate(state: State) -> None:
    """Raises AssertionError, in words, if the state breaks an invariant. Run after every event in tests."""
    plan = state.plan
    assert 0 <= state.committed <= state.settings.steps, f"{state.committed} steps committed of {state.settings.steps}"
    assert not {(n.node, n.incarnation) for n in state.nodes.values()} & state.fenced, (
        "a fenced incarnation is a member"
    )
    assert (plan is not None) or state.phase in (Phase.WAITING, Phase.FAILED), f"no plan while {state.phase.value}"
    if plan is None:
        return
    assert plan.era == state.era, f"the plan is of era {plan.era}, the state of {state.era}"
    assert plan.generation == state.generation or plan.order < (state.term, state.generation), "the newest is present"
    assert [r for s in plan.stages for r in s.layers] == list(range(plan.stages[-1].end_layer)), "layers in order, once"
    for s, stage in enumerate(plan.stages):
        holders = [*stage.owners, *(b.node for b in stage.standbys)]
        assert len(set(holders)) == len(holders), f"stage {s} names a holder twice: {holders}"
        for node in holders:
            assert node in plan.members, f"{node} holds stage {s} but is no member"
            assert node in state.nodes, f"stage {s} is with {node}, which is lost"
            assert plan.members[node].incarnation == state.nodes[node].incarnation, f"{node} is another incarnation now"
        exposed = state.settings.redundancy and stage.hot_standby() is None
        assert exposed == (s in state.exposed_since), f"stage {s}: exposure is not on record"
