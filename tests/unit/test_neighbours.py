"""Which chunks exchange values, and how old these are."""

import pytest

from culm.pipeline.neighbours import FRESH, Neighbours, Staleness


def test_whom_a_chunk_takes_of_is_whom_the_other_gives_to() -> None:
    near = Neighbours(((0, 2), (1,), (0, 1, 2)))
    assert near.after == ((0, 2), (1, 2), (0, 2))


def test_values_get_older_up_to_the_bound_and_are_fresh_again() -> None:
    stale = Staleness(most=2, refresh=4, fresh_from=9)
    assert [stale.lag(step) for step in range(11)] == [0, 1, 2, 2, 0, 1, 2, 2, 0, 0, 0]


def test_nothing_is_older_than_the_era() -> None:
    stale = Staleness(most=2, refresh=100, fresh_from=1000)
    assert [stale.lag(step, origin=50) for step in (50, 51, 52, 53)] == [0, 1, 2, 2]


def test_what_a_lost_owner_gave_is_missed_until_no_later_epoch_takes_it() -> None:
    stale, end = Staleness(most=1, refresh=4, fresh_from=9), 11
    assert [stale.takes_before(step + 1, range(step, end)) for step in range(end)] == [
        *[True, True, True, True],  # the running epoch 0 counts: the next one takes of it
        *[True, True, True, True],
        *[False, False, False],  # 8 is fresh by ``refresh``, 9 and 10 by ``fresh_from``
    ]
    assert [stale.takes_before(step, range(step, end)) for step in (0, 4, 8)] == [False] * 3, "in a pause"
    assert stale.takes_before(5, range(5, end))
    assert not stale.takes_before(end, range(end, end)), "the run is done"


def test_values_may_be_wanted_several_epochs_later() -> None:
    stale = Staleness(most=2, refresh=3, fresh_from=100)
    assert stale.takes_before(4, range(3, 100))  # 4 takes of 3
    assert not stale.takes_before(3, range(3, 100))


@pytest.mark.parametrize("step", [0, 1, 10**9])
def test_without_staleness_all_is_fresh(step: int) -> None:
    assert FRESH.lag(step) == 0
