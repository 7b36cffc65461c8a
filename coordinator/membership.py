"""Nodes come and go: joining, evidence against a node, and what follows once it is lost."""

# When a node counts as lost. One piece of evidence is enough where it cannot be somebody else's fault:
#
#     its order stream broke, and a neighbour misses it       at once: two who do not know of each other say so
#     its order stream broke, and it does not come back       after the patience
#     no heartbeat comes, though its order stream stands      after the patience: it is frozen, or cut off
#     it is stuck, or loads for ever                          see detection
#     a neighbour misses it, and it attends                   that is the link's fault: see links
#
# A lost node is fenced for good: its incarnation is refused whatever it says, and its process has to join anew. To be
# lost wrongly costs a node its state. To be believed wrongly would cost the run its bits.
#
# What follows is decided at once and in one plan: heirs for its stages, an end of its standby duties (rule 10), and new
# standbys to be seeded. Where a stage has no copy left, every other decision is void, and a new era begins.

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, replace

from culm.coordinator import agreement, links, waiting
from culm.coordinator.commands import Command, Dismiss, Persist, Publish, Record
from culm.coordinator.decisions import Decision, reason_of, with_plan, zones_of
from culm.coordinator.detection import of_no_use
from culm.coordinator.failures import Work, died, is_told, machine_of
from culm.coordinator.placement import promote, repair
from culm.coordinator.reports import Available, Draining, Joined, PeerLost, StreamBroken, Warned
from culm.coordinator.state import Ending, LostOwner, Node, Phase, State
from culm.coordinator.takeover import recovering
from culm.pipeline.money import kinds
from culm.pipeline.origin import Origin
from culm.pipeline.terms import ERAS_BITS

NOBODY = "no node answers: waiting for nodes to attach or to join"
FENCED_KEPT = 1_024  # incarnations; of more the older half is refused by number
LOST_REMEMBERED = 20  # for the mean time between them


def join(state: State, report: Joined, now: float) -> Decision:
    """A node opens its order stream: a new one, one that comes back, or one that was declared lost (rule 13)."""
    if state.ending.released:
        return state, (Dismiss(report.node, report.incarnation, state.ending.released, goodbye=True),)
    if is_fenced(state, report.node, report.incarnation):
        why = f"{report.node} was declared lost: it joins anew, holding nothing"
        return state, (Dismiss(report.node, report.incarnation, why, join_anew=True),)
    commands: list[Command] = []
    known = state.nodes.get(report.node)
    if known is not None and known.incarnation > report.incarnation:
        why = f"another process already runs as {report.node}: give this one its own --name"
        return state, (Dismiss(report.node, report.incarnation, why),)
    if known is not None and known.incarnation != report.incarnation and recovering(state):
        why = "the coordinator has just taken over and must hear from the nodes before it first"
        return state, (Dismiss(report.node, report.incarnation, why, join_anew=True),)
    if known is not None and known.incarnation != report.incarnation:
        state, lost = lose(state, {report.node: "its process was started again"}, now)
        commands.extend(lost)
        known = None
    if known is None:
        node = Node(
            node=report.node,
            incarnation=report.incarnation,
            address=report.address,
            pid=report.pid,
            zone=report.zone,
            available=False,
            attached_since=now,
            detached_at=None,
            heard_at=now,
        )
        # One that could not start again and again is told of ever more seldom; at last when it can.
        told = is_told(state.failures.starts.get(machine_of(node.node, node.pid), 0) + 1)
        node = replace(node, machine=report.machine, announced=told)
        if told:
            commands.append(joined_record(node))
    else:
        node = replace(known, address=report.address, pid=report.pid, machine=report.machine)
        node = replace(node, attached_since=now, detached_at=None, heard_at=now)
        commands.append(Record(kinds.Attached(node=report.node), f"{report.node} is back on its order stream"))
    evidence = {k: v for k, v in state.evidence.items() if k != report.node}
    changed_at = state.changed_at if known is not None else now
    state = replace(state, nodes={**state.nodes, report.node: node}, evidence=evidence, changed_at=changed_at)
    return state, tuple(commands)


def is_fenced(state: State, node: str, incarnation: int) -> bool:
    """Whether it was declared lost, or is older than so many that were that nobody knows any more."""
    known = state.nodes.get(node)
    if known is not None and known.incarnation == incarnation:
        return False
    return (node, incarnation) in state.fenced or incarnation <= state.fenced_up_to


def fence(state: State, gone: Collection[tuple[str, int]]) -> State:
    """Refuses these incarnations from now on (rule 13)."""
    fenced = sorted(state.fenced | set(gone), key=lambda each: each[1])
    up_to = state.fenced_up_to
    if len(fenced) > FENCED_KEPT:
        up_to = max(up_to, fenced[FENCED_KEPT // 2 - 1][1])
        fenced = fenced[FENCED_KEPT // 2 :]
    return replace(state, fenced=frozenset(fenced), fenced_up_to=up_to)


def joined_record(node: Node) -> Record:
    """What the event log says of a newcomer."""
    machine = {**asdict(node.machine), "zone": node.zone}
    joined = kinds.Joined(node=node.node, incarnation=node.incarnation, address=node.address, **machine)
    return Record(joined, f"{node.node} joined from {node.address}")


def refusal(state: State, report: Available) -> str:
    """Why the node cannot take part, or nothing."""
    settings = state.settings
    identity = report.identity if settings.same_hardware else report.identity.without(["hardware"])
    differs = agreement.refusal(state.agreement, report.node, identity)
    if differs:
        return differs
    if state.fingerprint and report.fingerprint != state.fingerprint:
        return (
            f"{report.node} runs other code for this job than the nodes before it "
            f"({report.fingerprint[:12]}, not {state.fingerprint[:12]}): install the same version on every node"
        )
    if len(report.layer_costs) < settings.stages:
        return (
            f"the model has {len(report.layer_costs)} layers, too few for {settings.stages} stages: "
            f"set pipeline.stages to {len(report.layer_costs)} or less"
        )
    return ""


def dismiss(state: State, name: str, why: str) -> Decision:
    """Refuses a node that has taken no part yet."""
    node = state.nodes[name]
    state = replace(state, nodes={k: v for k, v in state.nodes.items() if k != name})
    return state, (Dismiss(name, node.incarnation, why), Record(kinds.Dismissed(node=name), why))


def usable(state: State) -> list[str]:
    """The nodes that can be given work; those that were warned only while the others are not enough."""
    nodes = [n for n in state.nodes.values() if n.available and n.attached_since is not None]
    nodes = [n for n in nodes if not n.draining and n.node not in state.parted]
    safe = [n.node for n in nodes if not n.warning]
    return safe if len(safe) >= max(state.settings.stages, 2) else [n.node for n in nodes]


def leaving(state: State) -> set[str]:
    """The nodes whose work is to be handed over: those that are to go, and those that can be done without."""
    given = set(usable(state))
    return {n.node for n in state.nodes.values() if n.draining or (n.warning and n.available and n.node not in given)}


def warn(state: State, report: Warned) -> Decision:
    """Notes that a node may have to go soon; what it holds is handed over at a commit, and it stays as a spare."""
    node = state.nodes.get(report.node)
    if node is None or node.draining or node.warning:
        return state, ()
    state = replace(state, nodes={**state.nodes, node.node: replace(node, warning=report.why)})
    enough = node.node not in usable(state)
    then = "the others are enough to take over" if enough else "it works on until there are others to take over"
    return state, (Record(kinds.Warned(node=node.node, why=report.why), f"{node.node}: {report.why}; {then}"),)


def drain(state: State, report: Draining, now: float) -> Decision:
    """Notes that a node is to go; one that holds nothing goes at once, the others at a commit."""
    node = state.nodes.get(report.node)
    if node is None:
        return state, ()
    leaves_at = now + report.seconds_left if report.seconds_left is not None else None
    if node.draining:  # said again, to a leader that knows of it from the one before, which knew another clock
        leaves_at = leaves_at if node.leaves_at is None else node.leaves_at
        return replace(state, nodes={**state.nodes, node.node: replace(node, leaves_at=leaves_at)}), ()
    state = replace(
        state,
        nodes={**state.nodes, node.node: replace(node, draining=report.why, leaves_at=leaves_at, told=report.told)},
    )
    left = f", {report.seconds_left:.0f} s are left" if report.seconds_left is not None else ""
    draining = kinds.Draining(node=node.node, why=report.why, seconds_left=round(report.seconds_left or 0.0, 1))
    noted = Record(draining, f"{node.node} is to go: {report.why}{left}")
    last = all(n.draining for n in state.nodes.values())  # nobody is left to hand over to: see culm.coordinator.ending
    if (last and report.told) or (state.plan is not None and state.plan.held_by(node.node)):
        return state, (noted, Persist())
    state, farewell = let_go(state, [node.node])
    return state, (noted, Persist(), *farewell)


def let_go(state: State, names: Sequence[str]) -> Decision:
    """Dismisses nodes that hold nothing any more, for good."""
    commands: list[Command] = []
    for name in names:
        state, gone = farewell(state, name, f"drained: {state.nodes[name].draining}")
        commands.extend(gone)
    return state, tuple(commands)


def farewell(state: State, name: str, why: str) -> Decision:
    """Dismisses one node for good: nothing is wrong with it."""
    node = state.nodes[name]
    left = Record(kinds.Left(node=name, why=node.draining or why), f"{name} has left, {why}")
    commands = (Dismiss(name, node.incarnation, why, goodbye=True), left)
    state = fence(state, {(name, node.incarnation)})
    state = replace(
        state,
        nodes={k: v for k, v in state.nodes.items() if k != name},
        evidence={k: v for k, v in state.evidence.items() if k != name},
        facts={k: v for k, v in state.facts.items() if k != name},
        following={k: v for k, v in state.following.items() if k != name},
    )
    return state, commands


def send_away(state: State, name: str, why: str, now: float) -> Decision:
    """A holder that has lost its state joins anew; it is declared lost when that is due."""
    node = state.nodes[name]
    state = replace(state, nodes={**state.nodes, name: replace(node, attached_since=None, detached_at=now)})
    return state, (Dismiss(name, node.incarnation, why, join_anew=True), Record(kinds.Dismissed(node=name), why))


def peer_lost(state: State, report: PeerLost, now: float) -> Decision:
    """A neighbour's report. Enough together with a broken order stream; alone it is the link's fault: see links."""
    node = state.nodes.get(report.suspect)
    if node is None or node.incarnation != report.suspect_incarnation or report.node not in state.nodes:
        return state, ()
    state = links.report(state, report, now)
    if node.attached_since is None and not recovering(state):
        return lose(state, {report.suspect: f"its order stream broke and {report.node} misses it: {report.why}"}, now)
    return state, ()


def stream_broken(state: State, report: StreamBroken, now: float) -> Decision:
    node = state.nodes.get(report.node)
    if node is None or node.incarnation != report.incarnation:
        return state, ()
    state = replace(state, nodes={**state.nodes, report.node: replace(node, attached_since=None, detached_at=now)})
    if recovering(state):
        return state, ()
    reports = state.evidence.get(report.node, {})
    recent = [name for name, x in reports.items() if now - x.last <= state.settings.patience.seconds]
    if recent:
        return lose(state, {report.node: f"its order stream broke and {', '.join(recent)} misses it"}, now)
    return state, ()


def tick(state: State, now: float) -> Decision:
    """Declares silent and stuck nodes lost, and one end of a link that stays broken.

    Time in which the coordinator itself stood still, or heard nobody at all, counts for nobody's silence: then it is
    rather the coordinator that is cut off.
    """
    patience = state.settings.patience
    passed = now - state.last_tick if state.last_tick is not None else 0.0
    newest = max((n.heard_at for n in state.nodes.values()), default=now)
    nodes = state.nodes
    silent: tuple[Command, ...] = ()
    stood_still = passed > patience.seconds / 2
    if nodes and not stood_still and now - newest > patience.seconds / 2:
        state, silent = waiting.wait(state, waiting.SILENCE, NOBODY, silent=True)
    elif not stood_still:
        state = waiting.over(state, waiting.SILENCE)
    if stood_still or now - newest > patience.seconds / 2:
        nodes = {k: _later(n, passed) for k, n in nodes.items()}
    state = replace(state, last_tick=now, nodes=nodes)
    state = links.forgive(state, now)
    if recovering(state):
        return state, silent
    lost: dict[str, str] = {}
    for node in nodes.values():
        silence = now - node.heard_at
        # One that is still importing and building the model holds nothing: nobody waits for it.
        if node.attached_since is not None and silence > (patience.seconds if node.available else patience.joining):
            lost[node.node] = f"no heartbeat for {silence:.1f} s"
        elif node.detached_at is not None and now - node.detached_at > patience.seconds:
            lost[node.node] = f"its order stream broke and it did not come back for {now - node.detached_at:.1f} s"
    lost = lost or of_no_use(state, now)
    verdict = links.judge(state, now) if not lost else None
    if verdict is not None and not verdict.gone:
        state, waits = waiting.wait(state, waiting.LINK, verdict.why)
        return state, (*silent, *waits)
    state = waiting.over(state, waiting.LINK)
    if verdict is not None and verdict.gone:
        state = links.part(state, verdict.gone, verdict.stays, now)
        lost[verdict.gone] = verdict.why
    if not lost:
        return state, silent
    state, commands = lose(state, lost, now)
    return state, (*silent, *commands)


def _later(node: Node, seconds: float) -> Node:
    detached_at = node.detached_at + seconds if node.detached_at is not None else None
    return replace(node, heard_at=node.heard_at + seconds, detached_at=detached_at)


def lose(state: State, lost: Mapping[str, str], now: float) -> Decision:
    """Fences the nodes (name -> evidence in words) and moves their work; a stage without a copy ends the era."""
    gone = {name: state.nodes[name] for name in lost if name in state.nodes}
    if not gone:
        return state, ()
    state = _with_deaths(state, gone.values())
    state = fence(state, {(n.node, n.incarnation) for n in gone.values()})
    state = replace(
        state,
        nodes={k: v for k, v in state.nodes.items() if k not in gone},
        evidence={
            suspect: {reporter: x for reporter, x in reports.items() if reporter not in gone}
            for suspect, reports in state.evidence.items()
            if suspect not in gone
        },
        facts={k: v for k, v in state.facts.items() if k not in gone},
        following={k: v for k, v in state.following.items() if k not in gone},
        changed_at=now,
        lost_at=(*state.lost_at, now)[-LOST_REMEMBERED:],
    )
    commands: list[Command] = []
    for node in gone.values():
        stages = state.plan.owned_by(node.node) if state.plan else ()
        noted = kinds.Lost(
            node=node.node,
            stages=",".join(map(str, stages)),
            step=state.committed,
            generation=state.generation,
            detect_ms=round((now - node.heard_at) * 1e3, 1),
            evidence=lost[node.node],
        )
        commands.append(Record(noted, f"{node.node} is lost: {lost[node.node]}"))
        why = f"{node.node} was declared lost ({lost[node.node]}): it joins anew, holding nothing"
        commands.append(Dismiss(node.node, node.incarnation, why, join_anew=True))
    plan = state.plan
    if plan is None or not any(plan.held_by(name) for name in gone):
        return state, (*commands, Persist())
    if state.phase is Phase.FAILED:  # nobody goes on with what it held
        return replace(state, plan=None, exposed_since={}), (*commands, Persist())
    stages_left, reasons = promote(plan.stages, list(gone))
    if stages_left is None:
        done = ["every step was committed, but its weights were neither saved nor fetched"]
        reasons = [*(done if state.phase is Phase.DONE else []), *reasons]
        rolled_back, more = roll_back(state, reason_of(reasons))
        return rolled_back, (*commands, *more)
    if state.settings.redundancy:
        stages_left, repairs = repair(stages_left, usable(state), zones=zones_of(state))
        reasons = [*reasons, *repairs]
    # After the last commit no work is left to be taken over, and no commit will tell that it was.
    begun = state.phase is Phase.RUNNING
    moved = tuple(
        LostOwner(
            node=before.owner, stage=s, heir=after.owner, at=now, detect_seconds=now - gone[before.owner].heard_at
        )
        for s, (before, after) in enumerate(zip(plan.stages, stages_left, strict=True))
        if begun and before.owner in gone
    )
    kept = tuple(x for x in state.lost_owners if x.heir not in gone)
    state, promoted, records = with_plan(state, stages_left, reason_of(reasons), now)
    state = replace(state, lost_owners=(*kept, *moved))
    return state, (*commands, Persist(), Publish(promoted), *records)


def _with_deaths(state: State, gone: Iterable[Node]) -> State:
    """Notes which work the nodes were at: deaths at one and the same work may be the job's fault (rule 16)."""
    plan = state.plan
    if plan is None or state.phase is not Phase.RUNNING:
        return state
    failures = state.failures
    for node in gone:
        owned = [plan.stages[s].layers for s in plan.owned_by(node.node)]
        works = [Work("", state.committed, layers.start, layers.stop) for layers in owned]
        failures = died(failures, works, machine_of(node.node, node.pid))
    return replace(state, failures=failures)


def roll_back(state: State, why: str) -> Decision:
    """Starts a new era from the newest checkpoint, or from step 0: some stage has no copy left (rule 1).

    The origin is chosen here, and nobody looks it up again (rule 14). A run that was resumed never starts from step 0.
    """
    origin = state.checkpoints[-1] if state.checkpoints else Origin()
    if state.resumed and not origin.folder:
        text = f"{why}; no checkpoint is left of those that the run was resumed from: resume from another one"
        return replace(state, phase=Phase.FAILED, detail=text), (Record(kinds.Failed(), text), Persist())
    text = f"{why}; a new era begins from step {origin.step}, by {origin}"
    state = replace(
        state,
        # Two leaders at once may roll back without knowing of each other: an era names the term that began it.
        era=max(state.era + 1, state.term << ERAS_BITS),
        origin=origin,
        committed=origin.step,
        plan=None,
        phase=Phase.WAITING,
        detail=text,
        facts={},
        following={},
        norms={},
        losses=(),
        saved={},
        storage=replace(state.storage, unread={}, examined=False),
        last_commit=None,
        lost_owners=(),
        exposed_since={},
        ending=Ending(),
        stopping=None,
    )
    return state, (Persist(), Record(kinds.RolledBack(era=state.era, step=origin.step), text))
