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
#
# An incarnation, as this module sees it:
#
#     Joined -----> known -----> available -----> lost, or left -----> fenced: refused for good
#                     |              ^
#                     |  refused     |  Available: its model is built, and its identity is that of the others
#                     v
#                 dismissed: it cannot take part; it holds nothing, so nobody has to take over
#
# While a new leader hears from the nodes (``recovering``) nobody is lost: each of them may just not have attached yet.
# Of one that says itself that it ends that is noted: a plan without it, made from what this leader knows so far, could
# pass over a newer one that the others obey.

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, replace

from culm.coordinator import agreement, checks, copies, limits, links, saving, waiting
from culm.coordinator.commands import Command, Dismiss, Persist, Publish, Record
from culm.coordinator.decisions import Decision, budget_of, counting_of, reason_of, with_plan, zones_of
from culm.coordinator.detection import of_no_use
from culm.coordinator.failures import Work, died, is_told, machine_of
from culm.coordinator.memory import tight
from culm.coordinator.placement import promote
from culm.coordinator.reports import Available, Joined, PeerLost, StreamBroken
from culm.coordinator.rolling_back import roll_back
from culm.coordinator.standbys import repair
from culm.coordinator.state import LostOwner, Node, Phase, State
from culm.coordinator.takeover import recovering
from culm.pipeline.money import kinds
from culm.pipeline.plan import Stages

BROKE = "its connection to the coordinator broke"  # that of its order stream
NOBODY = "no heartbeat comes from any node: waiting for nodes to attach or to join"
# Incarnations; of more the older half is refused by number. The set is persisted with every plan: it must not grow with
# a run of months on spot machines.
FENCED_KEPT = 1_024
# Enough for a mean time between lost nodes (``settling``), and few enough to follow a market that changes.
LOST_REMEMBERED = 100


def join(state: State, report: Joined, now: float) -> Decision:
    """A node opens its order stream: a new one, one that comes back, or one that was declared lost (rule 13)."""
    if state.ending.released:
        return state, (Dismiss(report.node, report.incarnation, state.ending.released, goodbye=True),)
    limit = limits.come_to(state) if state.era and state.phase is Phase.WAITING and not state.nodes else ""
    if limit and not recovering(state):  # else a node may hold what this leader does not know of
        # Its nodes were let go for it (``ending``): they would wait, and cost money.
        why = f"the run is paused, since {limit}: culm resume lets it go on, and nodes that join then take part"
        return state, (Dismiss(report.node, report.incarnation, why, goodbye=True),)
    if is_fenced(state, report.node, report.incarnation):
        why = f"{report.node} was declared lost or has left: its process has to join anew, without state"
        return state, (Dismiss(report.node, report.incarnation, why, join_anew=True),)
    if why := checks.refusal(state.checks, report.node):
        return state, (Dismiss(report.node, report.incarnation, why),)
    commands: list[Command] = []
    known = state.nodes.get(report.node)
    # Incarnations are microseconds since 1970: the lower one is older, and not the successor of the other.
    if known is not None and known.incarnation > report.incarnation:
        why = f"another process already runs as {report.node}: give this one its own --name"
        return state, (Dismiss(report.node, report.incarnation, why),)
    # The older process may still be the holder that the plan counts on: nothing says yet that it is gone.
    if known is not None and known.incarnation != report.incarnation and recovering(state):
        why = (
            f"the coordinator has just taken over and still waits for an earlier process of {report.node}: "
            "this one joins anew"
        )
        return state, (Dismiss(report.node, report.incarnation, why, join_anew=True),)
    # A name comes back with a new process before anything else showed that the old one died (rule 13).
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
        node = replace(node, attached_since=now, detached_at=None, heard_at=now, back=True)
    # Whoever missed it before says so again if that is still so: a report from before the break is no evidence.
    evidence = {k: v for k, v in state.evidence.items() if k != report.node}
    changed_at = state.changed_at if known is not None else now
    state = replace(state, nodes={**state.nodes, report.node: node}, evidence=evidence, changed_at=changed_at)
    return state, tuple(commands)


def is_fenced(state: State, node: str, incarnation: int) -> bool:
    """Whether it was declared lost, or is older than so many that were that nobody knows any more."""
    known = state.nodes.get(node)
    # An adopted plan may count on an incarnation that this leader had thought lost: a member here is never fenced.
    if known is not None and known.incarnation == incarnation:
        return False
    return (node, incarnation) in state.fenced or incarnation <= state.fenced_up_to


def fence(state: State, gone: Collection[tuple[str, int]]) -> State:
    """Refuses these incarnations from now on (rule 13)."""
    fenced = sorted(state.fenced | set(gone), key=lambda each: each[1])
    up_to = state.fenced_up_to
    # The oldest go first. A member that is as old and was never lost stays; a stranger that old joins anew, under a
    # newer number.
    if len(fenced) > FENCED_KEPT:
        up_to = max(up_to, fenced[FENCED_KEPT // 2 - 1][1])
        fenced = fenced[FENCED_KEPT // 2 :]
    return replace(state, fenced=frozenset(fenced), fenced_up_to=up_to)


def joined_record(node: Node) -> Record:
    """What the event log says of a newcomer."""
    # The node's own word on its zone counts, also where its machine says another one.
    machine = {**asdict(node.machine), "zone": node.zone}
    joined = kinds.Joined(node=node.node, incarnation=node.incarnation, address=node.address, **machine)
    return Record(joined, f"{node.node} joined from {node.address}")


def refusal(state: State, report: Available) -> str:
    """Why the node cannot take part, or nothing."""
    # The first node's word counts (rule 23). The parts come first, since they name what to mend; the fingerprint only
    # tells that something differs.
    settings = state.settings
    identity = report.identity.compared(settings.same_hardware)
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
    # Two at least: with one node there is nobody to stand by.
    safe = [n.node for n in nodes if not n.warning]
    return safe if len(safe) >= max(state.settings.stages, 2) else [n.node for n in nodes]


def send_away(state: State, name: str, why: str, now: float) -> Decision:
    """A holder that has lost its state joins anew; it is declared lost when that is due."""
    # Not at once: this leader may still be hearing from the nodes, and loses nobody before it has (rule 8). Its new
    # incarnation, or the patience, settles it.
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
        why = f"{BROKE}, and {report.node} cannot reach it either: {report.why}"
        return lose(state, {report.suspect: why}, now)
    return state, ()


def stream_broken(state: State, report: StreamBroken, now: float) -> Decision:
    node = state.nodes.get(report.node)
    if node is None or node.incarnation != report.incarnation:
        return state, ()
    state = replace(state, nodes={**state.nodes, report.node: replace(node, attached_since=None, detached_at=now)})
    if recovering(state):
        return state, ()
    # A report that is older than the patience may be of a fault that has mended since.
    reports = state.evidence.get(report.node, {})
    recent = [name for name, x in reports.items() if now - x.last <= state.settings.patience.seconds]
    if recent:
        why = f"{BROKE}, and {', '.join(recent)} cannot reach it either"
        return lose(state, {report.node: why}, now)
    return state, ()


def tick(state: State, now: float) -> Decision:
    """Declares silent and stuck nodes lost, and one end of a link that stays broken.

    Time in which the coordinator itself stood still, or heard nobody at all, counts for nobody's silence: then it is
    rather the coordinator that is cut off.
    """
    # A coordinator that was stopped for a minute would else declare every node lost at its first tick afterwards.
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
    lost = {node.node: node.gone for node in nodes.values() if node.gone}
    for node in nodes.values():
        silence = now - node.heard_at
        # One that is still importing and building the model holds nothing: nobody waits for it.
        if node.attached_since is not None and silence > (patience.seconds if node.available else patience.joining):
            lost[node.node] = f"no heartbeat for {silence:.1f} s"
        elif node.detached_at is not None and now - node.detached_at > patience.seconds and not node.gone:
            away = now - node.detached_at
            lost[node.node] = f"{BROKE}, and it did not come back within {away:.1f} s"
    # One kind of evidence at a time, the plainest first: a node that is gone may be why another one seems stuck, or is
    # not reached.
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
        state, replaced = _reseed(state, now)
        return state, (*silent, *replaced)
    state, commands = lose(state, lost, now)
    return state, (*silent, *commands)


def _reseed(state: State, now: float) -> Decision:
    """Has another node seeded in place of one that its owner does not reach, after the last commit."""
    found = links.unseeded(state, now)
    if found is None or state.plan is None or not state.settings.redundancy:
        return state, ()
    owner, standby = found
    stages = tuple(
        replace(x, standbys=tuple(b for b in x.standbys if b.hot or b.node != standby)) if owner in x.owners else x
        for x in state.plan.stages
    )
    state = links.part(state, standby, owner, now)
    budget, zones = budget_of(state), zones_of(state)
    stages, repairs = repair(stages, usable(state), zones=zones, copies=state.copies_wanted, budget=budget)
    why = f"{owner} and {standby} do not reach each other, and each holds the only copy of a stage"
    state, plan, records = with_plan(state, stages, reason_of([why, *repairs]), now)
    return state, (Persist(), Publish(plan), *records)


def _later(node: Node, seconds: float) -> Node:
    detached_at = node.detached_at + seconds if node.detached_at is not None else None
    return replace(node, heard_at=node.heard_at + seconds, detached_at=detached_at)


def lose(state: State, lost: Mapping[str, str], now: float, by_choice: bool = False) -> Decision:
    """Fences the nodes (name -> evidence in words) and moves their work; a stage without a copy ends the era.

    A leader that still hears from the nodes notes it, and its first tick after that decides. ``by_choice``: they end
    because they were told to, or need to join anew: no death at what they were at.
    """
    gone = {name: state.nodes[name] for name in lost if name in state.nodes}
    if not gone:
        return state, ()
    if recovering(state):
        ended = {k: replace(n, gone=lost[k], attached_since=None, detached_at=now) for k, n in gone.items()}
        return replace(state, nodes={**state.nodes, **ended}), ()
    if not by_choice:  # by the present plan: later nobody knows what they were at
        state = _with_deaths(state, gone.values(), now)
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
        storage=replace(state.storage, unread={k: v for k, v in state.storage.unread.items() if k not in gone}),
        changed_at=now,
        lost_at=(*state.lost_at, *(now for _ in gone))[-LOST_REMEMBERED:],
    )
    state = saving.again(state)
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
        why = f"{node.node} was declared lost ({lost[node.node]}): its process has to join anew, without state"
        commands.append(Dismiss(node.node, node.incarnation, why, join_anew=True))
    plan = state.plan
    if plan is None or not any(plan.held_by(name) for name in gone):
        return state, (*commands, Persist())
    if state.phase is Phase.FAILED:  # nobody goes on with what it held
        return replace(state, plan=None, exposed_since={}), (*commands, Persist())
    state, other_copies = copies.after_losses(state, plan.stages, len(state.nodes) + len(gone), now)
    budget = budget_of(state)
    stages_left, reasons = promote(plan.stages, list(gone), state.layer_costs, budget, counting_of(state.settings))
    begun = state.committed + (state.phase is Phase.RUNNING)
    later = range(state.committed, max(state.committed, state.end))
    old = state.settings.staleness.takes_before(begun, later, state.origin.step)
    if stages_left is not None and old and any(plan.owned_by(name) for name in gone):
        stages_left, reasons = None, ["later steps take values of this one or of earlier ones, which are lost"]
    if stages_left is None:
        done = ["the run was done, but its weights were neither saved nor fetched"]
        reasons = [*(done if state.phase is Phase.DONE else []), *reasons]
        rolled_back, more = roll_back(state, reason_of([*reasons, *filter(None, [other_copies])]))
        return rolled_back, (*commands, *more)
    warnings = tight(budget, plan.stages, stages_left)
    if state.settings.redundancy:
        there, copies_wanted = usable(state), state.copies_wanted
        of = counting_of(state.settings)
        stages_left, repairs = repair(stages_left, there, (), zones_of(state), copies_wanted, budget, of)
        reasons = [*reasons, *filter(None, [other_copies]), *repairs]
    # After the last commit no work is left to be taken over, and no commit will tell that it was.
    begun = state.phase is Phase.RUNNING
    moved = tuple(
        LostOwner(node=owner, stage=s, heir=heir, at=now, detect_seconds=now - gone[owner].heard_at)
        for s, owner, heir in (_moves(plan.stages, stages_left, gone) if begun else ())
    )
    # An heir that is lost as well: what counts is how long its own heir takes, so its record stands for both.
    kept = tuple(x for x in state.lost_owners if x.heir not in gone)
    state, promoted, records = with_plan(state, stages_left, reason_of(reasons), now)
    state = replace(state, lost_owners=(*kept, *moved))
    return state, (*commands, Persist(), Publish(promoted), *records, *warnings)


def _moves(before: Stages, after: Stages, gone: Collection[str]) -> list[tuple[int, str, str]]:
    """Which heir runs which stage in place of which lost owner, each once."""
    found: dict[tuple[int, str, str], None] = {}
    for s, (old, new) in enumerate(zip(before, after, strict=True)):
        if old is not new:  # of a thousand stages a lost node concerns two or three
            pairs = zip(old.owners, new.owners, strict=True)
            found.update(((s, owner, heir), None) for owner, heir in pairs if owner in gone)
    return list(found)


def _with_deaths(state: State, gone: Iterable[Node], now: float) -> State:
    """Notes which work the nodes were at: deaths at one and the same work may be the job's fault (rule 16)."""
    plan = state.plan
    if plan is None or state.phase is not Phase.RUNNING:
        return state
    failures = state.failures
    for node in gone:
        # Heirs often end before their next heartbeat. That they began is told at once.
        resumed = [x.resumed_at for x in state.lost_owners if x.heir == node.node and x.resumed_at is not None]
        works = [
            Work("", state.committed, layers.start, layers.stop, duty.pipeline)
            for duty in plan.duties_of(node.node)
            for layers in [plan.stages[duty.stage].layers]
        ]
        failures = died(failures, works, machine_of(node.node, node.pid), max([node.heard_at, *resumed]), now)
    return replace(state, failures=failures)
