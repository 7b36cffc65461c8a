"""Nodes that are to go, or may have to: what they hold is handed over first, and they leave in order."""

# Going on purpose costs nothing: no instruction runs twice, since duties change hands at a commit. The way of a node:
#
#     drain               the intent is noted and persisted; the node works on
#     the next commit     its hot standbys own its stages, and it stands by for them; others are seeded in its place
#     a later commit      they have taken its place: the node is let go (see ``commits``)
#
# Three kinds of nodes are on that way, and differ in what they wait for:
#
# - One that *drains* goes in any case: at the commit at which nothing rests on it any more, or shortly before its
#   machine goes.
# - One that was *warned* may have to go, or not. It gives its work up only where the others are enough for all stages,
#   and stays attached, as the last that would be given work again.
# - One that was *told* to stop waits for nobody to come in its place: see ``ending`` for all nodes at once.
#
# A node that leaves is fenced as a lost one is, though nothing is wrong with it: from its goodbye on its process ends,
# and what it may still say must not count (rule 13).

from collections.abc import Sequence
from dataclasses import replace

from culm.coordinator.commands import Command, Dismiss, Persist, Record
from culm.coordinator.decisions import Decision
from culm.coordinator.membership import fence, usable
from culm.coordinator.reports import Draining, Warned
from culm.coordinator.state import Node, State
from culm.coordinator.takeover import recovering
from culm.pipeline.money import kinds

MOVED_SECONDS = 5.0  # by which a deadline moves before that is news: a report takes its time


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
    then = "the other nodes take its stages over" if enough else "it works on until there are enough other nodes"
    text = f"{node.node} may have to go: {report.why}; {then}"
    return state, (Record(kinds.Warned(node=node.node, why=report.why), text),)


def drain(state: State, report: Draining, now: float) -> Decision:
    """Notes that a node is to go; one that holds nothing goes at once, the others at a commit."""
    node = state.nodes.get(report.node)
    if node is None:
        return state, ()
    leaves_at = now + report.seconds_left if report.seconds_left is not None else None
    # A node repeats its notice on every stream that it opens, with the seconds that are left then; and whenever they
    # change. So the last report counts: the machine may go sooner than it was said first, or later. A new leader has
    # no deadline, as clocks differ: it takes that of the repeat. An operator knows none, and takes none away.
    if node.draining:
        return _told_again(state, node, report, leaves_at)
    state = replace(
        state,
        nodes={**state.nodes, node.node: replace(node, draining=report.why, leaves_at=leaves_at, told=report.told)},
    )
    left = f"; {report.seconds_left:.0f} s are left" if report.seconds_left is not None else ""
    draining = kinds.Draining(node=node.node, why=report.why, seconds_left=round(report.seconds_left or 0.0, 1))
    noted = Record(draining, f"{node.node} hands over what it holds and goes: {report.why}{left}")
    # Nobody is left to hand over to: all stay for a last checkpoint (``ending``), also a node that holds nothing.
    last = all(n.draining for n in state.nodes.values())
    if (last and report.told) or (state.plan is not None and state.plan.held_by(node.node)):
        return state, (noted, Persist())
    # Of a leader that still hears from nodes the plan may be an old one: the node may hold something.
    if recovering(state):
        return state, (noted, Persist())
    state, farewell = let_go(state, [node.node])
    return state, (noted, Persist(), *farewell)


def _told_again(state: State, node: Node, report: Draining, leaves_at: float | None) -> Decision:
    """Of a node that is to go already: takes the new deadline, and puts it on record if it has moved."""
    before = node.leaves_at
    changed = replace(
        node,
        leaves_at=before if leaves_at is None else leaves_at,
        told=node.told or report.told,  # no store remembers that
    )
    state = replace(state, nodes={**state.nodes, node.node: changed})
    if before is None or leaves_at is None or abs(leaves_at - before) < MOVED_SECONDS:
        return state, ()
    left = report.seconds_left or 0.0
    which = "sooner" if leaves_at < before else "later"
    moved = kinds.Draining(node=node.node, why=report.why, seconds_left=round(left, 1))
    return state, (Record(moved, f"{node.node} goes {which} than it said before: {left:.0f} s are left"),)


def let_go(state: State, names: Sequence[str]) -> Decision:
    """Dismisses nodes that hold nothing any more, for good."""
    commands: list[Command] = []
    for name in names:
        state, gone = farewell(state, name, f"drained, since {state.nodes[name].draining}")
        commands.extend(gone)
    return state, tuple(commands)


def farewell(state: State, name: str, why: str) -> Decision:
    """Dismisses one node for good: nothing is wrong with it."""
    node = state.nodes[name]
    left = Record(kinds.Left(node=name, why=node.draining or why), f"{name} has left: {why}")
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
