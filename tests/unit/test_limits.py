"""A budget and a time to stop: what has been reached, what an operator may set, and what is refused. All pure."""

from dataclasses import replace

import pytest

from culm.coordinator import limits
from culm.coordinator import state as co
from culm.coordinator.decide import advance, begin
from culm.coordinator.requests import Limits, Pausing, Spending, Spent, Unpausing
from culm.pipeline.pause import Pause

EIGHT = 1_796_108_400.0
TWENTY_FIVE = Limits(budget=25.0)


def spent(dollars: float, at: float = 0.0, bounds: Limits = TWENTY_FIVE) -> co.State:
    state = begin(co.Settings(stages=2, microbatches=1, steps=9, limits=bounds))
    return replace(state, spending=Spending(dollars, at))


def test_a_limit_is_reached_when_the_money_or_the_time_is_there() -> None:
    both = Limits(budget=25.0, stop_at=EIGHT)
    assert not limits.reached(both, 24.99, EIGHT - 1.0)
    assert limits.reached(both, 25.0, EIGHT - 1.0) == "the run has cost 25.00 $ of its budget of 25.00 $"
    assert limits.reached(both, 0.0, EIGHT) == "it is 2026-12-01 07:00:00 UTC, the time at which the run was to stop"
    assert not limits.reached(Limits(), 1e9, 1e11), "there is none"


def test_a_run_goes_on_with_a_higher_budget_alone() -> None:
    state = spent(25.04)
    assert "a higher --budget" in limits.refusal(state, None, None)
    assert "a higher --budget" in limits.refusal(state, 25.0, None)
    assert limits.refusal(state, 50.0, None) == ""
    assert limits.refusal(state, 0.0, None) == "", "0: no limit"


def test_a_time_that_has_passed_counts_no_more() -> None:
    state = spent(1.0, EIGHT + 5.0, Limits(stop_at=EIGHT))
    assert limits.refusal(state, None, None) == ""
    assert limits.in_force(state, None, None) == Limits()
    assert limits.in_force(spent(1.0, EIGHT - 5.0, Limits(stop_at=EIGHT)), None, None) == Limits(stop_at=EIGHT)
    assert limits.in_force(state, None, EIGHT + 60.0) == Limits(stop_at=EIGHT + 60.0)


def test_a_pause_of_somebody_becomes_one_of_a_limit_when_that_is_reached() -> None:
    """Its nodes cost money as well: the budget would not be kept."""
    state, _ = advance(spent(1.0), Pausing(Pause("ada", 5.0)), 0.0)
    assert limits.come_to(state) == ""
    state, _ = advance(state, Spent(30.0, 6.0), 1.0)
    assert state.pause == Pause("ada", 5.0)
    assert "has cost 30.00 $" in limits.come_to(state)


@pytest.mark.parametrize("pause", [None, Pause("ada", 5.0)])
def test_limits_that_an_operator_has_set_stay(pause: Pause | None) -> None:
    state = replace(spent(1.0), pause=pause)
    state, _ = advance(state, Unpausing("ada", budget=50.0), 0.0)
    assert (state.pause, limits.limits_of(state)) == (None, Limits(budget=50.0))
    state, _ = advance(state, Spent(49.0, 7.0), 1.0)
    assert state.pause is None
    state, _ = advance(state, Spent(50.5, 8.0), 2.0)
    assert state.pause == Pause("", 8.0, "the run has cost 50.50 $ of its budget of 50.00 $")


def test_a_run_with_a_budget_waits_for_every_price() -> None:
    state = replace(spent(0.0), spending=None)
    assert limits.why_not_begun(state) == "waiting for what the nodes cost"
    assert limits.why_not_begun(replace(state, settings=replace(state.settings, limits=Limits()))) == ""
