"""How many steps can be passed over at once: those in which the coordinator would count commits and decide nothing."""

from culm.coordinator import settling
from culm.coordinator.redundancy import REVIEW_STEPS
from culm.coordinator.state import State
from culm.simulator.markets.run_setup import Choice

# Every moment at which something may be decided bounds how many steps are passed over:
#
#     what may happen                                     when
#     a machine comes or goes, state arrives, the run     the clock's next action, or the moment at which the caller
#       is looked at                                        stops
#     the model is cut anew                               ``settling.next_look``: quiet grows in jumps
#     a checkpoint                                        every ``checkpoint_steps``
#     redundancy "auto" looks again                       ``REVIEW_STEPS`` after its last look
#     the job ends                                        its last step
#     a node drains                                       every commit may let it go: nothing is passed over
#
# The step during which such a moment comes is played like any other, and its commit is decided on. A step that has to
# be the one that is played, such as that of a checkpoint, is left out of the count: hence "- 1".


def calm_steps(state: State, choice: Choice, now: float, until: float, seconds: float) -> int:
    """How many, 0 or more, from ``now`` on. ``until``: something else happens; ``seconds``: of a step."""
    until = min(until, settling.next_look(state, now))
    count = int((until - now) / seconds) if until < float("inf") else state.settings.steps
    count = min(count, state.settings.steps - state.committed - 1)
    if choice.checkpoint_steps:
        count = min(count, choice.checkpoint_steps - state.committed % choice.checkpoint_steps - 1)
    if state.review is not None:
        count = min(count, state.review.step + REVIEW_STEPS - state.committed - 1)
    if any(node.draining for node in state.nodes.values()):
        return 0
    return max(0, count)
