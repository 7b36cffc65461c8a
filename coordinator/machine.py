"""Every decision of the coordinator: ``advance(state, event, now) -> (state, commands)``, and nothing else.

Pure: no I/O, clock, randomness or lock. Commands are to be carried out in order.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from coordinator import checkpoints, links, membership, takeover
from coordinator.decisions import Decision, commit_record, reason_of, with_plan
from coordinator.placement import natural_order, place, release, settle
from coordinator.repartition import Situation, propose
from coordinator.state import (
    Available,
    CheckpointBad,
    Checkpointed,
    Command,
    Commit,
    Draining,
    Event,
    Heartbeat,
    Joined,
    Layers,
    Left,
    Loss,
    NodeFailed,
    PeerLost,
    Persist,
    Phase,
    Publish,
    Ready,
    Record,
    Resumed,
    Saved,
    Settings,
    State,
    StreamBroken,
    Tick,
)
from pipeline.clip import clip_scale
from pipeline.plan import Plan, Stages

HOUR = 3600.0  # until the next loss, as long as none tells better
LEAVE_SECONDS = 5.0  # how long before its machine goes a node is let go, replaced or not


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
    told = takeover.catch_up(state, event)
    state, ended = takeover.complete(state, now)
    return state, (*learnt, *told, *ended)


def _heartbeat(state: State, event: Heartbeat, now: float) -> Decision:
    node = state.nodes.get(event.node)
    if node is None or node.incarnation != event.incarnation:
        return state, ()
    before = node.slowness
    node = replace(
        node,
        heard_at=now,
        version=event.version,
        instruction=event.instruction,
        finished=event.finished,
        running_seconds=event.running_seconds,
        median_seconds=event.median_seconds,
        deviation_seconds=event.deviation_seconds,
        samples=event.samples,
        slowness=event.slowness,
    )
    state = replace(state, nodes={**state.nodes, event.node: node})
    if abs(node.slowness - before) < 0.25 * before:
        return replace(state, nodes={**state.nodes, event.node: replace(node, slowness=before)}), ()
    text = f"{event.node} takes {node.slowness:.1f} times what it took at first: the cut is reconsidered, it goes on"
    return state, (Record("slow", text, {"node": event.node, "slowness": f"{node.slowness:.2f}"}),)


def _ready(state: State, event: Ready, now: float) -> Decision:
    node = state.nodes.get(event.node)
    if node is None or node.incarnation != event.incarnation:
        return state, ()
    if event.era != state.era or state.plan is None or event.step > state.committed:
        return state, ()
    if event.step < state.committed:
        # Too late for its step. A node being seeded has caught up all the same: the next commit waits for it, since
        # a node that nobody waits for may never be in time.
        return replace(state, following=_with_layers(state.following, event)), ()
    losses = state.losses or event.losses  # first value wins: a fact is kept by key, never added up twice (rule 7)
    norms = {**dict(zip(event.layers, event.squared_norms, strict=True)), **state.norms}
    open_losses = tuple(
        replace(x, redone=event.redone) if (x.stage, x.heir) == (event.stage, event.node) else x
        for x in state.open_losses
    )
    state = replace(
        state,
        facts=_with_layers(state.facts, event),
        norms=norms,
        losses=losses,
        open_losses=open_losses,
        nodes={**state.nodes, event.node: replace(node, heard_at=now)},
    )
    return commit_if_ready(state, now)


def _with_layers(known: Layers, event: Ready) -> Layers:
    return {**known, event.node: known.get(event.node, frozenset()) | frozenset(event.layers)}


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
    Ready: _ready,
    Resumed: _resumed,
    PeerLost: _peer_lost,
    StreamBroken: _stream_broken,
    Left: _left,
    Draining: lambda s, e, n: membership.drain(s, e, n),
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
    stages = place(nodes, state.layer_costs, settings.stages, settings.redundancy)
    reason = f"{len(nodes)} nodes for {settings.stages} stages, from step {state.committed}"
    if state.committed > 0:
        reason += f", by the checkpoint {state.checkpoints[-1][1]}"
    state, plan, records = with_plan(state, stages, reason, now)
    state = replace(state, phase=Phase.RUNNING, detail="training")
    return state, (Persist(state), Publish(plan), *records)


def missing(state: State, plan: Plan) -> tuple[str, ...]:
    """Who is still to report ready for the step being committed, as ``stage:node``.

    Owners and hot standbys are required; a node being seeded is waited for once it has caught up.
    """
    nothing: frozenset[int] = frozenset()
    out = []
    for s, stage in enumerate(plan.stages):
        layers = frozenset(stage.layers)
        for node in stage.holders():
            if node not in stage.required() and not layers <= state.following.get(node, nothing):
                continue
            if not layers <= state.facts.get(node, nothing):
                out.append(f"{s}:{node}")
    for stage in plan.target:
        for node in stage.holders():
            awaited = frozenset(stage.layers) & state.following.get(node, nothing)
            if not awaited <= state.facts.get(node, nothing):
                out.append(f"target:{node}")
    return tuple(out)


def commit_if_ready(state: State, now: float) -> Decision:
    """The gate: commits when every holder that the present plan requires is on record (rule 6)."""
    plan = state.plan
    if plan is None or state.phase is not Phase.RUNNING or takeover.recovering(state) or missing(state, plan):
        return state, ()
    settings = state.settings
    norms = [state.norms[layer] for layer in sorted(state.norms)]
    scale = clip_scale(norms, settings.clip_norm)
    loss = sum(state.losses) / len(state.losses) if state.losses else 0.0
    step = state.committed
    recovered = tuple(_recovered(state, loss, now) for loss in state.open_losses)
    seeded = {
        (s, node)
        for s, stage in enumerate(plan.stages)
        for node in stage.holders()
        if frozenset(stage.layers) <= state.facts.get(node, frozenset())
    }
    state = links.carried(state, plan, now)
    before = state
    state = replace(state, committed=step + 1, facts={}, norms={}, losses=(), open_losses=(), detail="training")
    next_plan = None
    records: list[Command] = []
    ended: list[Command] = []
    if state.committed >= settings.steps:
        state = replace(state, phase=Phase.DONE, detail="every step is committed")
        ended.append(Record("done", f"all {settings.steps} steps are committed", {"step": str(state.committed)}))
    else:
        facts = before.facts
        stages, reasons, released = _rearranged(state, plan, seeded, now)
        target, why = _target(state, plan, stages, facts, now)
        if target and complete(target, facts):
            stages, target, why = target, (), f"{len(target)} stages take the place of {len(plan.stages)}"
        if stages != plan.stages or target != plan.target:
            reason = reason_of([*reasons, why] if why else reasons)
            state, next_plan, planned = with_plan(state, stages, reason, now, target)
            records.extend(planned)
        state, farewell = membership.let_go(state, released)
        ended.extend(farewell)
    commit = Commit(state.term, state.era, step, scale, loss, next_plan)
    state = replace(state, last_commit=commit)
    return state, (Persist(state), commit, commit_record(commit), *recovered, *records, *ended)


def _rearranged(
    state: State, plan: Plan, seeded: Collection[tuple[int, str]], now: float
) -> tuple[Stages, list[str], list[str]]:
    """The stages from the next step on, the reasons, and the nodes that can go now."""
    settings = state.settings
    leaving = {n.node for n in state.nodes.values() if n.draining}
    if not settings.redundancy and not leaving and not any(stage.standbys for stage in plan.stages):
        return plan.stages, [], []
    usable = membership.usable(state)
    stages, reasons = settle(plan.stages, usable, seeded, leaving, settings.redundancy)
    released = []
    for name in sorted(leaving):
        node = state.nodes[name]
        duties = [s for s, stage in enumerate(stages) if name in stage.holders()]
        if any(stages[s].owner == name for s in duties):
            continue
        replaced = all(any(not b.hot for b in stages[s].standbys) for s in duties)  # by one that is being seeded
        in_time = node.leaves_at is None or now < node.leaves_at - LEAVE_SECONDS
        if duties and replaced and in_time:
            continue
        stages = release(stages, name)
        released.append(name)
        reasons.append(f"{name} has handed over and goes")
    return stages, reasons, released


def complete(target: Stages, facts: Layers) -> bool:
    """Whether every holder of the stages to be holds all of their layers at the version being committed."""
    return all(frozenset(s.layers) <= facts.get(n, frozenset()) for s in target for n in s.holders())


def _target(state: State, plan: Plan, stages: Stages, facts: Layers, now: float) -> tuple[Stages, str]:
    """The stages to prepare from now on: those under way as long as their nodes stay, else new ones that pay."""
    usable = membership.usable(state)
    if plan.target:
        stay = all(n in usable for s in plan.target for n in s.holders())
        return (plan.target, "") if stay else ((), "a node of the stages to be goes: they are given up")
    settings = state.settings
    busy = any(not b.hot for s in stages for b in s.standbys) or any(n.draining for n in state.nodes.values())
    if busy or now - state.changed_at < settings.settle_seconds:
        return (), ""
    asked = settings.stages
    most = max(asked, settings.most_stages)
    if len(usable) > asked:  # beyond what the job asks for only those count that need not stay spare
        most = min(most, max(asked, len(usable) - settings.spares))
    interval = HOUR
    if len(state.losses_at) > 1:
        interval = (state.losses_at[-1] - state.losses_at[0]) / (len(state.losses_at) - 1)
    situation = Situation(
        state.layer_costs,
        settings.microbatches,
        most,
        tuple(natural_order(usable)),
        settings.redundancy,
        settings.seed_bytes_per_second,
        interval,
        {n: state.nodes[n].slowness for n in usable},
    )
    proposal = propose(stages, situation)
    return proposal if proposal is not None else ((), "")


def _recovered(state: State, loss: Loss, now: float) -> Record:
    resumed = (loss.resumed_at if loss.resumed_at is not None else now) - loss.at
    fields = {
        "node": loss.node,
        "stage": str(loss.stage),
        "step": str(state.committed),
        "detect_ms": f"{loss.detect_seconds * 1e3:.1f}",
        "resume_ms": f"{resumed * 1e3:.1f}",
        "redone": str(loss.redone),
    }
    done = f"{loss.redone} instructions of stage {loss.stage} redone"
    text = f"step {state.committed} survived the loss of {loss.node}: {done}"
    return Record("recovered", text, fields)


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
    assert plan.generation == state.generation, "the present plan is the newest"
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
