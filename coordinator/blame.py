"""What follows when something raises on a node: it ends that node; or the run, if it is the job's fault (rule 16)."""

# Whose fault it is ``failures`` tells, from its record. Here is what follows:
#
#     the node had not been available             it ends, and nobody depends on it. If the job's start raised, that is
#                                                 the job's fault only while the job has started nowhere
#     it raised at work of the job's              its duties move to heirs, who do the same work: where it raises on the
#                                                 second machine too, the run fails
#     it raised elsewhere (a thread of its own)   it is lost, or has taken no part yet; no work is to blame
#     it ended without a word                     ``membership.lose`` counts a death at what it owned; ``judged`` looks
#                                                 at the counts after every decision
#
# So a fault of the job that leaves a word costs two nodes, and the run fails. A fault of one machine costs that node.

from collections.abc import Collection
from dataclasses import replace

from culm.coordinator import membership
from culm.coordinator.commands import Command, Persist, Record
from culm.coordinator.decisions import Decision
from culm.coordinator.failures import (
    DEATHS,
    START,
    TEXT,
    Work,
    are_the_jobs,
    is_the_jobs,
    is_told,
    machine_of,
    machines_at,
    noted,
    start_failed,
)
from culm.coordinator.reports import NodeFailed
from culm.coordinator.state import Node, Phase, State
from culm.pipeline.money import kinds

# With which whoever started the run ends. 2 is for what a user mends in the job file, as for every command; 1 for all
# else.
CODES = {START: 2}


def node_failed(state: State, report: NodeFailed, now: float) -> Decision:
    """The node ends with its last words. Those of an incarnation that is lost already change nothing."""
    node = state.nodes.get(report.node)
    if node is None or node.incarnation != report.incarnation or state.phase is Phase.FAILED:
        return state, ()
    why = report.why[:TEXT]  # it goes into the state, the event log and every status
    holds = state.plan is not None and state.plan.held_by(node.node)  # one that has not attached to a new leader yet
    if not node.available and not holds:
        return _start_failed(state, node, report.work, why)
    # A thread of the node's own that breaks: what the node was at meanwhile is not to blame.
    if report.work is None:
        return membership.lose(state, {node.node: f"it failed: {why}"}, now)
    # First on record, then judged: this failure may be the second one.
    machine = machine_of(node.node, node.pid)
    state = replace(state, failures=noted(state.failures, report.work, machine))
    if _is_the_jobs(state, report.work):
        where = " and ".join(machines_at(state.failures, report.work))
        return fail(state, report.work, f"{report.work} raised on {where}: {why}", node.node)
    return membership.lose(state, {node.node: f"{report.work} raised an exception there: {why}"}, now)


def _start_failed(state: State, node: Node, work: Work | None, why: str) -> Decision:
    """It has taken no part: nobody depends on it. One that is started again and again is told ever more seldom.

    ``work``: the job's start, as a rule; None: a thread of the node's own, which says nothing about the job.
    """
    machine = machine_of(node.node, node.pid)
    failures = noted(state.failures, work, machine) if work is not None else state.failures
    failures, count = start_failed(failures, machine)
    text = f"{node.node}: {why}"
    state = replace(state, failures=replace(failures, newest_start=text))
    # A node that is, or was, available shows that the job does start.
    if work is not None and not state.layer_costs and _is_the_jobs(state, work):
        return fail(state, work, text, node.node)
    state = replace(state, nodes={k: v for k, v in state.nodes.items() if k != node.node})
    if not is_told(count):
        return state, ()
    again = f" ({count} times by now)" if count > 1 else ""
    told = f"{node.node} cannot take part, the others go on without it: {why}{again}"
    return state, (Record(kinds.Dismissed(node=node.node, why=why, count=count), told),)


def _is_the_jobs(state: State, work: Work) -> bool:
    return is_the_jobs(state.failures, work, _enough_of_one(state, work))


def _enough_of_one(state: State, work: Work) -> int:
    """How many failures on one machine are evidence against the job, since there is no other machine; 0: none are.

    A run that waits for more than one node may have them soon: so the start proves nothing there, and one that is left
    alone may try once more.
    """
    waits_for_one = (state.settings.nodes or state.settings.stages) == 1
    if _others(state, machines_at(state.failures, work)) or (work == START and not waits_for_one):
        return 0
    return 1 if waits_for_one else 2


def _others(state: State, machines: Collection[str]) -> bool:
    """Whether there are machines beside these."""
    return not {machine_of(n.node, n.pid) for n in state.nodes.values()}.issubset(machines)


def judged(decision: Decision) -> Decision:
    """What follows from deaths at one and the same work, once there are too many."""
    state, commands = decision
    if state.phase is Phase.FAILED or not state.failures.deaths:
        return decision
    for work, deaths in state.failures.deaths.items():
        machines = list(deaths.by_machine)
        # The count first: most are few, and to go through all nodes takes long.
        if deaths.count >= DEATHS and are_the_jobs(deaths, alone=not _others(state, machines)):
            ended = f"{deaths.count} processes ended one after the other, on {', '.join(machines)}"
            text = f"{ended}, while they ran {work}, which has never been committed: see their logs"
            state, failed = fail(state, work, text, machines[-1])
            return state, (*commands, *failed)
    return decision


def fail(state: State, work: Work, why: str, node: str) -> Decision:
    """The job itself is at fault: nothing is decided any more."""
    commands: tuple[Command, ...] = (
        Persist(),
        Record(kinds.Failed(node=node, why=why, code=CODES.get(work, 1)), why),
    )
    return replace(state, phase=Phase.FAILED, detail=why), commands
