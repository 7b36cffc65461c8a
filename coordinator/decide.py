"""Every decision of the coordinator: ``advance(state, report, now) -> (state, commands)``, and nothing else.

Pure: no I/O, clock, randomness or lock. Commands are to be carried out in order.
"""

# A handler decides what its report says. Where that changes who is there or what is on record, ``chain`` then asks what
# else has become possible, always in this order:
#
#     too many deaths at one piece of work?              blame.judged: the run fails (rule 16)
#     the run is over, or everybody is to go?            ending.look: nodes are let go
#     no plan, and enough nodes?                         begin_era
#     every step is committed?                           commits.keep: copies are repaired as before (rule 17)
#     all holders of the running step are on record?     commits.commit_if_ready, with what changes then
#
# So whatever makes the gate's condition true, be it a Ready, a lost node or another plan, it is looked at (rule 6).
#
# The phases:
#
#     WAITING --enough nodes are available--> RUNNING --the last commit--> DONE
#        ^                                       |                          |
#        +---- a stage has no copy left: a new era, from a checkpoint -----+
#
# FAILED is reached from everywhere, by the job's own fault alone. Only a coordinator that starts again leaves it.
#
# Time comes in with Tick: what is due, silent, stuck or overdue is looked for there, and nowhere else.

from collections.abc import Callable, Mapping
from dataclasses import replace

from culm.coordinator import (
    agreement,
    blame,
    checkpoints,
    ending,
    failures,
    membership,
    slowness,
    takeover,
    waiting,
    watchdog,
)
from culm.coordinator.commands import Command, Dismiss, Persist, Publish, Record
from culm.coordinator.commits import commit_if_ready, keep
from culm.coordinator.decisions import Decision, done, reason_of, with_plan, zones_of
from culm.coordinator.placement import place
from culm.coordinator.reports import (
    Available,
    Built,
    CaughtUp,
    CheckpointBad,
    Checkpointed,
    CheckpointFault,
    Condemned,
    Draining,
    Examined,
    Fetched,
    Heard,
    Heartbeat,
    Joined,
    Left,
    NodeFailed,
    PeerLost,
    Ready,
    Report,
    Resumed,
    Saved,
    StreamBroken,
    Tick,
    Unread,
    Warned,
)
from culm.coordinator.state import Layers, Phase, Settings, State
from culm.coordinator.zones import in_words
from culm.pipeline.money import kinds

SLOW_FOR = 1 / 3  # of the time that nodes are left alone before a new cut: so long a node is slow before it counts


def begin(settings: Settings, term: int = 1, leader: int = 0, now: float | None = None) -> State:
    """The state of a run of which the store knows nothing.

    With ``now`` it may have been led before: nodes that hold state have the time to say so (rule 15).
    """
    return State(settings=settings, term=term, leader=leader, took_over_at=now)


def advance(state: State, report: Report, now: float) -> Decision:
    """Takes one report at the time ``now`` (seconds of any clock that never goes back) and decides.

    Unknown or outdated reports change nothing.
    """
    return _HANDLERS[type(report)](state, report, now)


def _joined(state: State, report: Joined, now: float) -> Decision:
    ahead = takeover.ahead(state, report.node, report.term)
    if ahead is not None:
        return state, (ahead,)
    return membership.join(state, report, now)


def _available(state: State, report: Available, now: float) -> Decision:
    node = state.nodes.get(report.node)
    if node is None or node.incarnation != report.incarnation:
        return state, ()
    ahead = takeover.led_by_another(state, report)
    if ahead is not None:
        return state, (ahead,)
    state = takeover.before_checkpoints(state, report)
    refusal = membership.refusal(state, report)
    if refusal:
        return membership.dismiss(state, report.node, refusal)
    unannounced = () if node.announced else (membership.joined_record(node),)
    node = replace(node, available=True, announced=True, version=report.version, heard_at=now)
    state = replace(
        state,
        failures=failures.started(state.failures, failures.machine_of(node.node, node.pid)),
        nodes={**state.nodes, report.node: node},
        layer_costs=state.layer_costs or report.layer_costs,
        fingerprint=state.fingerprint or report.fingerprint,
        agreement=agreement.joined(state.agreement, report.identity, state.settings.same_hardware),
    )
    state, learnt = takeover.learn(state, report, now)
    learnt = (*unannounced, *learnt)
    if state.plan is None:
        state, begun = begin_era(state, now)
        return state, (*unannounced, *begun)
    why = takeover.without_its_state(state, report)
    if why:
        state, sent_away = membership.send_away(state, report.node, why, now)
        return state, (*learnt, *sent_away)
    state = takeover.start_over(state, report)
    told = takeover.catch_up(state, report)
    state, ended = takeover.complete(state, now)
    return state, (*learnt, *told, *ended)


def _built(state: State, report: Built, now: float) -> Decision:
    """Comes before any Ready over these layers, on the same stream: nothing is committed upon other values."""
    node = state.nodes.get(report.node)
    if node is None or node.incarnation != report.incarnation:
        return state, ()
    agreed, why = agreement.built(state.agreement, report.node, report.initial)
    if not why:
        return replace(state, agreement=agreed), (() if agreed == state.agreement else (Persist(),))
    state, commands = membership.lose(state, {report.node: why}, now)
    # First: the node ends with its reason, where one that is merely lost joins anew.
    gone = (Dismiss(report.node, report.incarnation, why), Record(kinds.Dismissed(node=report.node), why))
    return chain((state, (*gone, *commands)), now)


def _heartbeat(state: State, report: Heartbeat, now: float) -> Decision:
    return _heard(state, Heard(((now, report),)))


def _heard(state: State, report: Heard) -> Decision:
    nodes = dict(state.nodes)
    records: list[Command] = []
    for at, beat in report.heartbeats:
        node = nodes.get(beat.node)
        if node is None or node.incarnation != beat.incarnation:
            continue
        pace, changed = slowness.told(node.pace, beat.slowness, at, state.settings.settle_seconds * SLOW_FOR)
        if changed:
            text = f"{beat.node} takes {beat.slowness:.1f} times what it took at first"
            slow = kinds.Slow(node=beat.node, slowness=round(beat.slowness, 2))
            records.append(Record(slow, f"{text}: the cut is reconsidered, it goes on"))
        nodes[beat.node] = replace(
            node,
            heard_at=at,
            version=beat.version,
            instruction=beat.instruction,
            finished=beat.finished,
            running_seconds=beat.running_seconds,
            loading_seconds=beat.loading_seconds,
            median_seconds=beat.median_seconds,
            deviation_seconds=beat.deviation_seconds,
            samples=beat.samples,
            pace=pace,
            times=beat.times,
            sent_bytes=beat.sent_bytes,
            bytes_per_second=beat.bytes_per_second,
        )
    return replace(state, nodes=nodes), tuple(records)


def _ready(state: State, report: Ready, now: float) -> Decision:
    node = state.nodes.get(report.node)
    if node is None or node.incarnation != report.incarnation:
        return state, ()
    if report.era != state.era or state.plan is None or report.step > state.committed:
        return state, ()
    if report.step < state.committed:
        # Too late for its step. A node being seeded has caught up all the same: the next commit waits for it, since
        # a node that nobody waits for may never be in time. After the last commit only CaughtUp tells who has.
        if state.phase is Phase.DONE:
            return state, ()
        return replace(state, following=_with_layers(state.following, report.node, report.layers)), ()
    losses = state.losses or report.losses  # first value wins: a fact is kept by key, never added up twice (rule 7)
    norms = {**dict(zip(report.layers, report.squared_norms, strict=True)), **state.norms}
    lost_owners = tuple(
        replace(x, redone=report.redone) if (x.stage, x.heir) == (report.stage, report.node) else x
        for x in state.lost_owners
    )
    state = replace(
        state,
        facts=_with_layers(state.facts, report.node, report.layers),
        norms=norms,
        losses=losses,
        lost_owners=lost_owners,
        nodes={**state.nodes, report.node: replace(node, heard_at=now)},
    )
    return commit_if_ready(state, now)


def _caught_up(state: State, report: CaughtUp, now: float) -> Decision:
    node = state.nodes.get(report.node)
    if node is None or node.incarnation != report.incarnation or report.era != state.era or state.plan is None:
        return state, ()
    layers = range(report.first_layer, report.end_layer)
    if state.phase is Phase.DONE:
        # No commit will show that it still holds: it counts for the last version and the present plan alone.
        if (report.version, report.order) != (state.committed, (state.term, state.generation)):
            return state, ()
        return keep(replace(state, following=_with_layers(state.following, report.node, layers)), now)
    return replace(state, following=_with_layers(state.following, report.node, layers)), ()


def _with_layers(known: Layers, node: str, layers: range) -> Layers:
    return {**known, node: known.get(node, frozenset()) | frozenset(layers)}


def _resumed(state: State, report: Resumed, now: float) -> Decision:
    commands: list[Command] = []
    owners = []
    for lost in state.lost_owners:
        if (lost.stage, lost.heir) == (report.stage, report.node) and lost.resumed_at is None:
            lost = replace(lost, resumed_at=now)
            ms = round((now - lost.at) * 1e3, 1)
            resumed = kinds.Resumed(node=lost.node, heir=lost.heir, stage=lost.stage, resume_ms=ms)
            commands.append(Record(resumed, f"{lost.heir} resumed stage {lost.stage} after {ms:.1f} ms"))
        owners.append(lost)
    return replace(state, lost_owners=tuple(owners)), tuple(commands)


def _peer_lost(state: State, report: PeerLost, now: float) -> Decision:
    return chain(membership.peer_lost(state, report, now), now)


def _stream_broken(state: State, report: StreamBroken, now: float) -> Decision:
    return chain(membership.stream_broken(state, report, now), now)


def _left(state: State, report: Left, now: float) -> Decision:
    node = state.nodes.get(report.node)
    if node is None or node.incarnation != report.incarnation:
        return state, ()
    return chain(membership.lose(state, {report.node: f"it left: {report.why}"}, now), now)


def _condemned(state: State, report: Condemned, now: float) -> Decision:
    node = state.nodes.get(report.node)
    if node is None or node.incarnation != report.incarnation or node.condemned_at is not None:
        return state, ()
    return replace(state, nodes={**state.nodes, node.node: replace(node, condemned_at=now)}), ()


def _tick(state: State, report: Tick, now: float) -> Decision:
    state, ended = takeover.complete(state, now)
    state, commands = chain(membership.tick(state, now), now)
    state, watched = watchdog.look(state, now)
    return state, (*ended, *commands, *watched)


_HANDLERS: Mapping[type, Callable[..., Decision]] = {
    Joined: lambda s, e, n: chain(_joined(s, e, n), n),
    Available: lambda s, e, n: chain(_available(s, e, n), n),
    Built: _built,
    Heartbeat: _heartbeat,
    Heard: lambda s, e, n: _heard(s, e),
    Ready: _ready,
    CaughtUp: _caught_up,
    Resumed: _resumed,
    PeerLost: _peer_lost,
    StreamBroken: _stream_broken,
    Left: _left,
    Fetched: lambda s, e, n: ending.fetched(s, e),
    Draining: lambda s, e, n: chain(membership.drain(s, e, n), n),
    Warned: lambda s, e, n: membership.warn(s, e),
    Saved: lambda s, e, n: checkpoints.saved(s, e),
    Checkpointed: lambda s, e, n: chain(checkpoints.checkpointed(s, e), n),
    CheckpointBad: lambda s, e, n: chain(checkpoints.bad(s, e), n),
    CheckpointFault: lambda s, e, n: checkpoints.fault(s, e),
    Unread: lambda s, e, n: checkpoints.unread(s, e),
    Examined: lambda s, e, n: chain(checkpoints.examined(s, e), n),
    NodeFailed: lambda s, e, n: chain(blame.node_failed(s, e, n), n),
    Condemned: _condemned,
    Tick: _tick,
}


def chain(decision: Decision, now: float) -> Decision:
    """What follows at once from a change of members: the end of a run whose job is at fault, a new era if a stage has
    no copy, or a commit that is now due.
    """
    state, commands = blame.judged(decision)
    state, looked = ending.look(state, now)
    if state.phase is Phase.WAITING and state.plan is None:
        state, more = begin_era(state, now)
    elif state.phase is Phase.DONE:
        state, more = keep(state, now)
    else:
        state, more = commit_if_ready(state, now)
    return state, (*commands, *looked, *more)


def begin_era(state: State, now: float) -> Decision:
    """Places the model from its beginning once enough nodes are there."""
    if state.phase is not Phase.WAITING or state.plan is not None or takeover.recovering(state):
        return state, ()
    settings = state.settings
    # Who is to go has nothing left to hand over: it held its part until the era ended.
    state, gone = membership.let_go(state, sorted(n.node for n in state.nodes.values() if n.draining))
    nodes = [n.node for n in state.nodes.values() if n.available]
    needed = settings.nodes or settings.stages
    least = min(needed, 2 if settings.redundancy and settings.stages > 1 else 1)
    # After a rollback what is left goes on, but not without a standby while there may be one. Machines on which the
    # job does not start are not waited for.
    needed = least if state.era > 0 else max(least, needed - len(state.failures.starts))
    if len(nodes) < needed:
        text = f"waiting for {needed - len(nodes)} more node(s): {len(nodes)} of {needed} are there"
        if state.origin.folder:
            over = state.committed >= settings.steps
            text += f"; all {settings.steps} steps are in" if over else f"; it goes on from step {state.committed}, by"
            text += f" {state.origin}"
        if state.failures.newest_start:
            text += f"; the last that could not start is {state.failures.newest_start}"
        state, waits = waiting.wait(state, waiting.NODES, text)
        return state, (*([Persist()] if gone else []), *gone, *waits)
    zones = zones_of(state)
    stages = place(nodes, state.layer_costs, settings.stages, settings.redundancy, zones)
    reason = f"{len(nodes)} nodes for {settings.stages} stages, from step {state.committed}"
    if state.origin.folder:
        reason += f", by {state.origin}"
    crossing = in_words(stages, zones, state.layer_costs)
    reason = reason_of([reason, crossing] if crossing else [reason])
    state, plan, records = with_plan(state, stages, reason, now)
    reading = f"the nodes read {state.origin}"
    state = replace(state, phase=Phase.RUNNING, detail=reading if state.origin.folder else "training", waits={})
    if state.committed >= settings.steps:  # nothing is left to be trained: the holders read the final weights
        state = done(state, now)
        records = (*records, Record(kinds.Done(), f"the weights of all {settings.steps} steps are read again"))
    return state, (*gone, Persist(), Publish(plan), *records)


def validate(state: State) -> None:
    """Raises AssertionError, in words, if the state breaks an invariant. Run after every report in tests."""
    plan = state.plan
    assert 0 <= state.committed <= state.settings.steps, f"{state.committed} steps committed of {state.settings.steps}"
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
