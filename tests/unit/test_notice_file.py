"""What a file that stands for a preemption notice says."""

import os
import threading
from pathlib import Path

import pytest

from culm.stage_server.notices import Notice
from culm.stage_server.notices.file import NoticeFile, time_of_end

NOW = 1_000_000.0


def test_a_file_that_is_just_being_written_is_looked_at_again(tmp_path: Path) -> None:
    path = tmp_path / "preempt"
    file, stop = NoticeFile(path, lambda: NOW), threading.Event()
    assert list(file.poll(stop)) == []
    path.touch()
    assert list(file.poll(stop)) == []
    path.write_text("30\n")
    assert list(file.poll(stop)) == [Notice(f"the file {path} exists", NOW + 30.0, certain=True)]


@pytest.mark.parametrize(
    ("content", "end"),
    [
        ("120", NOW + 120.0),
        (" 1.5\n", NOW + 1.5),
        ("-3", NOW),
        ("2026-01-02T03:04:05Z\n", 1767323045.0),
        ("2026-01-02 04:04:05+01:00", 1767323045.0),
        ("", None),
        ("nan", None),
        ("inf", None),
        ("soon", None),
    ],
)
def test_a_file_may_say_when(content: str, end: float | None) -> None:
    assert time_of_end(content, NOW) == end


def test_seconds_count_from_when_the_file_was_first_seen_so_and_anew_when_it_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "preempt"
    path.write_text("30")
    now = NOW
    file, stop = NoticeFile(path, lambda: now), threading.Event()
    assert [notice.deadline for notice in file.poll(stop)] == [NOW + 30.0]
    now += 20.0
    assert [notice.deadline for notice in file.poll(stop)] == [NOW + 30.0]
    path.write_text("60")
    assert [notice.deadline for notice in file.poll(stop)] == [NOW + 80.0]
    now += 20.0
    os.utime(path, ns=(1, 1))  # written again with the same seconds
    assert [notice.deadline for notice in file.poll(stop)] == [NOW + 100.0]


def test_a_file_that_is_written_again_is_never_taken_for_an_empty_one(tmp_path: Path) -> None:
    path = tmp_path / "preempt"
    file, stop = NoticeFile(path, lambda: NOW), threading.Event()
    for seconds in (30, 60, 90):
        path.write_text("")
        assert list(file.poll(stop)) == []
        path.write_text(str(seconds))
        assert [notice.deadline for notice in file.poll(stop)] == [NOW + seconds]
    path.write_text("")
    assert list(file.poll(stop)) == []
    assert [notice.deadline for notice in file.poll(stop)] == [None]
