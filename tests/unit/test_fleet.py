"""Machines of a trace, as a run rents them."""

import pytest

from culm.simulator.markets.account import Account, Use
from culm.simulator.markets.fleet import Fleet
from culm.simulator.markets.job_profile import Cluster
from culm.simulator.markets.trace import Change
from culm.simulator.network import Clock


@pytest.mark.parametrize("starts_up", [0.0, 45.0])
def test_a_machine_that_is_taken_before_it_is_up_neither_starts_nor_goes(starts_up: float) -> None:
    clock, account, told = Clock(), Account(), []
    started, gone = (lambda name, zone: told.append(f"{name} is up")), (lambda name: told.append(f"{name} is gone"))
    fleet = Fleet(clock, account, Cluster(starts_up=starts_up), 1, started, gone)
    fleet.offer(Change(at=0.0, kind="add", node="m0"))
    fleet.offer(Change(at=0.0, kind="add", node="m1"))
    while clock.next_at <= 100.0:
        clock.step()
    account.pass_to(100.0, Use.USEFUL)
    fleet.take("m0")
    assert fleet.has("m1")
    fleet.take("m1")  # in the same moment
    while clock.next_at <= 200.0:
        clock.step()
    assert told == ["m0 is up", "m0 is gone"]
    fleet.offer(Change(at=200.0, kind="add", node="m2"))
    while clock.next_at <= 300.0:
        clock.step()
    fleet.give_back("m2")
    assert told == ["m0 is up", "m0 is gone", "m2 is up"]
