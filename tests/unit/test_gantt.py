"""A timetable as text."""

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console, RenderableType

from culm.pipeline.ideal_step import ideal_of
from culm.pipeline.schedule import Schedule
from culm.pipeline.timetable import USES, Timetable
from culm.terminal.gantt import FILL, chart, legend, path_table, row, shares, used
from tests.unit.hand_made import a_step, lanes


def plain(shown: RenderableType, width: int = 120) -> list[str]:
    """As in a file: without colours."""
    out = StringIO()
    Console(file=out, width=width).print(shown)
    assert "\x1b" not in out.getvalue()
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_a_row_shows_what_took_most_of_each_column() -> None:
    pieces = [("forward", "F0", 0.0, 4.0), ("bubble", "waits", 4.0, 6.6), ("backward", "B0", 6.6, 10.0)]
    assert row(pieces, 0.0, 10.0, 10).plain == "F0ff...B0b"
    assert row(pieces, 0.0, 10.0, 5).plain == "F0.B0"
    assert row([], 0.0, 10.0, 3).plain == "   "
    assert row([("forward", "F10", 0.0, 1.0)], 0.0, 5.0, 10).plain == "ff        ", "no room for its name"


def test_every_use_has_a_sign_and_a_colour() -> None:
    assert set(FILL) == {*USES}


def test_a_chart_has_a_row_for_each_node_and_for_its_ideal() -> None:
    step = a_step()
    lines = plain(chart(step, ideal_of(step), 60))
    assert [line.partition("|")[0].strip() for line in lines if "|" in line] == ["n0 s0", "n1 s1", "n0 s0", "n1 s1"]
    assert lines[0].startswith("n0 s0 |F0")
    assert lines[1].endswith("|")
    assert lines[-1].endswith("10500.0 ms") or lines[-2].endswith("10500.0 ms")
    assert max(map(len, lines)) <= 60


@pytest.mark.parametrize("width", [20, 80, 500])
def test_forty_nodes_fit_into_any_width(width: int) -> None:
    many = tuple(replace(lane, node=f"{lane.node}-{i}") for i in range(20) for lane in lanes())
    lines = plain(chart(Timetable(step=1, schedule=Schedule(2), lanes=many), None, width), width)
    assert sum("|" in line for line in lines) == 40
    assert max(map(len, lines)) <= width


def test_the_tables_are_in_milliseconds() -> None:
    step = a_step()
    table = plain(shares(step, ideal_of(step)))
    assert table[1].split()[:4] == ["node", "forward", "backward", "reduce"]
    assert table[2].split()[:4] == ["n0", "s0", "2000.0", "4000.0"]
    path = plain(path_table({"travel": (0.002, 3.0)}, 0.005, 5))
    assert path[0].strip().endswith("medians of 5 steps")
    assert path[2].split()[:3] == ["travel", "2.00", "3"]
    assert "forward" in legend(used(step)).plain
