"""Traces drawn at random: the same seed draws the same, and machines come before they go."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from culm.simulator.markets.random_market import Zone, hourly, zoned
from culm.simulator.markets.trace import Change


def follow(changes: list[Change]) -> int:
    """The most machines that are there at once. Fails where one goes that is not there."""
    here: set[str] = set()
    most, at = 0, 0.0
    for change in changes:
        assert change.at >= at
        at = change.at
        if change.kind == "add":
            assert change.node not in here
            here.add(change.node)
        elif change.kind == "remove":
            here.remove(change.node)
        else:
            assert change.node in here
        most = max(most, len(here))
    return most


@given(seed=st.integers(0, 10**6), capacity=st.integers(1, 60), removal=st.floats(0, 1), hours=st.integers(1, 30))
@settings(max_examples=50)
def test_the_hourly_market_keeps_to_its_capacity(seed: int, capacity: int, removal: float, hours: int) -> None:
    changes = hourly(seed, capacity, removal, hours)
    assert follow(changes) <= capacity
    assert changes == hourly(seed, capacity, removal, hours)


def test_as_many_go_as_the_rate_says() -> None:
    zone = Zone(name="a", machines=100, price=0.9, lost_per_hour=0.25)
    changes = zoned(1, [zone], 100 * 3600.0)
    lived = sum(change.at * (1 if change.kind == "remove" else -1) for change in changes)
    lived += 100 * 3600.0 * (sum(c.kind == "add" for c in changes) - sum(c.kind == "remove" for c in changes))
    rate = sum(change.kind == "remove" for change in changes) / (lived / 3600.0)
    assert rate == pytest.approx(0.25, rel=0.05)


@given(seed=st.integers(0, 10**6), notice=st.sampled_from([0.0, 30.0, 120.0]))
@settings(max_examples=30)
def test_zones_lose_machines_one_by_one_and_in_bulk(seed: int, notice: float) -> None:
    zones = [
        Zone(name="a", machines=5, price=0.9, lost_per_hour=0.2, bulk_per_hour=1.0, bulk_share=0.6),
        Zone(name="b", machines=4, price=0.7, lost_per_hour=0.1),
    ]
    changes = zoned(seed, zones, 20 * 3600.0, notice)
    assert follow(changes) <= 9
    assert changes == zoned(seed, zones, 20 * 3600.0, notice)
    assert {change.price for change in changes if change.kind == "add"} == {0.9, 0.7}
    gone = {change.node for change in changes if change.kind == "remove"}
    told = {change.node for change in changes if change.kind == "notice"}
    assert gone <= told if notice else not told


def test_a_bulk_loss_takes_its_share_of_the_zone_in_one_moment() -> None:
    changes = zoned(
        3,
        [
            Zone(
                name="a", machines=10, price=0.9, lost_per_hour=0.0, bulk_per_hour=0.5, bulk_share=0.4, wait_seconds=1.0
            )
        ],
        40 * 3600.0,
    )
    moments = [change.at for change in changes if change.kind == "remove"]
    assert moments
    assert {moments.count(at) for at in moments} == {4}
