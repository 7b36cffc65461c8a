"""Taking over from a coordinator that died: what was persisted, made good by what the nodes report (rules 8 and 12)."""

# Until every holder of the plan has attached again, or had the time to, nothing is decided: what was persisted may be
# older than what the nodes were told, since Redis may have been away, or may have lost or restored something.
#
# Rule 15 begins here: a leader whose term is not above all that the nodes have seen gives it up before it decides. It
# leads anew under a term above them, which the store learns with it.
#
# What a new leader believes, and when:
#
# - *The plan.* The newest by (term, generation) among what was persisted and what nodes obey. Nodes may obey a plan
#   that never reached Redis.
# - *What is committed.* The larger of what was persisted and the newest version that any node reports (rule 8). A node
#   that applied a step proves that it was committed; that nobody has applied it proves nothing.
# - *Who holds what.* Nodes alone know. So a holder of the plan that attaches without its state is sent away, and one
#   that does not attach in time is lost.
#
# Where one node has applied commit t and another one has not, the other is told the missing commit first, and the plan
# after it: a plan alone would make it drop gradients that the commit needs.
#
# A node that attaches, by what it reports (``_available`` in ``decide`` asks in this order):
#
#     a plan of another leader, of this term or above     this leader gives its term up: LeadAnew
#     a plan newer than the one known                     it is adopted, under a generation of this leader's own
#     a plan, where the store knew none                   its code and hardware count, not those of a newcomer before
#     a version above what is committed                   so much is committed; whoever came before is asked again
#     an era, or a version, that nobody here leads to     it joins anew: it obeyed a leader that lost
#     a holder without the layers that it should hold     it joins anew
#     one commit behind                                   the commit, with the plan inside
#     anything else                                       the plan
#
# Plans and commits that are for all go only to nodes that have reported (``is_heard``). Before its report a node may
# know more than this leader, and an old plan under a newer term would make it let go of state that the run needs.

from dataclasses import replace

from culm.coordinator import agreement
from culm.coordinator.best import noted
from culm.coordinator.commands import Ask, Command, Dismiss, LeadAnew, Persist, Record, SendCommit, SendPlan
from culm.coordinator.decisions import Decision, commit_records, done, done_record, plan_record
from culm.coordinator.reports import Available
from culm.coordinator.state import Node, Phase, State
from culm.pipeline.identity import Identity
from culm.pipeline.money import kinds
from culm.pipeline.origin import Origin
from culm.pipeline.plan import Plan
from culm.pipeline.terms import is_believable


def recovering(state: State) -> bool:
    """Whether lost nodes and commits have to wait."""
    return state.took_over_at is not None


def is_heard(state: State, node: str) -> bool:
    """Whether orders for all go to the node: it has told this leader where it stands."""
    known = state.nodes.get(node)
    return known is not None and known.available


def ahead(state: State, node: str, term: int) -> Command | None:
    """What to do about a node that has seen a term above this leader's."""
    if term <= state.term:
        return None
    return LeadAnew(term, f"{node} has seen a coordinator of term {term}, and this one leads with term {state.term}")


def led_by_another(state: State, report: Available) -> Command | None:
    """What to do about a node whose plan another leader made under this leader's term, or a higher one (rule 15)."""
    plan = report.plan
    if plan is not None and plan.term == state.term and plan.leader != state.leader:
        why = f"{report.node} obeys a plan that another coordinator made under the same term {state.term}"
        return LeadAnew(state.term, why)
    if plan is not None and not is_believable(plan.term, state.term):
        why = (
            f"{report.node} obeys a plan of term {plan.term}, and this run is at term {state.term}: "
            "that is too far ahead to be believed, so the node joins anew"
        )
        return Dismiss(report.node, report.incarnation, why, join_anew=True)
    return ahead(state, report.node, plan.term) if plan is not None else None


def before_checkpoints(state: State, report: Available) -> State:
    """What a node of the run tells counts more than checkpoints that were found where the store knew nothing.

    They stay, for an era to come, unless they were made otherwise than this node computes: then they are another run's.
    """
    found = state.plan is None and state.era == 0 and not state.resumed and bool(state.origin.folder)
    if report.plan is None or not found or not _is_newer(report.plan, state):
        return state
    identity = report.identity.compared(state.settings.same_hardware)
    differs = agreement.refusal(replace(state.agreement, nodes=Identity()), report.node, identity)
    return replace(
        state,
        committed=0,
        origin=Origin(),
        checkpoints=() if differs else state.checkpoints,
        agreement=replace(state.agreement, checkpoint=Identity()),
    )


def before_newcomers(state: State, report: Available) -> State:
    """What a node of the run is made of counts more than what one is that obeys no plan and came sooner (rule 23).

    Who came sooner is asked again once the plan is adopted, and refused where it differs.
    """
    if report.plan is None or state.plan is not None or not recovering(state) or not _is_newer(report.plan, state):
        return state
    unbound = replace(state.agreement, nodes=Identity())
    return replace(state, agreement=unbound, fingerprint="", layer_costs=(), layer_bytes=())


def learn(state: State, report: Available, now: float) -> Decision:
    """Takes from a node's report what the state does not know yet."""
    if report.plan is None:
        return state, ()
    commands: list[Command] = []
    before = (state.plan, state.committed, state.last_commit)
    if state.plan is not None and _is_same(report.plan, state.plan):
        # A leader in between published it again, under its own term.
        state = replace(state, plan=max(state.plan, report.plan, key=lambda plan: plan.order))
    elif _is_newer(report.plan, state):
        # The plan counts on the process before. Until that is declared lost its successor must not stand in for it.
        too_early = _started_again(state, report.plan)
        state = _adopted(state, report.plan, now)
        why = "the plan names an earlier process of {}, which has to be declared lost first: this one joins anew"
        commands += [Dismiss(n.node, n.incarnation, why.format(n.node), join_anew=True) for n in too_early]
        text = f"{report.node} obeys plan {report.plan.generation}, which was not persisted: the coordinator adopts it"
        commands += [Persist(), Record(kinds.Adopted(node=report.node), text), plan_record(state, report.plan)]
    if report.era != state.era:
        return state, tuple(commands)
    known, told = state.last_commit, report.last_commit
    # Without layers its version may be that of its plan alone, which proves nothing.
    applied = report.version if report.layers else told.step + 1 if told is not None else 0
    if applied > state.committed and _leads_here(report.plan, state):
        # What a node has applied is committed, whatever was persisted (rule 8).
        state = replace(state, committed=applied, facts={}, norms={}, tallies=(), checks=state.checks.of_step())
    if told is not None and told.step < state.committed and (known is None or told.step > known.step):
        # Only a commit that counts here: others would be told of one of another history and go on with that (rule 15).
        state = noted(replace(state, last_commit=told), {told.step: told.evaluated})
        commands.extend(commit_records(state.settings, told))
    if state.committed >= state.end and state.phase is not Phase.DONE:
        commands.append(done_record(state))  # whoever committed the last step may have died before it was on record
        state = done(state, now)
    if (state.plan, state.committed, state.last_commit) != before:
        state, asked = _ask_others(state, report.node)
        commands += asked
    return state, tuple(commands)


def _leads_here(plan: Plan, state: State) -> bool:
    """Whether what was committed under the plan is of the history that this leader goes on from.

    A leader that heard nobody of another history, since Redis had lost it, has decided without it (rule 15).
    """
    known = state.plan
    return known is None or plan.order == known.order or _is_same(plan, known)


def _ask_others(state: State, name: str) -> Decision:
    """Those that came before were told what is out of date: from what they say now follows what they are to be told."""
    others = [n for n in state.nodes.values() if n.node != name and n.available and n.attached_since is not None]
    asked = {n.node: replace(n, available=False) for n in others}
    return replace(state, nodes={**state.nodes, **asked}), tuple(Ask(n) for n in asked)


def _is_same(plan: Plan, known: Plan) -> bool:
    # All that decides who does what. The reason, the step and who published it may differ.
    content = [(p.era, p.stages, p.target, dict(p.members), p.origin, p.early_stop, p.pause) for p in (plan, known)]
    return content[0] == content[1]


def _is_newer(plan: Plan, state: State) -> bool:
    """Whether the plan was made by a leader before, after the one that this leader goes on from."""
    if plan.term >= state.term:
        return False  # this leader's own, or of a later one, for which this one is to step down
    if state.plan is None:
        return state.phase is Phase.WAITING and plan.era >= state.era
    # Two may have led at once. A plan under which the model is cut otherwise than the nodes have cut it since, as their
    # commits show, was obeyed by none of its holders.
    was_obeyed = plan.era != state.era or plan.step >= state.committed or plan.ranges == state.plan.ranges
    return state.plan.term < state.term and plan.order > state.plan.order and was_obeyed


_FORGOTTEN = (
    "{} was declared lost, or let go, by a coordinator that Redis has forgotten: its process has to join anew, without "
    "state"
)


def _was_member(report: Available, present: Plan) -> bool:
    """Whether the node obeys an older plan with it, though it is no member now: it went meanwhile (rule 13)."""
    before = report.plan
    if before is None or before.era != present.era or before.order >= present.order:
        return False
    member = before.members.get(report.node)
    return report.holds_state and member is not None and member.incarnation == report.incarnation


def without_its_state(state: State, report: Available) -> str:
    """Why the node cannot be what the plan takes it for, or nothing: it obeyed another leader meanwhile."""
    # A node that has seen no plan yet holds nothing that could be of another history.
    plan = state.plan
    if report.plan is not None and report.era > state.era:
        # It may have been in this era before, and has dropped what it had acknowledged there.
        return f"{report.node} is in era {report.era}, which another coordinator began and this run does not go on with"
    if report.plan is not None and report.era == state.era and report.version > state.committed:
        return f"{report.node} is at step {report.version}, by commits of a coordinator that this run does not follow"
    member = plan.members.get(report.node) if plan is not None else None
    if plan is None or member is None or member.incarnation != report.incarnation:
        return "" if plan is None or not _was_member(report, plan) else _FORGOTTEN.format(report.node)
    at_this_step = report.holds_state and (report.era, report.version) == (state.era, state.committed)
    if at_this_step and report.plan is not None and report.plan.ranges != plan.ranges:  # a cut changes with a commit
        return f"{report.node} is at step {report.version} under another cut, which this run does not follow"
    needed = {layer for stage in plan.stages if report.node in stage.required() for layer in stage.layers}
    if not needed or report.plan is None:
        return ""
    if report.era < state.era and state.committed == plan.origin.step:
        return ""  # it begins the era when it gets the plan
    if report.era != state.era or report.version < state.committed - 1:
        return f"{report.node} is at step {report.version} of era {report.era}: the plan counts on newer state"
    lacking = needed - report.layers
    return f"{report.node} lacks layers that the plan counts on: {sorted(lacking)}" if lacking else ""


def _started_again(state: State, plan: Plan) -> list[Node]:
    """Nodes of the plan that have joined as another incarnation."""
    nodes = state.nodes
    members = [m for m in plan.members.values() if m.node in nodes]
    return [nodes[m.node] for m in members if nodes[m.node].incarnation != m.incarnation]


def _adopted(state: State, plan: Plan, now: float) -> State:
    # Members that have not attached yet are nodes all the same, detached since now: they have the patience to come.
    anew = state.plan is None or plan.era != state.era
    nodes = dict(state.nodes)
    for member in plan.members.values():
        known = nodes.get(member.node)
        if known is None or known.incarnation != member.incarnation:
            nodes[member.node] = Node(
                node=member.node,
                incarnation=member.incarnation,
                address=member.address,
                pid=0,
                zone=member.zone,
                available=False,
                attached_since=None,
                detached_at=now,
                heard_at=now,
            )
    exposed = plan.exposed() if state.settings.redundancy else ()
    state = _paused_or_not(state, plan)
    # The plan was made when its step was current: every step before it is committed.
    if anew or plan.step > state.committed:
        checks = state.checks.of_another_leader() if plan.era != state.era else state.checks.of_step()
        state = replace(state, committed=plan.step, facts={}, following={}, norms={}, tallies=(), checks=checks)
    return replace(
        state,
        plan=plan,
        generation=max(state.generation, plan.generation) + 1,  # under which this leader publishes it
        era=plan.era,
        origin=plan.origin,
        last_commit=None if anew else state.last_commit,
        # Where the era began there is a checkpoint, also where the store has lost its name.
        checkpoints=tuple(sorted({*state.checkpoints, *([plan.origin] if plan.origin.folder else [])})),
        ending=replace(state.ending, early_stop=plan.early_stop),
        waits={},
        nodes=nodes,
        # Those that this leader thought lost count again, until they are found lost under this plan.
        fenced=state.fenced - {(m.node, m.incarnation) for m in plan.members.values()},
        exposed_since={s: state.exposed_since.get(s, now) for s in exposed},
        took_over_at=now if state.took_over_at is None else state.took_over_at,
    )


def _paused_or_not(state: State, plan: Plan) -> State:
    """Of two plans the newer one tells whether the run is paused. A pause that was asked for, and is in neither, still
    counts: its commit is yet to come.
    """
    before = state.plan.pause if state.plan is not None else None
    if plan.pause is not None:
        return replace(state, phase=Phase.PAUSED, pause=plan.pause)
    return replace(state, phase=Phase.RUNNING, pause=None if before is not None else state.pause)


def stamped(state: State) -> Plan:
    """The present plan under this leader's term, as of the present step: also a newcomer can start from it."""
    assert state.plan is not None
    return replace(state.plan, term=state.term, generation=state.generation, leader=state.leader, step=state.committed)


def _missed(state: State, node: str) -> SendCommit:
    """The last commit, for a node that is one behind.

    The plan comes within it: it may be a switch, which is not to be adopted before the commit is applied.
    """
    assert state.last_commit is not None
    return SendCommit(node, replace(state.last_commit, term=state.term, next_plan=stamped(state)))


def catch_up(state: State, report: Available) -> tuple[Command, ...]:
    """What a node that attached has to be told: the commit that it missed, if it missed one, then the plan."""
    # A node that is further behind gets the plan alone: no commit is kept for it, and it is seeded again.
    last = state.last_commit
    if last is not None and report.holds_state and report.era == state.era and report.version == last.step:
        return (_missed(state, report.node),)
    return (SendPlan(report.node, stamped(state)),)


def start_over(state: State, report: Available) -> State:
    """A node that has missed commits is seeded from the beginning: nobody waits for it till then."""
    if report.version >= state.committed - 1:
        return state
    return replace(state, following={k: v for k, v in state.following.items() if k != report.node})


def _is_back(state: State, name: str) -> bool:
    node = state.nodes.get(name)
    return node is not None and node.available and node.attached_since is not None


def complete(state: State, now: float) -> Decision:
    """Ends the wait once every holder has attached, or had the time to."""
    if state.took_over_at is None:
        return state, ()
    in_time = now - state.took_over_at <= state.settings.patience.seconds
    if state.plan is None:  # holders of a plan that the store has lost may come: nobody knows how many
        return (state if in_time else replace(state, took_over_at=None)), ()
    # Also for one that has said that it ends: meanwhile another may come that knows a newer plan.
    away = [n for n in {n for stage in state.plan.stages for n in stage.holders()} if not _is_back(state, n)]
    if away and in_time:
        return state, ()
    # From now on silence counts and commits are decided: whoever is away is declared lost by this tick or the next.
    text = "every node is back" if not away else f"{', '.join(sorted(away))} did not come back in time"
    own = state.settings.coordinator
    who = f"coordinator {own}" if own else "the coordinator"
    # From here on the plan is this leader's own: none of a leader before takes its place, whoever comes with it.
    return replace(state, took_over_at=None, plan=stamped(state)), (
        Record(kinds.TookOver(coordinator=own), f"{who} took over: {text}"),
    )
