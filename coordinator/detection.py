"""Nodes that live and are of no use all the same: stuck, or loading for ever. Each verdict has its reason."""

# Dead and silent nodes are found in ``coordinator.membership``, by broken streams and missing heartbeats; those that a
# neighbour does not reach in ``coordinator.links``.
#
# Loading is a state of its own: storage that stalls says nothing about the node, and nobody computes faster for having
# lost it. A node that loads is waited for much longer, and not lost while another one waits for storage as well: then
# it is the storage.

from culm.coordinator.state import Node, State

# A node is held against its own history, not against others': layers differ, and so do machines. Ten deviations beyond
# its median and longer than the patience besides: a machine that swaps or shares its cores is slow, and not lost.
DEVIATIONS = 10.0
# Pieces of work of a kind before a node's own history says anything: the first ones of all compile, allocate and page
# in. Of what takes another time each time, as building layers, no history is kept: it is never taken for stuck, and
# ``watchdog`` says that the run stands still, and why.
SAMPLES = 8
APPLY = "apply"  # as a node calls it


def of_no_use(state: State, now: float) -> dict[str, str]:
    """Nodes that are not waited for any longer, with the reason."""
    return {**_stuck(state), **_loading(state), **_ordered_to_die(state, now)}


def _stuck(state: State) -> dict[str, str]:
    """Those whose present piece of work takes far longer than their own history explains."""
    lost = {}
    for node in state.nodes.values():
        if node.running_seconds <= state.settings.patience.seconds:
            continue
        if node.attached_since is None or node.samples < SAMPLES:
            continue
        if _is_the_jobs(state, node):
            continue
        if node.running_seconds > node.median_seconds + DEVIATIONS * node.deviation_seconds:
            lost[node.node] = (
                f"it is stuck: {node.instruction or 'its work'} has been running for {node.running_seconds:.1f} s; "
                f"usually that takes {node.median_seconds:.3f} s, with a deviation of {node.deviation_seconds:.3f} s"
            )
    return lost


def _is_the_jobs(state: State, node: Node) -> bool:
    """Whether another node has been applying for as long, about: an optimizer may have a step that takes long."""
    if node.instruction != APPLY:
        return False
    others = (n for n in state.nodes.values() if n is not node and n.instruction == APPLY)
    return any(n.running_seconds > node.running_seconds / 2 for n in others)


def _loading(state: State) -> dict[str, str]:
    """One that has been loading the same samples for too long, while no other node waits for storage."""
    loading = [n for n in state.nodes.values() if n.loading_seconds > 0.0 and n.attached_since is not None]
    if len(loading) != 1 or loading[0].loading_seconds <= state.settings.patience.loading:
        return {}
    seconds = loading[0].loading_seconds
    return {loading[0].node: f"it has been loading samples for {seconds:.0f} s, and no other node waits for storage"}


def _ordered_to_die(state: State, now: float) -> dict[str, str]:
    """Those that were ordered to die and live: whatever they still say, they are not relied on."""
    patience = state.settings.patience.seconds
    return {
        n.node: f"it was ordered to die {now - n.condemned_at:.1f} s ago, and still lives"
        for n in state.nodes.values()
        if n.condemned_at is not None and now - n.condemned_at > patience
    }
