"""What is to come of a run, as commands and pages write it."""

from dataclasses import replace

import pytest

from culm.commands.cost import forecast_lines
from culm.protos import coordinator_pb2 as pb
from culm.ui.look import Look
from culm.ui.outlook_words import (
    change_in_words,
    dollars_in_words,
    end_in_words,
    seconds_in_words,
    whose,
)
from culm.ui.screens.cost import change
from culm.ui.standing import seconds_to_end
from tests.unit.test_forecast import calm_run
from tests.unit.test_ledger import START

NOON = 1_700_049_600.0  # of a day, by UTC


def estimate(expected: float, low: float, high: float) -> pb.Estimate:
    return pb.Estimate(expected=expected, low=low, high=high)


def test_a_forecast_in_words() -> None:
    forecast = pb.Forecast(
        seconds=estimate(4740.0, 4200.0, 5460.0),
        dollars=estimate(3.1, 2.9, 3.42),
        ends_at=estimate(NOON + 4740.0, NOON + 4200.0, NOON + 5460.0),
    )
    assert seconds_in_words(forecast) == "1 h 19 min (1 h 10 min to 1 h 31 min)"
    assert dollars_in_words(forecast) == "$3.10 ($2.90 to $3.42)"
    assert end_in_words(forecast, NOON) == "13:19:00 (13:10:00 to 13:31:00)"
    assert end_in_words(forecast, NOON - 86_400.0).startswith("2023-11-15 13:19:00 (2023-11-15 13:10:00 to ")
    assert seconds_in_words(pb.Forecast()) == dollars_in_words(pb.Forecast()) == end_in_words(pb.Forecast(), 0.0) == ""


def test_an_end_beyond_all_dates_is_not_told() -> None:
    forecast, far = pb.Forecast(seconds=estimate(3e11, 2.9e11, 3.1e11), why="by hand"), NOON + 3e11
    forecast.ends_at.CopyFrom(estimate(far, far, far))
    lines = forecast_lines(pb.GetCostResponse(as_of=NOON, forecast=forecast))
    assert lines == ["to the end      3472222 d 5 h (3356481 d 11 h to 3587962 d 23 h): by hand"]


SOONER = pb.NodeChange(node="n0", step_ratio=0.8, dollars_per_hour=0.5, seconds=-600.0, dollars=0.4, why="by hand")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, "ends 10 min 0 s sooner, for $0.400 more"),
        ({"seconds": 600.0, "dollars": -0.4, "step_ratio": 1.2}, "ends 10 min 0 s later, for $0.400 less"),
        ({"step_ratio": 1.0, "seconds": 0.0}, "ends at the same time, for $0.400 more"),
    ],
)
def test_a_change_in_words(changed: dict[str, float], words: str) -> None:
    each = pb.NodeChange()
    each.CopyFrom(SOONER)
    for name, value in changed.items():
        setattr(each, name, value)
    assert change_in_words(each) == words


def test_what_is_not_known_of_a_change_is_told_by_its_step() -> None:
    each = pb.NodeChange(node="n0", step_ratio=1.25, why="by hand")
    assert change_in_words(each) == "a step takes 25 % more, at a price that is not known"
    assert (whose(each, True), whose(each, False)) == ("one more like n0", "without n0")


def test_the_lines_of_culm_cost() -> None:
    cost = calm_run().figures(45)
    cost.one_more.CopyFrom(SOONER)
    lines = forecast_lines(cost)
    assert lines[0].startswith("to the end      50 s (44 s to 56 s), $0.0100 ($0.00876 to $0.0112): from 5 calm steps")
    assert lines[1].startswith("ends            ")
    assert lines[2:] == ["one more node   one more like n0: ends 10 min 0 s sooner, for $0.400 more; by hand"]


def test_what_is_over_has_no_such_line_and_what_is_not_known_says_why() -> None:
    assert forecast_lines(pb.GetCostResponse()) == [], "an older coordinator tells none"
    log = calm_run(steps=6)
    log.happens(45, "done", 6)
    assert forecast_lines(log.figures(50)) == []
    assert forecast_lines(calm_run(steps=0).figures(45)) == [
        "to the end      not known: the event log does not say how many steps the job has"
    ]


def test_pages_tell_the_same_time_left_as_the_forecast() -> None:
    status = pb.GetStatusResponse(step=6, steps=16, samples_per_second=4.0, samples_per_step=8)
    look = Look(status=status, cost=calm_run().figures(45), at=START + 45)
    assert seconds_to_end(look) == pytest.approx(50.0)
    assert seconds_to_end(replace(look, cost=pb.GetCostResponse())) == 20.0, "by the speed, as long as none is known"


def test_the_row_of_the_cost_page() -> None:
    assert change(SOONER, True, "step time") == {
        "machines": "one more like n0",
        "step time": "-20%",
        "to the end": "ends 10 min 0 s sooner",
        "cost": "for $0.400 more",
        "what the coordinator would do": "by hand",
    }
