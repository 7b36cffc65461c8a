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


@pytest.mark.parametrize("step", [0, 1, 10**9])
def test_without_staleness_all_is_fresh(step: int) -> None:
    assert FRESH.lag(step) == 0
