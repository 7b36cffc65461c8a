"""The log lines of a node that was lost, and how they end."""

import re
from datetime import UTC

from culm.protos import coordinator_pb2 as pb
from culm.ui.screens.log_lines import _drawn, end, until
from culm.ui.source import LogLines
from tests.unit.test_ui_history import a_run_with_a_lost_node, folded


def said(html: str) -> list[str]:
    """The lines of the box, without their markup."""
    return [" ".join(re.sub("<[^>]+>", " ", line).split()) for line in re.findall("<li.*?</li>", html)]


def line(at: float, text: str) -> pb.KeptLine:
    return pb.KeptLine(node="n0", line=pb.LogLine(time=at, text=text), heard=at)


def test_they_end_with_the_time_and_the_reason_of_the_loss() -> None:
    (lost,) = folded(a_run_with_a_lost_node()).incidents
    lines = (line(lost.time - 2.0, "before"), line(lost.time + 3.0, "of the next process"))
    ends = [(lost.time, end(lost, "n0", UTC))]
    first, loss, later = said(_drawn(LogLines(lines), lines, "lines", UTC, ends))
    assert first.endswith("before")
    assert loss.endswith(f"n0 lost n0 was lost: {lost.why}")
    assert re.match(r"\d\d:\d\d:\d\d ", loss)
    assert later.endswith("of the next process")


def test_the_reason_is_there_also_where_no_line_is_kept() -> None:
    (lost,) = folded(a_run_with_a_lost_node()).incidents
    html = _drawn(LogLines(), (), "lines", UTC, [(lost.time, end(lost, "n0", UTC))])
    assert [each.endswith(lost.why) for each in said(html)] == [True]
    assert "The coordinator has no such lines" in html


def test_a_process_that_follows_at_once_says_nothing_of_the_lost_one() -> None:
    lines = [line(1.0, "before"), line(2.2, "late"), line(2.3, "of the next process"), line(9.0, "much later")]
    for kept, incarnation in zip(lines, (1, 1, 2, 2), strict=True):
        kept.incarnation = incarnation
    assert [kept.line.text for kept in until(2.0, lines)] == ["before", "late"]
    assert [kept.line.text for kept in until(0.5, lines)] == ["before"], "nobody knows which process it was"
