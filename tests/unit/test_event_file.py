"""The events that a local cluster leaves in its folder."""

import logging
import stat
from pathlib import Path

import pytest

from culm.local.event_file import NAME, EventFile
from culm.pipeline.money.codec import of_lines
from culm.protos import coordinator_pb2 as pb

EVENTS = [pb.ListEventsResponse(sequence=i + 1, kind="commit", step=i, fields={"loss": "0.5"}) for i in range(3)]


def test_they_are_what_culm_events_prints_and_are_this_users_alone(tmp_path: Path) -> None:
    kept = EventFile(tmp_path)
    for events in (EVENTS[:1], [], EVENTS[1:]):
        kept.add(events)
    path = tmp_path / NAME
    assert list(of_lines(path.read_text().splitlines(), NAME)) == EVENTS
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_disk_that_does_not_take_them_is_told_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / NAME).mkdir()
    kept = EventFile(tmp_path)
    with caplog.at_level(logging.WARNING):
        kept.add(EVENTS[:1])
        kept.add(EVENTS[1:])
    (record,) = caplog.records
    assert "events are kept no longer" in record.message
