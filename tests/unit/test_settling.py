"""When a new cut of the model is looked at, and what counts as slow: neither follows every swing."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from culm.coordinator import reports
from culm.coordinator.decide import advance, begin
from culm.coordinator.edges.persistence import from_document, to_document
from culm.coordinator.settling import HOUR, next_look, quiet, seconds_between_lost_nodes
from culm.coordinator.slowness import Pace, told
from culm.coordinator.state import Settings, State

BEGUN = begin(Settings(stages=4, microbatches=8, steps=100, settle_seconds=30.0))


@given(st.floats(0.0, 1e6), st.floats(0.0, 1e6))
def test_quiet_changes_at_the_next_look_and_not_before(changed_at: float, passed: float) -> None:
    state = replace(BEGUN, changed_at=changed_at)
    now = changed_at + passed
    look = next_look(state, now)
    assert look > now or look == pytest.approx(now)
    assert quiet(state, now + 0.999 * max(0.0, look - now)) == pytest.approx(quiet(state, now))
    assert quiet(state, look + 1e-6 * look + 1e-6) > quiet(state, now)


def test_two_losses_at_once_do_not_mean_a_loss_every_second() -> None:
    """A run that had lost two nodes within a second counted on the next lost node in a second, and never grew back."""
    state = replace(BEGUN, lost_at=(5.0, 5.6), changed_at=5.6)
    assert seconds_between_lost_nodes(state, 40.0) == HOUR


def test_the_quiet_after_many_losses_counts() -> None:
    state = replace(BEGUN, lost_at=(10.0, 20.0, 30.0, 40.0), changed_at=40.0)
    assert seconds_between_lost_nodes(state, 41.0) == 10.0
    assert seconds_between_lost_nodes(state, 40.0 + 3600.0) > 600.0


def heard(state: State, slowness: float, now: float) -> tuple[State, int]:
    state, commands = advance(state, reports.Heartbeat(node="n0", incarnation=1, slowness=slowness), now)
    return state, sum(getattr(command, "kind", "") == "slow" for command in commands)


def test_a_pace_that_swings_is_no_news() -> None:
    """Fourteen "slow" events in twelve seconds, and the model cut to and fro."""
    state, _ = advance(BEGUN, reports.Joined(node="n0", incarnation=1, address="n0:1"), 0.0)
    told = 0
    for tick in range(240):
        state, count = heard(state, 2.5 if tick % 8 < 4 else 1.0, tick * 0.5)
        told += count
    assert told == 0
    assert state.nodes["n0"].pace.known == 1.0


def test_a_pace_that_lasts_is_told_once() -> None:
    state, _ = advance(BEGUN, reports.Joined(node="n0", incarnation=1, address="n0:1"), 0.0)
    told = 0
    for tick in range(240):
        state, count = heard(state, 2.5, tick * 0.5)
        told += count
    assert told == 1
    assert state.nodes["n0"].pace.known == 2.5


def test_to_the_other_side_the_time_begins_anew() -> None:
    pace, changed = told(Pace(), 2.0, 0.0, 10.0)
    pace, changed = told(pace, 0.5, 9.0, 10.0)
    pace, changed = told(pace, 0.5, 11.0, 10.0)
    assert not changed
    assert told(pace, 0.5, 19.0, 10.0) == (Pace(0.5), True)


def test_after_a_takeover_nodes_are_left_alone_anew() -> None:
    """A new leader's clock begins anywhere: the last change must not look hours old."""
    state = from_document(to_document(BEGUN), BEGUN.settings, 2, 1e6)
    assert quiet(state, 1e6 + 1.0) == 0.0
