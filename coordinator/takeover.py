"""Taking over from a coordinator that died: what was persisted, made good by what the nodes report (rules 8 and 12).

Until every holder of the plan has attached again, or had the time to, nothing is decided: what was persisted may be
older than what the nodes were told, since Redis may have been away.
"""

from dataclasses import replace

from coordinator.decisions import Decision, commit_record
from coordinator.state import (
    Available,
    Command,
    Dismiss,
    Node,
    Persist,
    Phase,
    Publish,
    Record,
    SendCommit,
    SendPlan,
    State,
)
from pipeline.plan import Plan


def recovering(state: State) -> bool:
    """Whether losses and commits have to wait."""
    return state.took_over_at is not None


def learn(state: State, event: Available, now: float) -> Decision:
    """Takes from a node's report what the state does not know yet."""
    if not event.holds_state:
        return state, ()
    commands: list[Command] = []
    if event.plan is not None and _is_newer(event.plan, state):
        too_early = _started_again(state, event.plan)
        state = _adopted(state, event.plan, now)
        why = "another incarnation of it is in the plan, and has to be declared lost first"
        commands += [Dismiss(n.node, n.incarnation, why, join_anew=True) for n in too_early]
        assert state.plan is not None
        text = f"{event.node} obeys generation {event.plan.generation}, which was not persisted: it is taken over"
        commands += [Persist(state), Publish(stamped(state)), Record("adopted", text, {"node": event.node})]
    if event.era != state.era:
        return state, tuple(commands)
    known = state.last_commit
    if event.last_commit is not None and (known is None or event.last_commit.step > known.step):
        state = replace(state, last_commit=event.last_commit)
        commands.append(commit_record(event.last_commit))
    if event.version > state.committed:
        # What a node has applied is committed, whatever was persisted (rule 8). Those that came before it missed it.
        state = replace(state, committed=event.version, facts={}, norms={}, losses=())
        behind = [n for n in state.nodes.values() if n.attached_since is not None and n.version == event.version - 1]
        commands += [_missed(state, n.node) for n in behind if state.last_commit is not None]
    if state.committed >= state.settings.steps:
        state = replace(state, phase=Phase.DONE, detail="every step is committed")
    return state, tuple(commands)


def _is_newer(plan: Plan, state: State) -> bool:
    """Whether the plan was made by a leader before, after the one that this leader goes on from."""
    if plan.term > state.term:
        return False  # of a later leader: this one is to step down
    if state.plan is None:
        return state.phase is Phase.WAITING and plan.era >= state.era
    known = state.plan
    if known.term == state.term or plan.order <= known.order:
        return False
    return (plan.generation, plan.stages) != (known.generation, known.stages)  # else the same under a later term


def without_its_state(state: State, event: Available) -> str:
    """Why the node cannot be what the plan takes it for, or nothing: it obeyed another leader meanwhile."""
    plan = state.plan
    member = plan.members.get(event.node) if plan is not None else None
    if plan is None or member is None or member.incarnation != event.incarnation:
        return ""
    if not any(event.node in stage.required() for stage in plan.stages) or event.plan is None:
        return ""
    if event.era == state.era and event.version >= state.committed - 1:
        return ""
    return f"{event.node} is at step {event.version} of era {event.era}, without the state that the plan counts on"


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
        generation=plan.generation,
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
    return replace(state.plan, term=state.term, step=state.committed)


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
