"""A run that goes on after it was over, paused or rolled back: what it costs, and what is still to come."""

import json

import pytest

from culm.pipeline.money.codec import of_message
from culm.pipeline.money.ledger import Ledger
from tests.unit.test_forecast import calm_run, of, plan
from tests.unit.test_ledger import START, USAGE, Log


def goes_on(log: Log, at: float) -> None:
    """Two nodes train the seventh step again, as quickly as those before."""
    plan(log, at, 6)
    log.commits(at + 5, 6)


@pytest.mark.parametrize("kind", ["stopping", "failed"])
def test_a_run_that_was_over_and_goes_on_has_a_rest_again(kind: str) -> None:
    """Its nodes were stopped and started again, or its job was mended; the forecast stayed with why it was over."""
    log = calm_run()
    log.happens(46, kind, 6)
    assert of(log, 46).steps_left == 10
    assert not of(log, 46).HasField("seconds")
    log.happens(50, "recovered_coordinator", 6)
    goes_on(log, 60)
    found = of(log, 65)
    assert found.seconds.expected > 9 * 5.0
    assert found.why == "from 5 calm steps; 1 interruption"


def test_a_run_whose_nodes_went_waits_for_others_since_its_rollback() -> None:
    log = calm_run()
    log.happens(46, "stopping", 6)
    log.happens(47, "rollback", 6, step=6)
    assert of(log, 50).why.endswith("the run waits for nodes since a rollback")


def done_and_trained_again() -> Log:
    """The run is done at 45 s. Both nodes are lost with its weights: it begins again from step 0 with two others."""
    log = calm_run(steps=6)
    log.happens(45, "done", 6)
    log.happens(50, "joined", node="n2", incarnation=1)
    log.happens(50, "usage", node="n0", incarnation=1, **{**USAGE, "forward": 9.0})
    log.happens(55, "left", 6, node="n0")
    log.loses(60, "n1", 6)
    log.happens(60, "rollback", 0, step=0)
    log.price(60, "n2", 0.36)  # of a run that is done no prices are on record
    log.joins(70, "n3")
    plan(log, 70, steps=6)
    log.commits(80, 0)
    return log


def test_a_run_that_was_done_and_trains_again_is_paid() -> None:
    """Its cost stayed as it was at its first end: it trained for free, and came to no budget."""
    cost = done_and_trained_again().figures(80)
    assert not cost.done
    assert cost.dollars == pytest.approx((55 + 60 + 30 + 10) * 0.0001)
    assert cost.dollars_by_use["forward"] == pytest.approx(9 * 0.0001)
    assert cost.dollars_per_hour == pytest.approx(2 * 0.36)
    assert (cost.seconds, cost.useful_seconds, cost.samples) == (70.0, 5.0, 8)
    assert [(x.kind, x.seconds) for x in cost.interruptions] == [("rollback", 65.0)]
    assert cost.forecast.steps_left == 5
    assert cost.forecast.seconds.expected > 25.0


def test_a_run_that_was_done_is_done_again() -> None:
    log = done_and_trained_again()
    for step in range(1, 6):
        log.commits(80 + 5 * step, step)
    log.happens(105, "done", 6)
    log.loses(110, "n3", 6)
    cost = log.figures(3600)
    assert (cost.done, cost.as_of, cost.forecast.why) == (True, START + 105, "the run is done")
    assert cost.dollars == pytest.approx((55 + 60 + 55 + 35) * 0.0001)


def test_while_a_run_is_done_its_figures_are_those_of_its_end() -> None:
    log = done_and_trained_again()
    ledger, end = Ledger(), None
    for event in log.events:
        if event.kind == "rollback":
            break
        ledger.take(of_message(event))
        end = end or (ledger.figures(event.time) if event.kind == "done" else None)
    assert end is not None
    assert ledger.figures(START + 60) == end
    assert ledger.dollars(START + 60) == end.dollars == pytest.approx(2 * 45 * 0.0001)


def test_a_successor_of_a_run_that_is_done_goes_on_with_all_of_it() -> None:
    log, ledger = done_and_trained_again(), Ledger()
    for number, event in enumerate(log.events):
        ledger.take(of_message(event))
        ledger = Ledger.from_document(json.loads(json.dumps(ledger.to_document())))
        assert ledger.figures(START + 99) == Log(log.events[: number + 1]).figures(99)


def test_a_document_of_a_version_that_kept_no_figures_of_the_end_is_read() -> None:
    log, ledger = calm_run(steps=6), Ledger()
    log.happens(45, "done", 6)
    for event in log.events:
        ledger.take(of_message(event))
    document = ledger.to_document()
    del document["_ended"]
    assert Ledger.from_document(document).figures(START + 99) == ledger.figures(START + 99)


@pytest.mark.parametrize("taken_over", [False, True])
def test_a_rollback_to_step_0_is_not_charged_with_what_was_spent_before_training(taken_over: bool) -> None:
    """The nodes waited for an hour for one that was missing."""
    log = Log()
    log.joins(0, "n0")
    plan(log, 3600)
    for step in range(3):
        log.commits(3605 + 5 * step, step)
    log.happens(3617, "rollback", 0, step=0)
    plan(log, 3617)
    log.commits(3622, 0)
    ledger = Ledger()
    for event in log.events:
        if taken_over:
            ledger = Ledger.from_document(json.loads(json.dumps(ledger.to_document())))
        ledger.take(of_message(event))
    (rollback,) = ledger.figures(START + 3622).interruptions
    assert rollback.seconds == 17.0
    assert rollback.dollars == pytest.approx(17 * 0.0001)
