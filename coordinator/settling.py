"""How long the nodes have been left alone, and how often nodes are lost: what a new cut waits for. Pure."""

# Both change in jumps: whoever passes over calm steps, as the simulator does, need look again at ``next_look`` only.

import math

from culm.coordinator.state import State

HOUR = 3600.0  # until the next node is lost, as long as fewer than two have shown another rate
BULK_SECONDS = 1.0  # nodes lost so close together are one bulk: in a day of AWS spot 77 % of 167 removals were
# A run with fewer stages than the job asks for waits a fourth of the usual time, and so does one of several pipelines
# that has work for less than half of its nodes: every step until then is a slow one.
GROWS_AFTER = 4


def quiet(state: State, now: float) -> float:
    """Seconds for which neither the nodes nor the cut has changed, rounded down.

    To ``settle_seconds / GROWS_AFTER``, or twice that, or four times, and so on; 0.0 before.
    """
    first = state.settings.settle_seconds / GROWS_AFTER
    passed = now - state.changed_at
    if first <= 0.0 or passed < first:
        return max(0.0, passed) if first <= 0.0 else 0.0
    return first * 2.0 ** math.floor(math.log2(passed / first))


def next_look(state: State, now: float) -> float:
    """When ``quiet`` changes next, if nothing happens until then."""
    first = state.settings.settle_seconds / GROWS_AFTER
    return state.changed_at + max(first, 2.0 * quiet(state, now))


def seconds_between_lost_nodes(state: State, now: float) -> float:
    """The mean time from one lost node, or bulk of them, to the next, with the present quiet; an hour before two."""
    bulks = [at for i, at in enumerate(state.lost_at) if i == 0 or at - state.lost_at[i - 1] > BULK_SECONDS]
    if len(bulks) < 2:
        return HOUR
    return (state.changed_at + quiet(state, now) - bulks[0]) / (len(bulks) - 1)
