"""Taking over from a coordinator that died: what was persisted, made good by what the nodes report (rules 8 and 12).

Until every holder of the plan has attached again, or had the time to, nothing is decided: what was persisted may be
older than what the nodes were told, since Redis may have been away.
"""

from dataclasses import replace

from coordinator.commands import Ask, Command, Dismiss, Persist, Record, SendCommit, SendPlan
from coordinator.decisions import Decision, commit_record, plan_record
from coordinator.events import Available
from coordinator.state import Node, Phase, State
from pipeline.plan import Plan


def recovering(state: State) -> bool:
    """Whether losses and commits have to wait."""
    return state.took_over_at is not None


def learn(state: State, event: Available, now: float) -> Decision:
    """Takes from a node's report what the state does not know yet."""
    if not event.holds_state:
        return state, ()
    commands: list[Command] = []
    before = (state.plan, state.committed)
    if event.plan is not None and state.plan is not None and _is_same(event.plan, state.plan):
        # A leader in between published it again, under its own term.
        state = replace(state, plan=max(state.plan, event.plan, key=lambda plan: plan.order))
    elif event.plan is not None and _is_newer(event.plan, state):
        too_early = _started_again(state, event.plan)
        state = _adopted(state, event.plan, now)
        why = "another incarnation of it is in the plan, and has to be declared lost first"
        commands += [Dismiss(n.node, n.incarnation, why, join_anew=True) for n in too_early]
        text = f"{event.node} obeys generation {event.plan.generation}, which was not persisted: it is taken over"
        commands += [Persist(), Record("adopted", text, {"node": event.node}), plan_record(state, event.plan)]
    if event.era != state.era:
        return state, tuple(commands)
    known = state.last_commit
    if event.last_commit is not None and (known is None or event.last_commit.step > known.step):
        state = replace(state, last_commit=event.last_commit)
        commands.append(commit_record(event.last_commit))
    if event.version > state.committed:
        # What a node has applied is committed, whatever was persisted (rule 8).
        state = replace(state, committed=event.version, facts={}, norms={}, losses=())
    if state.committed >= state.settings.steps:
        state = replace(state, phase=Phase.DONE, detail="every step is committed")
    if (state.plan, state.committed) != before:
        state, asked = _ask_others(state, event.node)
        commands += asked
    return state, tuple(commands)


def _ask_others(state: State, name: str) -> Decision:
    """Those that came before were told what is out of date: from what they say now follows what they are to be told."""
    others = [n for n in state.nodes.values() if n.node != name and n.available and n.attached_since is not None]
    asked = {n.node: replace(n, available=False) for n in others}
    return replace(state, nodes={**state.nodes, **asked}), tuple(Ask(n) for n in asked)


def _is_same(plan: Plan, known: Plan) -> bool:
    content = [(p.era, p.stages, p.target, dict(p.members), p.origin_step, p.origin) for p in (plan, known)]
    return content[0] == content[1]


def _is_newer(plan: Plan, state: State) -> bool:
    """Whether the plan was made by a leader before, after the one that this leader goes on from."""
    if plan.term >= state.term:
        return False  # this leader's own, or of a later one, for which this one is to step down
    if state.plan is None:
        return state.phase is Phase.WAITING and plan.era >= state.era
    return state.plan.term < state.term and plan.order > state.plan.order


def without_its_state(state: State, event: Available) -> str:
    """Why the node cannot be what the plan takes it for, or nothing: it obeyed another leader meanwhile."""
    plan = state.plan
    if event.plan is not None and event.era > state.era:
        # It may have been in this era before, and has dropped what it had acknowledged there.
        return f"{event.node} is in era {event.era}, which another leader began and nobody goes on with"
    member = plan.members.get(event.node) if plan is not None else None
    if plan is None or member is None or member.incarnation != event.incarnation:
        return ""
    needed = {layer for stage in plan.stages if event.node in stage.required() for layer in stage.layers}
    if not needed or event.plan is None:
        return ""
    if event.era < state.era and state.committed == plan.origin_step:
        return ""  # it begins the era when it gets the plan
    if event.era != state.era or event.version < state.committed - 1:
        return f"{event.node} is at step {event.version} of era {event.era}, without the state that the plan counts on"
    lacking = needed - event.layers
    return f"{event.node} lacks layers that the plan counts on: {sorted(lacking)}" if lacking else ""


def _started_again(state: State, plan: Plan) -> list[Node]:
    """Nodes of the plan that have joined as another incarnation."""
    nodes = state.nodes
    members = [m for m in plan.members.values() if m.node in nodes]
    return [nodes[m.node] for m in members if nodes[m.node].incarnation != m.incarnation]


def _adopted(state: State, plan: Plan, now: float) -> State:
    anew = state.plan is None or plan.era != state.era
    nodes = dict(state.nodes)
    for member in plan.members.values():
        known = nodes.get(member.node)
        if known is None or known.incarnation != member.incarnation:
            nodes[member.node] = Node(
                member.node, member.incarnation, member.address, 0, member.zone, False, None, now, now
            )
    exposed = plan.exposed() if state.settings.redundancy else ()
    if anew or plan.step > state.committed:
        state = replace(state, committed=plan.step, facts={}, following={}, norms={}, losses=())
    return replace(
        state,
        plan=plan,
        generation=max(state.generation, plan.generation) + 1,  # under which this leader publishes it
        era=plan.era,
        last_commit=None if anew else state.last_commit,
        phase=Phase.RUNNING,
        nodes=nodes,
        # Those that this leader thought lost count again, until they are found lost under this plan.
        fenced=state.fenced - {(m.node, m.incarnation) for m in plan.members.values()},
        exposed_since={s: state.exposed_since.get(s, now) for s in exposed},
        took_over_at=now if state.took_over_at is None else state.took_over_at,
    )


def stamped(state: State) -> Plan:
    """The present plan under this leader's term, as of the present step: also a newcomer can start from it."""
    assert state.plan is not None
    return replace(state.plan, term=state.term, generation=state.generation, step=state.committed)


def _missed(state: State, node: str) -> SendCommit:
    """The last commit, for a node that is one behind.

    The plan comes within it: it may be a switch, which is not to be adopted before the commit is applied.
    """
    assert state.last_commit is not None
    return SendCommit(node, replace(state.last_commit, term=state.term, next_plan=stamped(state)))


def catch_up(state: State, event: Available) -> tuple[Command, ...]:
    """What a node that attached has to be told: the commit that it missed, if it missed one, then the plan."""
    last = state.last_commit
    if last is not None and event.holds_state and event.era == state.era and event.version == last.step:
        return (_missed(state, event.node),)
    return (SendPlan(event.node, stamped(state)),)


def start_over(state: State, event: Available) -> State:
    """A node that has missed commits is seeded from the beginning: nobody waits for it till then."""
    if event.version >= state.committed - 1:
        return state
    return replace(state, following={k: v for k, v in state.following.items() if k != event.node})


def _is_back(state: State, name: str) -> bool:
    node = state.nodes.get(name)
    return node is not None and node.available and node.attached_since is not None


def complete(state: State, now: float) -> Decision:
    """Ends the wait once every holder has attached, or had the time to."""
    if state.took_over_at is None:
        return state, ()
    holders = {n for stage in state.plan.stages for n in stage.holders()} if state.plan is not None else set()
    away = [n for n in holders if not _is_back(state, n)]
    if away and now - state.took_over_at <= state.settings.reconnect_timeout:
        return state, ()
    text = "every node is back" if not away else f"{', '.join(sorted(away))} did not come back in time"
    return replace(state, took_over_at=None), (Record("recovered_coordinator", f"the coordinator took over: {text}"),)
