"""Nodes that live and are of no use all the same: stuck. Each verdict has its reason.

Dead and silent nodes are found in ``coordinator.membership``, by broken streams and missing heartbeats; those that a
neighbour does not reach in ``coordinator.links``.
"""

from coordinator.state import State

DEVIATIONS = 10.0  # beyond a node's own median before an instruction counts as stuck
SAMPLES = 8  # instructions before a node's own history says anything


def stuck(state: State, now: float) -> dict[str, str]:
    """Nodes whose present instruction takes far longer than their own history explains, with the reason."""
    patience = state.settings.heartbeat_timeout
    lost = {}
    for node in state.nodes.values():
        if node.running_seconds <= patience or node.attached_since is None or node.samples < SAMPLES:
            continue
        if node.running_seconds > node.median_seconds + DEVIATIONS * node.deviation_seconds:
            lost[node.node] = (
                f"stuck: {node.instruction or 'its work'} has been running for {node.running_seconds:.1f} s, "
                f"usual are {node.median_seconds:.3f} s with a deviation of {node.deviation_seconds:.3f} s"
            )
    return lost
