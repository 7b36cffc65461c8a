"""Nodes that live and are of no use all the same: cut off from a neighbour, or stuck. Each verdict has its reason.

Dead and silent nodes are found in ``coordinator.membership``, by broken streams and missing heartbeats.
"""

from collections.abc import Mapping

from coordinator.state import State

FRESH_SECONDS = 2.5  # a node repeats its report about as often as it fails to connect, which is every second or less
DEVIATIONS = 10.0  # beyond a node's own median before an instruction counts as stuck
SAMPLES = 8  # instructions before a node's own history says anything


def standing(state: State, now: float) -> Mapping[str, Mapping[str, float]]:
    """suspect -> reporter -> seconds for which the reporter has not reached it, as far as it says so still."""
    out: dict[str, dict[str, float]] = {}
    for suspect, reports in state.evidence.items():
        for reporter, report in reports.items():
            both = suspect in state.nodes and reporter in state.nodes
            if both and now - report.last <= FRESH_SECONDS:
                out.setdefault(suspect, {})[reporter] = now - report.first
    return out


def cut_off(state: State, now: float) -> dict[str, str]:
    """Nodes to give up since a link to them does not mend, with the reason.

    Of the two ends of a broken link the one that more neighbours miss goes; else the one that owns less.
    """
    missed = standing(state, now)
    lost: dict[str, str] = {}
    for suspect, reports in missed.items():
        for reporter, seconds in reports.items():
            if seconds < state.settings.link_timeout or {suspect, reporter} & lost.keys():
                continue
            victim = max((suspect, reporter), key=lambda n: (_missed_by(missed, n), -_owned(state, n), n))
            other = reporter if victim == suspect else suspect
            more = _missed_by(missed, victim) > _missed_by(missed, other)
            why = f"more nodes miss it than {other}" if more else f"losing it costs no more than losing {other}"
            lost[victim] = f"the link between {reporter} and {suspect} has been broken for {seconds:.1f} s, and {why}"
    return lost


def _missed_by(missed: Mapping[str, Mapping[str, float]], node: str) -> int:
    """How many nodes it has no link with, whoever says so."""
    others = set(missed.get(node, ())) | {suspect for suspect, reports in missed.items() if node in reports}
    return len(others)


def _owned(state: State, node: str) -> int:
    return len(state.plan.owned_by(node)) if state.plan is not None else 0


def stuck(state: State, now: float) -> dict[str, str]:
    """Nodes whose present instruction takes far longer than their own history explains, with the reason."""
    patience = state.settings.heartbeat_timeout
    lost = {}
    for node in state.nodes.values():
        usual = node.median_seconds + DEVIATIONS * node.deviation_seconds
        if node.attached_since is None or node.samples < SAMPLES:
            continue
        if node.running_seconds > max(usual, patience):
            lost[node.node] = (
                f"stuck: {node.instruction or 'its work'} has been running for {node.running_seconds:.1f} s, "
                f"usual are {node.median_seconds:.3f} s with a deviation of {node.deviation_seconds:.3f} s"
            )
    return lost
