"""What the rest of a run takes and costs, by hand: docs/cost.md has the calm one."""

import json

import pytest

from culm.pipeline.money.calm_groups import LEAST_GROUPS, MOST_GROUPS, CalmGroups, Groups, shape_of
from culm.pipeline.money.codec import of_message
from culm.pipeline.money.forecast import DRIFT, rest
from culm.pipeline.money.ledger import Ledger
from culm.pipeline.plan import StagePlan
from culm.protos import coordinator_pb2 as pb
from tests.unit.test_ledger import START, Log

# Student's t for 80 % and 4 degrees of freedom is 1.533; the first order that is used gives 1.493.
LIKELY = 1.2816 + (1.2816**3 + 1.2816) / (4 * 4)
TWO = '[[0, 2, ["n0"], []], [2, 4, ["n1"], []]]'
BOTH_ON_N0 = '[[0, 2, ["n0"], []], [2, 4, ["n0"], []]]'


def plan(log: Log, at: float, step: int = 0, steps: int = 16, stages: str = "[]") -> None:
    log.happens(at, "plan", step, steps=steps, stage_count=2, samples_per_step=8, stages=stages)


def calm_run(steps: int = 16, priced: bool = True) -> Log:
    """Two nodes at 0.36 $/h. The first step takes 10 s, then come 4, 5, 6, 5 and 5 s: the last commit is at 45 s."""
    log = Log()
    for node in ("n0", "n1"):
        if priced:
            log.joins(0, node)
        else:
            log.happens(0, "joined", node=node, incarnation=1)
    plan(log, 10, steps=steps)
    for step, at in enumerate((20, 24, 29, 35, 40, 45)):
        log.commits(at, step)
    return log


def of(log: Log, at: float) -> pb.Forecast:
    return log.figures(at).forecast


def test_a_calm_run_ends_after_as_many_usual_steps() -> None:
    found = of(calm_run(), 45)
    assert found.steps_left == 10
    assert found.step_seconds == 5.0, "the first step tells nothing"
    # 5 steps of mean 5 s were seen, whose sum varies by 5 * 0.5; 10 are to come.
    spread = LIKELY * (2.5 * (2 + 2**2) + (DRIFT * 50) ** 2) ** 0.5
    assert found.seconds.expected == pytest.approx(50.0)
    assert found.seconds.low == pytest.approx(50.0 - spread, rel=1e-4)
    assert found.seconds.high == pytest.approx(50.0 + spread, rel=1e-4)
    assert found.ends_at.expected == pytest.approx(START + 95)
    assert found.dollars.expected == pytest.approx(50 * 0.0002)
    assert found.dollars.high == pytest.approx(found.seconds.high * 0.0002)
    assert found.interrupted == 0.0
    assert found.why == "from 5 calm steps; no interruption so far, so none is expected"


def test_the_step_under_way_counts_as_far_as_it_is() -> None:
    log = calm_run()
    assert of(log, 48).seconds.expected == pytest.approx(47.0)
    assert of(log, 48).ends_at.expected == pytest.approx(START + 95)
    assert of(log, 60).seconds.expected == pytest.approx(45.0), "it is late, and taken to end now"
    assert of(log, 60).ends_at.expected == pytest.approx(START + 105)


def test_lost_nodes_lengthen_the_rest_and_widen_its_spread() -> None:
    log = calm_run()
    log.loses(46, "n1", 6)
    log.joins(47, "n1", incarnation=2)
    log.commits(60, 6)  # 15 s, 10 of them lost
    log.loses(61, "n1", 7)
    log.joins(61, "n1", incarnation=3)
    log.commits(72, 7)  # 12 s, 7 of them lost
    found = of(log, 72)
    # 17 of 62 s were lost, and so are as many of those to come. 8 steps are left.
    whole = 8 * 5.0 / (1 - 17 / 62)
    assert found.interrupted == pytest.approx(17 / 62)
    assert found.seconds.expected == pytest.approx(whole)
    of_steps = 2.5 * (8 / 5 + (8 / 5) ** 2) + (DRIFT * 40) ** 2
    of_lost = (10**2 + 7**2) * (whole / 62 + (whole / 62) ** 2)
    assert found.seconds.high - whole == pytest.approx(LIKELY * (of_steps + of_lost) ** 0.5, rel=1e-4)
    assert found.seconds.low == pytest.approx(40 - LIKELY * of_steps**0.5, rel=1e-4), "interruptions give nothing back"
    assert "2 interruptions" in found.why


def test_nodes_that_are_lost_together_are_one_interruption() -> None:
    log = calm_run()
    for node in ("n0", "n1"):
        log.loses(46, node, 6)
    log.commits(60, 6)
    known = Groups(seconds=[4.0, 5.0, 6.0, 5.0, 5.0])
    (one, other) = log.figures(60).interruptions
    assert (one.seconds, other.seconds) == (5.0, 5.0)
    whole = 9 * 5.0 / (1 - 10 / 50)
    squares = 10**2 * (whole / 50 + (whole / 50) ** 2)
    of_steps = known.variance[0] * (9 / 5 + (9 / 5) ** 2) + (DRIFT * 45) ** 2
    assert of(log, 60).seconds.high - whole == pytest.approx(LIKELY * (of_steps + squares) ** 0.5, rel=1e-4)


def test_too_little_history_says_so() -> None:
    log = Log()
    log.joins(0, "n0")
    assert of(log, 5).why == "training has not begun"
    plan(log, 10)
    for step in range(4):
        log.commits(20 + 5 * step, step)
    found = of(log, 35)
    assert found.why == "3 calm steps are known beside the first one, and a forecast takes 5"
    assert found.steps_left == 12
    assert not any(found.HasField(name) for name in ("seconds", "dollars", "ends_at"))


def test_a_log_of_before_that_names_no_steps_says_so() -> None:
    assert of(calm_run(steps=0), 45).why == "the event log does not say how many steps the job has"


def test_a_paused_run_has_a_rest_and_no_end() -> None:
    log = calm_run()
    log.happens(45, "paused", 6, who="ada")
    found = of(log, 500)
    assert found.seconds.expected == pytest.approx(50.0)
    assert found.dollars.expected == pytest.approx(0.01)
    assert not found.HasField("ends_at")
    assert found.why.endswith("the run is paused, and this counts from when it goes on")
    log.happens(545, "unpaused", 6, who="ada")
    found = of(log, 545)
    assert found.seconds.expected == pytest.approx(50.0), "a pause is no interruption that comes again"
    assert found.ends_at.expected == pytest.approx(START + 595)


def test_a_paused_run_whose_nodes_go_costs_no_less_for_that() -> None:
    """Nodes are let go one by one, and the rest seemed to cost what those cost that were left."""
    log = calm_run()
    log.happens(40, "paused", 6)
    assert log.figures(41).forecast.HasField("dollars")
    log.happens(42, "left", 6, node="n1")
    found = log.figures(43).forecast
    assert found.HasField("seconds")
    assert not found.HasField("dollars")
    assert "1 node that ran a stage is gone, and nobody knows what the next cost; the run is paused" in found.why


def test_without_a_price_there_are_no_dollars() -> None:
    found = of(calm_run(priced=False), 45)
    assert found.seconds.expected == pytest.approx(50.0)
    assert not found.HasField("dollars")
    assert found.why.endswith("no price is known")
    log = calm_run()
    log.happens(45, "joined", node="n2", incarnation=1)
    found = of(log, 45)
    assert found.dollars.expected == pytest.approx(0.01)
    assert found.why.endswith("n2 counts as free")


def test_transfer_goes_on_by_the_step() -> None:
    log = calm_run()
    log.joins(45, "n2", per_hour=0.0, zone="b")
    used = dict.fromkeys(("forward", "backward", "redundant", "apply", "bubble", "idle"), 0.0)
    log.happens(45, "usage", node="n0", incarnation=1, **used, **{"sent.n2": 6 * 10**9})  # at 0.02 $ a GB
    assert of(log, 45).dollars.expected == pytest.approx(0.01 + 10 * 0.12 / 6)


def test_what_is_over_or_waits_is_told() -> None:
    log = calm_run()
    log.happens(46, "rollback", 2, step=2)
    found = of(log, 50)
    assert found.steps_left == 14
    assert found.seconds.expected == pytest.approx(70.0)
    assert not found.HasField("ends_at")
    assert found.why.endswith("the run waits for nodes since a rollback")
    log.happens(51, "failed", 2, why="a layer raised")
    assert of(log, 52).why == "the run has failed"
    done = calm_run(steps=6)
    assert of(done, 45).why == "every step is committed: the run is about to end"
    done.happens(45, "done", 6)
    assert of(done, 99).why == "the run is done"


def test_a_new_shape_is_taken_to_last_as_long_again() -> None:
    log = Log()
    for node in ("n0", "n1"):
        log.joins(0, node)
    plan(log, 10, steps=100, stages=TWO)
    for step in range(6):
        log.commits(15 + 5 * step, step)
    plan(log, 40, 6, steps=100, stages=BOTH_ON_N0)
    for step in range(6, 11):  # twice as long; the first one tells nothing
        log.commits(40 + 10 * (step - 5), step)
    found = of(log, 90)
    of_all = (5 * 5.0 + 4 * 10.0) / 9
    assert found.seconds.expected == pytest.approx(89 * of_all), "four steps are too few"
    log.commits(100, 11)
    found = of(log, 100)
    of_all = (5 * 5.0 + 5 * 10.0) / 10
    assert found.seconds.expected == pytest.approx(5 * 10.0 + 83 * of_all)
    assert found.step_seconds == 10.0
    assert found.why.startswith("from 10 calm steps, 5 of them of the present shape; ")
    # Those of the present shape do not vary. All are 10, 10, 15, 20 and 20 s in pairs, which vary by 25; and 5 pairs.
    drift = (DRIFT * found.seconds.expected) ** 2
    spread = LIKELY * (5 * 25.0 * (83 / 10 + (83 / 10) ** 2) + drift) ** 0.5
    assert found.seconds.high - found.seconds.expected == pytest.approx(spread, rel=1e-4)
    plan(log, 100, 12, steps=100, stages=TWO.replace("n1", "n2"))
    assert of(log, 100).seconds.expected == pytest.approx(88 * of_all), "another shape, of which nothing is known"


def test_a_successor_goes_on_with_the_same_forecast() -> None:
    log, ledger = calm_run(), Ledger()
    for event in log.events[:-2]:
        ledger.take(of_message(event))
    ledger = Ledger.from_document(json.loads(json.dumps(ledger.to_document())))
    for event in log.events[-2:]:
        ledger.take(of_message(event))
    assert ledger.figures(START + 45).forecast == of(log, 45)
    assert ledger.figures(START + 45).forecast.HasField("seconds")


def test_steps_become_groups_and_groups_become_larger_ones() -> None:
    groups = Groups()
    for step in range(MOST_GROUPS):
        groups.take(1.0 + step % 2)
    assert (groups.size, groups.seconds) == (2, [3.0] * (MOST_GROUPS // 2))
    groups.take(4.0)
    assert (groups.steps, groups.open_seconds) == (MOST_GROUPS + 1, 4.0)
    assert groups.variance[0] == 0.0, "what swings within a group is none of a sum of groups"
    newest = groups.newest(4)
    assert newest.steps == LEAST_GROUPS * 2 + 1


def test_what_swings_slowly_is_told_by_groups_and_hidden_from_single_steps() -> None:
    """A machine that is slow for a hundred steps in a row: single steps would not show it."""
    calm = CalmGroups(is_first=False)
    for step in range(1000):
        calm.take(1.0 if step // 100 % 2 else 1.5)
    seconds = rest(1000, calm)
    assert seconds.expected == pytest.approx(1250.0)
    single = LIKELY * (1000 * 0.0625 * 2 + (DRIFT * 1250) ** 2) ** 0.5
    assert seconds.high - seconds.expected > 1.8 * single


def test_a_shape_is_the_same_whichever_nodes_have_it() -> None:
    two = (StagePlan(0, 1, ("a",)), StagePlan(1, 2, ("b",)))
    assert shape_of(two) == shape_of((StagePlan(0, 1, ("b",)), StagePlan(1, 2, ("c",))))
    assert shape_of(two) != shape_of((StagePlan(0, 1, ("a",)), StagePlan(1, 2, ("a",))))
