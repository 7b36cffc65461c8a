"""``culm logs --follow``: which lines are new."""

from collections.abc import Iterator
from itertools import repeat
from pathlib import Path

import pytest

from culm.commands.logs import _print_new
from culm.engines.local import last_lines_of


def printed(capsys: pytest.CaptureFixture[str], *logs: list[str | None]) -> list[list[str]]:
    """What is printed of a log that is looked at again and again."""
    seen, found = 0, []
    for log in logs:

        def lines(log: list[str | None] = log) -> Iterator[str | None]:
            return iter(log)

        seen = _print_new("n0", lines, seen, None, False)
        found.append(capsys.readouterr().out.splitlines())
    return found


def test_each_line_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, ["a"], ["a", "b"], ["a", "b"], ["a", "b", "c"]) == [["a"], ["b"], [], ["c"]]


def test_the_log_of_a_container_that_was_started_again_is_printed_from_its_beginning(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nothing of it was printed until it was longer than the one before."""
    assert printed(capsys, ["a", "b", "c"], ["d"], ["d", "e"]) == [["a", "b", "c"], ["d"], ["e"]]


def test_a_log_that_cannot_be_had_for_a_moment_is_not_printed_twice(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, ["a", "b"], [], ["a", "b", "c"]) == [["a", "b"], [], ["c"]]


def test_of_a_log_whose_last_lines_alone_are_handed_out_the_new_ones_are_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As by an actor of Ray: once it had handed out as many lines as it does at most, none was printed any more."""
    file, logs = tmp_path / "stage.log", []
    for count in (3, 5, 20):
        file.write_text("".join(f"line {number}\n" for number in range(count)))
        before, lines = last_lines_of(file, 4)
        logs.append([*repeat(None, before), *lines])
    assert printed(capsys, *logs) == [
        ["line 0", "line 1", "line 2"],
        ["line 3", "line 4"],
        ["line 16", "line 17", "line 18", "line 19"],
    ]
