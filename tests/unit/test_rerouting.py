"""ReCycle-like: peers take over what a lost node did, as far as there is one."""

import pytest

from culm.simulator.markets.account import Use
from culm.simulator.markets.rerouting import PAUSE, Rerouting
from culm.simulator.markets.trace import Change
from culm.simulator.markets.workload import PUBLISHED, fitted, summing

BERT = PUBLISHED["bert"]
HOUR = 3600.0


def machines(count: int) -> list[Change]:
    return [Change(at=0.0, kind="add", node=f"n{i}") for i in range(count)]


def lost(at: float, *nodes: int) -> list[Change]:
    return [Change(at=at, kind="remove", node=f"n{i}") for i in nodes]


def test_without_losses_it_takes_the_published_times() -> None:
    row = Rerouting(machines(48), BERT).run(HOUR)
    assert row.fatal == 0
    assert row.throughput == pytest.approx(BERT.samples_per_step / BERT.step_seconds[4])


def test_a_lost_node_costs_a_pause_and_its_peers_work() -> None:
    calm, once = (Rerouting(machines(48) + gone, BERT).run(HOUR) for gone in ([], lost(1000.0, 0)))
    assert once.fatal == 0
    fit = fitted(BERT)
    slower = max(BERT.step_seconds[4], fit.microbatches / 3 * fit.each + summing(BERT, 3))
    after = (HOUR - 1000.0 - PAUSE) / slower - (HOUR - 1000.0) / BERT.step_seconds[4]
    assert once.samples - calm.samples == pytest.approx(after * BERT.samples_per_step, rel=0.01)
    assert once.spent[Use.WAITING] - calm.spent[Use.WAITING] == pytest.approx(PAUSE)


def test_another_machine_takes_a_lost_ones_place() -> None:
    gone = [*machines(48), *lost(1000.0, 0, BERT.stages)]  # two of four: bubbles do not hold the work of half a stage
    back = [Change(at=1200.0, kind="add", node=f"n{i}") for i in (48, 49)]
    row, for_ever = (Rerouting(changes, BERT).run(5 * HOUR) for changes in (gone + back, gone))
    assert row.throughput > 1.1 * for_ever.throughput


def test_all_owners_of_a_stage_are_fatal() -> None:
    every = range(0, 48, BERT.stages)  # those of the first stage
    row = Rerouting([*machines(48), *lost(1000.0, *every)], BERT).run(HOUR)
    assert row.fatal == 1
    assert row.spent[Use.ROLLBACK] > 0.0


def test_it_grows_by_whole_pipelines() -> None:
    later = [Change(at=500.0, kind="add", node=f"n{i}") for i in range(24, 36)]
    few, more = Rerouting(machines(24), BERT).run(HOUR), Rerouting(machines(24) + later, BERT).run(HOUR)
    assert more.samples > few.samples
