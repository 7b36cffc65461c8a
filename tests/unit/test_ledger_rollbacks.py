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


def paused_for_an_hour(rolls_back_to: int) -> Log:
    """Steps of 5 s; paused from 45 to 3645 s. One step later both nodes are lost, and others are there at once."""
    log = calm_run()
    log.happens(45, "paused", 6, who="ada")
    log.happens(3645, "unpaused", 6, who="ada")
    log.commits(3650, 6)
    log.happens(3652, "rollback", rolls_back_to, step=rolls_back_to)
    plan(log, 3653, rolls_back_to)
    log.commits(3658, rolls_back_to)
    return log


@pytest.mark.parametrize(
    ("step", "seconds"),
    # Since the mark of step 5, at 45 s, 13 s passed beside the pause; since that of step 1, at 24 s, 34 s.
    [(6, 13.0 - 5.0), (2, 34.0 - 5.0)],
    ids=["to the checkpoint of the pause", "to one before"],
)
def test_a_rollback_is_not_charged_with_a_pause(step: int, seconds: float) -> None:
    """The pause was charged twice: its goodput was 0 %, and the forecast a hundred times as long."""
    cost = paused_for_an_hour(step).figures(3658)
    pause, rollback = cost.interruptions
    assert (pause.kind, pause.seconds) == ("pause", 3600.0)
    assert pause.dollars == pytest.approx(0.72)
    assert (rollback.kind, rollback.seconds) == ("rollback", seconds)
    assert rollback.dollars == pytest.approx(seconds * 0.0002)
    assert cost.useful_seconds == pytest.approx(48.0 - seconds)
    assert cost.forecast.interrupted == pytest.approx(seconds / 48.0)


def test_a_rollback_in_a_pause_is_not_charged_with_it_and_the_next_one_neither() -> None:
    log = calm_run()
    log.happens(45, "paused", 6, who="ada")
    log.happens(100, "rollback", 4, step=4)
    log.happens(145, "unpaused", 4, who="ada")
    log.happens(150, "rollback", 4, step=4)
    plan(log, 150, 4)
    assert of(log, 150).seconds.expected == pytest.approx(12 * 5.0 - 5.0), "its step has had 15 s: it is to end now"
    log.commits(155, 4)  # 35 s is the mark of step 3
    assert [(x.kind, x.seconds) for x in log.figures(155).interruptions] == [("pause", 100.0), ("rollback", 15.0)]


def test_a_rollback_over_a_lost_node_and_a_pause_is_charged_with_neither() -> None:
    log = calm_run()
    log.loses(46, "n1", 6)
    log.joins(46, "n1", incarnation=2)
    log.commits(60, 6)  # 15 s, 10 of them lost
    log.happens(60, "paused", 7, who="ada")
    log.happens(3660, "unpaused", 7, who="ada")
    log.happens(3662, "rollback", 6, step=6)
    plan(log, 3662, 6)
    log.commits(3665, 6)
    cost = log.figures(3665)
    # 20 s since the mark beside the pause: a calm step of 5 s, and the 10 s that the lost node was charged.
    assert [(x.kind, x.seconds) for x in cost.interruptions] == [("lost", 10.0), ("pause", 3600.0), ("rollback", 5.0)]


def test_a_pause_that_began_before_training_counts_from_the_first_plan() -> None:
    log = Log()
    log.joins(0, "n0")
    log.happens(5, "paused", 0, who="ada")
    plan(log, 10)
    log.happens(110, "unpaused", 0, who="ada")
    log.commits(120, 0)
    cost = log.figures(120)
    assert [(x.kind, x.seconds) for x in cost.interruptions] == [("pause", 100.0)]
    assert (cost.seconds, cost.useful_seconds) == (110.0, 10.0)


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


def test_a_document_of_a_version_that_moved_the_step_behind_its_pause_is_read() -> None:
    log, ledger = paused_for_an_hour(6), Ledger()
    for event in log.events[:-4]:  # up to the end of the pause
        ledger.take(of_message(event))
    document = json.loads(json.dumps(ledger.to_document()))
    document["_since"] = [START + 3645, document["_since"][1] + 0.72]
    del document["_begun_dollars"]
    ledger = Ledger.from_document(document)
    for event in log.events[-4:]:
        ledger.take(of_message(event))
    assert ledger.figures(START + 3658) == log.figures(3658)


def test_time_is_lost_while_a_pause_lasts_and_while_nobody_is_there_to_train() -> None:
    """On demand a run seemed the dearer the longer it was paused, and its goodput came back."""

    def calm(log: Log) -> None:
        log.joins(0, "n0")
        log.joins(0, "n1")
        log.plan(10)
        for step in range(4):  # five seconds a step
            log.commits(15 + 5 * step, step)

    def useful(log: Log, at: float) -> tuple[float, float]:
        cost = log.figures(at)
        assert cost.on_demand_dollars == pytest.approx(2 * 1.08 * cost.useful_seconds / 3600)
        return cost.seconds, cost.useful_seconds

    log = Log()
    calm(log)
    assert useful(log, 33) == (23.0, 23.0), "a step goes on"
    log.happens(33, "paused", 4, who="ada")
    assert useful(log, 1033) == (1023.0, 23.0)
    log.happens(1033, "unpaused", 4, who="ada")
    log.loses(1034, "n1", 4)
    assert useful(log, 1044) == (1034.0, 25.0), "all beyond the five seconds of a calm step"
    log.commits(1044, 4)
    assert useful(log, 1044) == (1034.0, 25.0), "as it is charged"
    for kind, words in (("rollback", {"step": "2", "why": "no copy"}), ("failed", {})):
        log = Log()
        calm(log)
        log.happens(31, kind, 4, **words)
        assert useful(log, 2000)[1] == {"rollback": 15.0, "failed": 25.0}[kind]
