"""Every decision of the coordinator: ``advance(state, report, now) -> (state, commands)``, and nothing else.

Pure: no I/O, clock, randomness or lock. Commands are to be carried out in order.
"""

# A handler decides what its report says. Where that changes who is there or what is on record, ``chain`` then asks what
# else has become possible, always in this order:
#
#     too many deaths at one piece of work?              blame.judged: the run fails (rule 16)
#     the run is over, or everybody is to go?            ending.look: nodes are let go
#     no plan, and enough nodes?                         begin_era
#     a node went that the stages to be need?            decisions.without_lost_target
#     every step is committed, or the run is paused?     commits.keep: copies are repaired as before (rule 17)
#     all holders of the running step are on record?     commits.commit_if_ready, with what changes then
#
# So whatever makes the gate's condition true, be it a Ready, a lost node or another plan, it is looked at (rule 6).
#
# Any report may be late, repeated, or of a process that is gone: streams break, and nodes say their facts again. So a
# handler first asks whether the report still holds: of this incarnation, this era, this step. Where it does not it
# changes nothing, and raises nothing. What cannot be true at all was refused before (``report_bounds``).
#
# The phases:
#
#     WAITING --enough nodes are available--> RUNNING --the last commit--> DONE
#        ^                                       |                          |
#        +---- a stage has no copy left: a new era, from a checkpoint -----+
#
# RUNNING and PAUSED take turns (``pausing``). An era that begins in a pause begins PAUSED.
#
# FAILED is reached from everywhere, by the job's own fault, or where a resumed run has no checkpoint left to go back
# to. Only a coordinator that starts again leaves it.
#
# Time comes in with Tick: what is due, silent, stuck or overdue is looked for there, and nowhere else. Heartbeats come
# a thousand at a time and decide nothing: they only leave what the next Tick looks at.

from collections.abc import Callable, Mapping
from dataclasses import replace

from culm.coordinator import (
    agreement,
    blame,
    bookmarks,
    checkpoints,
    cutting,
    draining,
    ending,
    failures,
    heartbeats,
    membership,
    pausing,
    rolling_back,
    saving,
    takeover,
    tensor_work,
    watchdog,
)
from culm.coordinator.commands import Command, Dismiss, Persist, Record
from culm.coordinator.commits import commit_if_ready, keep
from culm.coordinator.decisions import Decision, counting_of, without_lost_target
from culm.coordinator.eras import begin_era
from culm.coordinator.reports import (
    Available,
    Built,
    CaughtUp,
    CheckpointBad,
    Checkpointed,
    CheckpointFault,
    CheckpointsFound,
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
    Priced,
    Read,
    Ready,
    Report,
    Resumed,
    Saved,
    StreamBroken,
    Tick,
    Unread,
    Warned,
)
from culm.coordinator.requests import Pausing, SaveAsked, Spent, Unpausing
from culm.coordinator.state import Layers, Phase, Search, Settings, State, Storage
from culm.coordinator.validate import validate as validate
from culm.pipeline.money import kinds


def begin(settings: Settings, term: int = 1, leader: int = 0, now: float | None = None) -> State:
    """The state of a run of which the store knows nothing.

    With ``now`` it may have been led before: nodes that hold state have the time to say so (rule 15).
    """
    search = Search.NEEDED if now is not None and settings.searches else Search.OVER
    return State(settings=settings, term=term, leader=leader, took_over_at=now, storage=Storage(search=search))


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
    # First of all: under another leader nodes may have applied commits that this one does not know, and a decision
    # without those could only repeat them otherwise (rule 15).
    ahead = takeover.led_by_another(state, report)
    if ahead is not None:
        return state, (ahead,)
    # A node that is refused leaves nothing behind.
    before, state = state, takeover.before_newcomers(takeover.before_checkpoints(state, report), report)
    # Before anything that it says becomes the run's own: costs, fingerprint, identity (rule 23).
    refusal = membership.refusal(state, report)
    if refusal:
        return membership.dismiss(before, report.node, refusal)
    # One that could not start again and again joined without a word in the log: now it can be told of.
    unannounced = [] if node.announced else [membership.joined_record(node)]
    # Not at its Join: a node that refuses this coordinator's job joins twice a second (rule 23).
    if node.back:
        text = f"{node.node} is back: its connection to the coordinator is open again"
        unannounced.append(Record(kinds.Attached(node=node.node), text))
    node = replace(node, available=True, announced=True, back=False, version=report.version, heard_at=now)
    node = replace(node, memory_bytes=report.memory_bytes, spill_above=report.spill_above)
    if cutting.wanted(state):
        node = replace(node, layer_seconds=report.layer_seconds, unmeasured=report.unmeasured)
    state = replace(
        state,
        failures=failures.started(state.failures, failures.machine_of(node.node, node.pid)),
        nodes={**state.nodes, report.node: node},
        layer_costs=state.layer_costs or report.layer_costs,
        layer_bytes=state.layer_bytes or report.layer_bytes,
        fingerprint=state.fingerprint or report.fingerprint,
        agreement=agreement.joined(state.agreement, report.identity, state.settings.same_hardware),
    )
    # The plan that it obeys may be newer than the one that was persisted. So learn first, and only then ask whether the
    # node is what the plan takes it for.
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
    """Comes before any Ready over these layers, on the same stream: nothing is committed upon other values.

    But tensors that follow from them may lie at neighbours by now, which never ask for them again. So nobody goes on
    with this era, which has no commit yet.
    """
    node = state.nodes.get(report.node)
    if node is None or node.incarnation != report.incarnation:
        return state, ()
    agreed, why = agreement.built(state.agreement, report.node, report.initial)
    if not why:
        return replace(state, agreement=agreed), (() if agreed == state.agreement else (Persist(),))
    state, commands = membership.lose(state, {report.node: why}, now)
    # First: the node ends with its reason, where one that is merely lost joins anew.
    gone = (Dismiss(report.node, report.incarnation, why), Record(kinds.Dismissed(node=report.node), why))
    begins = state.phase in (Phase.RUNNING, Phase.PAUSED) and state.committed == state.origin.step
    begun = begins and not takeover.recovering(state)
    if begun:
        # Nobody knows which of the two is right. Were the first one's word kept, a node with wrong files would have all
        # others dismissed, one after the other.
        state = replace(state, agreement=replace(state.agreement, initial={}))
        state, anew = rolling_back.roll_back(state, f"{report.node} may have passed on what it computed with them")
        commands = (*commands, *anew)
    return chain((state, (*gone, *commands)), now)


def _ready(state: State, report: Ready, now: float) -> Decision:
    node = state.nodes.get(report.node)
    if node is None or node.incarnation != report.incarnation:
        return state, ()
    if report.era != state.era or state.plan is None or report.step > state.committed:
        return state, ()
    if report.step < state.committed:
        # History: a standby that is being seeded is late in every step, and is never made hot.
        # Too late for its step. A node being seeded has caught up all the same: the next commit waits for it, since
        # a node that nobody waits for may never be in time. After the last commit only CaughtUp tells who has.
        if state.phase is Phase.DONE:
            return state, ()
        return replace(state, following=_with_layers(state.following, report.node, report.layers)), ()
    # First value wins: a fact is kept by key, never added up twice. An heir reports a stage that its owner had reported
    # already (rule 7).
    tallies = state.tallies or report.tallies
    norms = {**dict(zip(report.layers, report.squared_norms, strict=True)), **state.norms}
    lost_owners = tuple(
        replace(x, redone=report.redone) if (x.stage, x.heir) == (report.stage, report.node) else x
        for x in state.lost_owners
    )
    checks = state.checks.told(
        (node.node, node.incarnation), report.first_layer, report.states, report.taken, report.audited
    )
    if state.settings.audit:
        checks = checks.done_by(report.node, report.layers, report.order)
    state = replace(
        state,
        facts=_with_layers(state.facts, report.node, report.layers),
        norms=norms,
        tallies=tallies,
        checks=checks,
        lost_owners=lost_owners,
        nodes={**state.nodes, report.node: replace(node, heard_at=now)},
    )
    return commit_if_ready(state, now)


def _caught_up(state: State, report: CaughtUp, now: float) -> Decision:
    node = state.nodes.get(report.node)
    if node is None or node.incarnation != report.incarnation or report.era != state.era or state.plan is None:
        return state, ()
    layers = range(report.first_layer, report.end_layer)
    if state.rests:
        # No commit will show that it still holds: it counts for the last version and the present plan alone. A report
        # under the plan before may be of a copy that the node has given up since (rule 17).
        if (report.version, report.order) != (state.committed, (state.term, state.generation)):
            return state, ()
        return keep(replace(state, following=_with_layers(state.following, report.node, layers)), now)
    # While steps go on this only adds to whom the gate waits for: it never makes a commit due.
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
            part = counting_of(state.settings).part
            text = f"{lost.heir} resumed {part} {lost.stage}, {ms:.1f} ms after {lost.node} was declared lost"
            commands.append(Record(resumed, text))
        owners.append(lost)
    return replace(state, lost_owners=tuple(owners)), tuple(commands)


def _priced(state: State, report: Priced) -> Decision:
    """Decides nothing: the next look at the shape goes by it."""
    here = {(n.node, n.incarnation) for n in state.nodes.values()}
    told = {key[0]: price for key, price in report.prices.items() if key in here}
    return replace(state, nodes={**state.nodes, **{n: replace(state.nodes[n], price=p) for n, p in told.items()}}), ()


def _peer_lost(state: State, report: PeerLost, now: float) -> Decision:
    return chain(membership.peer_lost(state, report, now), now)


def _stream_broken(state: State, report: StreamBroken, now: float) -> Decision:
    return chain(membership.stream_broken(state, report, now), now)


def _left(state: State, report: Left, now: float) -> Decision:
    node = state.nodes.get(report.node)
    if node is None or node.incarnation != report.incarnation:
        return state, ()
    # History: eight nodes had started before the dataset was mounted. Each one, once it owned a stage, joined anew to
    # tell which samples it finds, and the eighth failed the run.
    why = f"it ended without handing over: {report.why}"
    return chain(membership.lose(state, {report.node: why}, now, by_choice=True), now)


def _condemned(state: State, report: Condemned, now: float) -> Decision:
    node = state.nodes.get(report.node)
    if node is None or node.incarnation != report.incarnation or node.condemned_at is not None:
        return state, ()
    return replace(state, nodes={**state.nodes, node.node: replace(node, condemned_at=now)}), ()


def _tick(state: State, report: Tick, now: float) -> Decision:
    # A takeover that ends now loses in this very tick who did not come back. The watchdog comes last: it has to see the
    # commit that this tick may have led to.
    state, ended = takeover.complete(state, now)
    state, proved = checkpoints.looked_back(state)
    state, manifests = checkpoints.manifests_due(state)
    state, commands = chain(membership.tick(state, now), now)
    state, watched = watchdog.look(state, now)
    state, chosen = _workers(state, now)
    return state, (*ended, *proved, *manifests, *commands, *watched, *chosen)


def _workers(state: State, now: float) -> Decision:
    """How many tensor workers are wanted, where the job leaves that to the run."""
    bounds, before = state.settings.tensor_work, state.tensor_work
    if bounds is None or state.phase is not Phase.RUNNING:
        return state, ()
    servers = [n for n in state.nodes.values() if n.resources is not None and n.resources.tensor_workers is not None]
    seen = {(n.node, n.incarnation): n.resources for n in servers if n.resources is not None}
    after = tensor_work.looked(before, bounds, seen, [n.price for n in servers], now)
    state, wanted = replace(state, tensor_work=after), after.wanted(bounds)
    if wanted == before.wanted(bounds):
        return state, ()
    chosen = kinds.WorkersChosen(workers=wanted, why=after.reason)
    return state, (Record(chosen, f"{wanted} tensor workers are wanted: {after.reason}"),)


# Chained is what may change who is there, which plan holds, or what an era can begin from. Not chained is what decides
# the rest itself (Ready, CaughtUp, Built) or leaves all of that as it is; a warning waits for a commit, or a Tick.
_HANDLERS: Mapping[type, Callable[..., Decision]] = {
    Joined: lambda s, e, n: chain(_joined(s, e, n), n),
    Available: lambda s, e, n: chain(_available(s, e, n), n),
    Built: _built,
    Heartbeat: lambda s, e, n: heartbeats.heard(s, Heard(((n, e),))),
    Heard: lambda s, e, n: heartbeats.heard(s, e),
    Priced: lambda s, e, n: _priced(s, e),
    Spent: lambda s, e, n: chain(pausing.spent(s, e), n),
    Ready: _ready,
    CaughtUp: _caught_up,
    Read: lambda s, e, n: bookmarks.read(s, e),
    Resumed: _resumed,
    PeerLost: _peer_lost,
    StreamBroken: _stream_broken,
    Left: _left,
    Fetched: lambda s, e, n: ending.fetched(s, e),
    Pausing: lambda s, e, n: pausing.ask(s, e),
    Unpausing: lambda s, e, n: chain(pausing.go_on(s, e, n), n),
    SaveAsked: lambda s, e, n: saving.ask(s, e),
    Draining: lambda s, e, n: chain(draining.drain(s, e, n), n),
    Warned: lambda s, e, n: draining.warn(s, e),
    Saved: lambda s, e, n: checkpoints.saved(s, e),
    Checkpointed: lambda s, e, n: chain(checkpoints.checkpointed(s, e), n),
    CheckpointBad: lambda s, e, n: chain(checkpoints.bad(s, e), n),
    CheckpointFault: lambda s, e, n: checkpoints.fault(s, e),
    Unread: lambda s, e, n: checkpoints.unread(s, e),
    Examined: lambda s, e, n: chain(checkpoints.examined(s, e), n),
    CheckpointsFound: lambda s, e, n: chain(rolling_back.found(s, e), n),
    NodeFailed: lambda s, e, n: chain(blame.node_failed(s, e, n), n),
    Condemned: _condemned,
    Tick: _tick,
}


def chain(decision: Decision, now: float) -> Decision:
    """What follows at once from a change of members: the end of a run whose job is at fault, a new era if a stage has
    no copy, or a commit that is now due.
    """
    # A run that failed here is not placed anew and commits nothing: both ask for the phase.
    state, commands = blame.judged(decision)
    state, looked = ending.look(state, now)
    if state.phase is Phase.WAITING and state.plan is None:
        state, more = begin_era(state, now)
    elif state.phase is Phase.DONE:
        state, more = keep(state, now)
    else:
        state, given_up = without_lost_target(state, now) if not takeover.recovering(state) else (state, ())
        state, more = keep(state, now) if state.rests else commit_if_ready(state, now)
        more = (*given_up, *more)
    return state, (*commands, *looked, *more)
