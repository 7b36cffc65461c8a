"""The picture of the measures: where a figure stands between its floor and its aim."""

import sys

import pytest

from benchmarks import plots
from benchmarks.__main__ import as_json, main
from benchmarks.measure import Measure


@pytest.mark.parametrize(
    ("value", "floor", "aim", "at"),
    [
        (0.6, 0.6, 1.0, 0.0),
        (1.0, 0.6, 1.0, 1.0),
        (0.5, 0.6, 1.0, -0.25),
        (1.5, 3.0, 1.5, 1.0),  # less is better
        (3.6, 3.0, 1.5, -0.4),
        (-0.1, 0.9, 0.4, 2.0),
        (1000.0, 3.0, 1.5, plots.LOWEST),
        (1000.0, 20.0, 100.0, plots.HIGHEST),
    ],
)
def test_floor_is_0_and_aim_is_1_whichever_is_more(value: float, floor: float, aim: float, at: float) -> None:
    assert plots.way(value, floor, aim) == pytest.approx(at)


def test_the_verdict_is_that_of_the_measure() -> None:
    measures = {
        "met": Measure(name="met", unit="ratio", floor=1.06, aim=1.02, rounds=[1.01, 1.0, 1.03]),
        "held": Measure(name="held", unit="ratio", floor=0.6, aim=1.0, higher=True, rounds=[0.5, 0.7, 0.9]),
        "missed": Measure(name="missed", unit="ratio", floor=0.6, aim=1.0, higher=True, rounds=[0.5, 0.55, 0.7]),
    }
    results = as_json(list(measures.values()))
    rows = {row["measure"]: row for row in plots.picture(results)["data"]["values"]}
    assert {name: row["verdict"] for name, row in rows.items()} == {
        "met": "aim reached",
        "held": "floor holds",
        "missed": "floor missed",
    }
    for name, measure in measures.items():
        assert measure.holds == (rows[name]["verdict"] != "floor missed")
        assert rows[name]["from"] <= rows[name]["at"] <= rows[name]["to"]
    assert rows["held"]["numbers"] == "0.70 (floor 0.6, aim 1)"


def test_what_the_picture_needs_is_asked_for_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)  # as if it were not installed
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--only", "coordination"])
    with pytest.raises(SystemExit, match="2"):
        main()
    told = capsys.readouterr()
    assert "pip install -c constraints.txt -e '.[bench]'" in told.err
    assert told.out == ""
