"""Curves by step, by tokens and by time, and the charts that take them."""

import math

import pytest

from culm.protos import coordinator_pb2 as pb
from culm.ui.charts import curve_alt, curve_data, curve_spec, split_columns, split_rows, trend_data, trend_spec
from culm.ui.curves import BINS, View, axis_title, binned, curves, marks, since_of
from culm.ui.trends import Point
from tests.unit.test_ui_history import START, a_run_with_a_lost_node, event, folded


def test_the_figure_beside_a_curve_is_the_newest_value_itself() -> None:
    curve = binned("loss", [0.0, 1.0, 2.0, 3.0], [4.0, 3.0, 2.0, 1.0], bins=2)
    assert (curve.mean[-1], curve.last) == (1.5, 1.0)


def test_a_long_curve_is_thinned_and_keeps_its_end_and_its_spikes() -> None:
    losses = [1 / (s + 1) for s in range(10_000)]
    losses[5_000] = 7.0
    history = folded([event(s, s, "commit", s + 1, step=s, loss=x) for s, x in enumerate(losses)])
    loss = curves(View(history))[0]
    assert (loss.name, loss.x[-1]) == ("loss", 9_999)
    assert BINS - 3 <= len(loss.x) <= BINS
    assert max(loss.high) == 7.0
    assert all(low <= mean <= high for low, mean, high in zip(loss.low, loss.mean, loss.high, strict=True))


def test_the_axis_is_chosen() -> None:
    history = folded(a_run_with_a_lost_node())
    assert curves(View(history, "step"))[0].x == [0, 1, 2, 3, 4]
    assert curves(View(history, "tokens"))[0].x == [0, 8, 16, 24, 32], "samples, where nobody knows tokens"
    assert axis_title(history, "tokens") == "samples"
    assert curves(View(history, "time"))[0].x[0] == (START + 2) * 1e3
    assert curves(View(history, "time", zero=START + 2))[0].x == [0, 1, 2, 3, 6]


def test_a_range_takes_the_newest_part() -> None:
    history = folded(a_run_with_a_lost_node())
    since = since_of(history, "last 5 min", START + 9.5)
    assert since == pytest.approx(START + 9.5 - 300)
    assert since_of(history, "all", START) == 0.0
    assert curves(View(history, since=START + 4.5))[0].x == [3, 4]


def test_incidents_stand_where_they_happened_on_every_axis() -> None:
    history = folded(a_run_with_a_lost_node())
    assert [x for x, _ in marks(View(history, "step"))] == [4]
    assert [x for x, _ in marks(View(history, "tokens"))] == [32]
    assert [x for x, _ in marks(View(history, "time"))] == [pytest.approx((START + 6.5) * 1e3)]
    assert marks(View(history, since=START + 7)) == []


def test_what_was_evaluated_is_in_the_chart_once_and_as_a_number() -> None:
    told = [(3, 0.5, 0.75), (6, float("nan"), 0.5), (3, 0.5, 0.75)]
    events = [event(i, i, "evaluated", s, step=s, loss=x, **{"metric.accuracy": y}) for i, (s, x, y) in enumerate(told)]
    history = folded([*events, event(9, 9, "commit", 7, step=6, loss=1.0)])
    found = {curve.name: curve for curve in curves(View(history))}
    assert found["loss"].points == [(3, 0.5)]
    assert found["accuracy"].points == [(3, 0.75), (6, 0.5)]


def test_what_is_measured_in_training_has_curves_too() -> None:
    events = [*a_run_with_a_lost_node(), event(20, 8.1, "measured", 5, step=4, **{"metric.accuracy": 0.9})]
    events.append(event(21, 9, "commit", 6, step=5, loss=1.5, learning_rate=0.1, norm=2.0))
    found = {curve.name: curve for curve in curves(View(folded(events)))}
    assert list(found) == ["loss", "samples a second", "accuracy", "learning rate", "gradient norm"]
    assert (found["accuracy"].x, found["accuracy"].mean) == ([4], [0.9])
    assert found["samples a second"].mean[0] == pytest.approx(8.0)


def test_a_loss_that_is_no_number_is_left_out() -> None:
    events = [event(s, s, "commit", s + 1, step=s, loss=x) for s, x in enumerate([1.0, math.nan, 3.0])]
    assert curves(View(folded(events)))[0].mean == [1.0, 3.0]


def test_a_chart_keeps_its_specification_while_its_data_grows() -> None:
    history = folded(a_run_with_a_lost_node())
    later = folded([*a_run_with_a_lost_node(), event(15, 12, "commit", 6, step=5, loss=1.5)])
    one, other = (curves(View(h))[0] for h in (history, later))
    assert curve_spec(one, "step", "step", "light", 200) == curve_spec(other, "step", "step", "light", 200)
    data = curve_data(one, marks(View(history)))
    assert len(data["curve"]["x"]) == 5
    assert data["incidents"]["what"] == ["n0 was lost"]
    assert curve_alt(one, "step", 1).startswith("loss over step: 5 points from 2 to 1.6")


def test_a_chart_of_nodes_names_them() -> None:
    points = [Point("n0", START, 0.5, 0.5, 0.5)]
    spec = trend_spec("", "%", "dark", "UTC", ["n0"])
    assert spec["layer"][2]["encoding"]["color"]["scale"]["domain"] == ["n0"]
    assert trend_data(points, [])["lines"]["x"] == [START * 1e3]


def test_of_many_nodes_those_with_the_most_bubbles_have_a_bar() -> None:
    nodes = [pb.NodeStatus(id=f"n{i}", times=pb.TimeSplit(forward=100.0, bubble=float(i))) for i in range(200)]
    rows = split_rows(nodes)
    assert (len(rows), rows[0].id) == (24, "n199")
    told = split_columns([pb.NodeStatus(id="n0", times=pb.TimeSplit(forward=1.0, bubble=3.0))])
    assert told["share"] == [0.25, 0.75]
    assert split_rows([pb.NodeStatus(id="n0")]) == [], "it has told nothing yet"
