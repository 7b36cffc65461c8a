"""What heartbeats tell of a node's process: its newest log lines, and what it takes of its machine."""

import logging
from collections.abc import Iterator

import pytest

from culm.protos import coordinator_pb2 as pb
from culm.stage_server.watching.log_tail import AT_ONCE, KEPT, LONGEST, LONGEST_TRACE, LogTail
from culm.stage_server.watching.process_watch import ProcessWatch
from culm.stage_server.watching.resource_meter import ResourceMeter

log = logging.getLogger("culm.tests.tail")


@pytest.fixture
def tail() -> Iterator[LogTail]:
    found = LogTail()
    log.addHandler(found)
    log.setLevel(logging.DEBUG)
    yield found
    log.removeHandler(found)


def texts(lines: list[pb.LogLine]) -> list[str]:
    return [line.text for line in lines]


def test_lines_from_info_on_are_told_once(tail: LogTail) -> None:
    log.debug("nobody needs this")
    log.info("step %d", 7)
    log.warning("slow")
    (first, second) = tail.news()
    assert (first.number, first.level, first.logger, first.text) == (1, pb.LOG_LEVEL_INFO, "culm.tests.tail", "step 7")
    assert (second.number, second.level, second.text) == (2, pb.LOG_LEVEL_WARNING, "slow")
    assert tail.news() == []


def test_of_too_many_lines_the_oldest_are_dropped_and_their_numbers_tell_how_many(tail: LogTail) -> None:
    for i in range(1, KEPT + 31):
        log.info("line %d", i)
    first = tail.news()
    assert len(first) == AT_ONCE
    assert (first[0].number, first[0].text) == (31, "line 31"), "thirty were dropped"
    rest = [line.number for _ in range(KEPT // AT_ONCE) for line in tail.news()]
    assert rest == list(range(31 + AT_ONCE, KEPT + 31))


def test_a_new_stream_is_told_the_newest_lines_again_by_the_same_numbers(tail: LogTail) -> None:
    for i in range(1, 51):
        log.info("line %d", i)
    while tail.news():
        pass
    tail.tell_again()
    assert [line.number for line in tail.news()] == list(range(31, 51))
    assert tail.news() == []


def test_a_line_is_one_line_without_secrets_of_a_bounded_length(tail: LogTail) -> None:
    log.info("one\ntwo \x1b[31mred\x1b[0m")
    log.info("writing to s3://ada:hunter2@bucket/x")
    log.error("x" * 10_000)
    first, second, third = texts(tail.news())
    assert first == "one two red"
    assert "hunter2" not in second
    assert len(third) <= LONGEST


def test_the_end_of_an_exception_is_told_line_by_line(tail: LogTail) -> None:
    def deep(n: int) -> None:
        if n:
            deep(n - 1)
        raise ValueError("no such thing")

    try:
        deep(3)
    except ValueError:
        log.exception("2B3 raised")
    found = texts(tail.news())
    assert found[0] == "2B3 raised"
    assert 1 < len(found) <= 1 + LONGEST_TRACE
    assert found[-1] == "ValueError: no such thing"


def test_arguments_that_do_not_fit_harm_nobody(tail: LogTail) -> None:
    tail.emit(logging.LogRecord("x", logging.INFO, "", 0, "%d", ("one",), None))
    assert tail.news() == []


def test_what_the_process_takes_is_measured() -> None:
    now = [100.0]
    meter = ResourceMeter(lambda: now[0])
    sum(i * i for i in range(100_000))
    now[0] = 110.0
    seen = meter.look()
    assert seen.seconds == 10.0
    assert seen.cpu_seconds > 0.0
    assert 0 < seen.resident_bytes < seen.memory_bytes
    assert seen.processors > 0
    assert (seen.accelerator_busy, seen.accelerator_bytes) == (None, 0)


def test_a_look_is_told_once_on_a_stream() -> None:
    watch = ProcessWatch()
    assert not watch.added_to(pb.Heartbeat()).HasField("resources"), "nobody has looked yet"
    watch.meter.newest = watch.meter.look()
    assert watch.added_to(pb.Heartbeat()).HasField("resources")
    assert not watch.added_to(pb.Heartbeat()).HasField("resources")
    watch.attached()
    assert watch.added_to(pb.Heartbeat()).HasField("resources")


def test_before_the_stream_ends_all_lines_are_told() -> None:
    watch = ProcessWatch()
    root = logging.getLogger()
    before = root.level
    root.setLevel(logging.INFO)
    watch.begin()
    try:
        for i in range(45):
            log.info("line %d", i)
        beats = list(watch.rest(lambda: watch.added_to(pb.Heartbeat(version=3))))
    finally:
        watch.close()
        root.setLevel(before)
    assert [len(beat.log_lines) for beat in beats] == [20, 20, 5]
    assert {beat.version for beat in beats} == {3}, "each is a whole heartbeat"
