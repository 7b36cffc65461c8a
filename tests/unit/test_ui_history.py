"""What the pages are made from: the log folded, replayed, and drawn."""

import json
from pathlib import Path

import pytest

from culm.pipeline.errors import JobError
from culm.pipeline.money.codec import of_message, to_line
from culm.protos import coordinator_pb2 as pb
from culm.ui.history import History
from culm.ui.recorded import Recorded, Replay
from culm.ui.words import (
    after,
    clock,
    milliseconds,
    moment,
    money,
    seconds_left,
    size,
    span,
    zone_in_words,
    zone_of,
)

START = 1_000_000.0
WHOLE = [[0, 2, ["n0"], [["n1", True]]], [2, 4, ["n1"], [["n0", True]]]]
ALONE = [[0, 2, ["n1"], []], [2, 4, ["n1"], [["n2", False]]]]


def event(number: int, at: float, kind: str, step: int = 0, /, **facts: object) -> pb.ListEventsResponse:
    fields = {name: str(value) for name, value in facts.items()}
    return pb.ListEventsResponse(
        sequence=number, time=START + at, kind=kind, text=f"{kind}, because", step=step, fields=fields
    )


def plan(number: int, at: float, step: int, stages: object) -> pb.ListEventsResponse:
    facts = {"steps": 10, "stage_count": 2, "samples_per_step": 8, "tokens_per_step": 0}
    return event(number, at, "plan", step, stages=json.dumps(stages), **facts)


def a_run_with_a_lost_node() -> list[pb.ListEventsResponse]:
    events = [
        event(i, 0.1 * i, "joined", node=f"n{i}", incarnation=1, zone="ab"[i % 2], address=f"h{i}:1") for i in range(3)
    ]
    events.append(plan(4, 1, 0, WHOLE))
    events += [event(5 + s, 2 + s, "commit", s + 1, step=s, loss=2.0 - s / 10) for s in range(4)]
    events.append(event(9, 6.5, "lost", 4, node="n0", stages="0", detect_ms="40.0", evidence="its stream broke"))
    events.append(plan(10, 6.51, 4, ALONE))
    events.append(event(11, 6.55, "resumed", 4, node="n0", stage=0, resume_ms="50.0"))
    events.append(event(12, 8, "commit", 5, step=4, loss=1.6))
    events.append(event(13, 8, "recovered", 5, node="n0", stage=0, redone=3))
    events.append(plan(14, 9.5, 5, [[0, 2, ["n1"], [["n2", True]]], [2, 4, ["n1"], [["n2", True]]]]))
    return events


def folded(events: list[pb.ListEventsResponse]) -> History:
    history = History()
    for each in events:
        history.take(of_message(each))
    return history


def test_a_commit_that_the_next_coordinator_tells_again_is_in_the_curve_once() -> None:
    run = a_run_with_a_lost_node()
    again = event(15, 12, "commit", 5, step=4, loss=1.6)
    assert list(folded([*run, again]).steps) == list(folded(run).steps) == list(range(5))


def test_a_rollback_takes_the_curve_back() -> None:
    history = folded([*a_run_with_a_lost_node(), event(15, 10, "rollback", 2, step=2)])
    assert list(history.steps) == [0, 1]
    assert len(history.losses) == len(history.times) == len(history.rates) == len(history.norms) == 2


@pytest.mark.parametrize(
    "goes_on", [plan(16, 12, 5, WHOLE), event(16, 12, "rollback", 2, step=2)], ids=lambda e: e.kind
)
def test_a_failure_is_past_once_the_run_goes_on(goes_on: pb.ListEventsResponse) -> None:
    failed = [*a_run_with_a_lost_node(), event(15, 11, "failed", 5, node="n1", why="ValueError")]
    assert folded(failed).failed is not None
    assert folded([*failed, goes_on]).failed is None


def test_a_job_that_is_begun_anew_in_the_same_log_shows_nothing_of_the_run_before() -> None:
    first = [*a_run_with_a_lost_node(), event(15, 10, "evaluated", 5, step=5, loss=1.0), event(16, 11, "done", 5)]
    history = folded([*first, plan(17, 100, 0, WHOLE), event(18, 101, "commit", 1, step=0, loss=9.0)])
    assert (list(history.steps), list(history.losses)) == ([0], [9.0])
    assert (history.incidents, history.evaluations, history.done) == ([], {}, None)
    assert history.begun == START + 100


def test_a_replayed_log_tells_the_status_that_there_was() -> None:
    replay = Replay()
    events = a_run_with_a_lost_node()
    for each in events[:8]:
        replay.take(of_message(each))
    status = replay.look(START + 5.5).status
    assert (status.phase, status.step, status.steps) == ("running", 4, 10)
    assert status.samples_per_second == 8.0
    assert {n.id: (list(n.stages), list(n.standby_of), n.state) for n in status.nodes} == {
        "n0": ([0], [1], "active"),
        "n1": ([1], [0], "active"),
        "n2": ([], [], "spare"),
    }
    for each in events[8:10]:
        replay.take(of_message(each))
    status = replay.look(START + 7.01).status
    assert [n.id for n in status.nodes] == ["n1", "n2"]
    assert status.exposure[0] == pytest.approx(0.5)


def test_a_recorded_log_is_played_at_its_speed_and_again(tmp_path: Path) -> None:
    log = tmp_path / "run.jsonl"
    log.write_text("".join(to_line(each) + "\n" for each in a_run_with_a_lost_node()))
    now = [0.0]
    recorded = Recorded(log, speed=2.0, clock=lambda: now[0])
    assert recorded.look().status.step == 1, "it begins with the first commit: nobody looks at an empty page"
    now[0] = 1.0
    assert recorded.look().status.step == 3
    now[0] = 4.0
    assert recorded.look().status.step == 5
    now[0] = 100.0
    assert recorded.look().status.step == 1, "it begins again"
    assert recorded.kill("n0") == "this is a recorded run: it has no nodes to preempt"


def test_a_run_that_has_ended_is_shown_whole_at_once(tmp_path: Path) -> None:
    log = tmp_path / "run.jsonl"
    log.write_text("".join(to_line(each) + "\n" for each in a_run_with_a_lost_node()))
    recorded = Recorded(log, speed=0.0)
    assert recorded.still
    assert (recorded.look().status.step, recorded.look().status.job, recorded.look().ended) == (5, "run", True)


def test_a_recorded_run_shows_its_pause() -> None:
    replay = Replay()
    found = []
    told = [
        event(1, 0, "paused", 3, who="ada"),
        plan(2, 1, 3, [[0, 1, ["n0"], []]]),
        event(3, 2, "unpaused", 3, who="ada"),
    ]
    for each in told:
        replay.take(of_message(each))
        status = replay.look(START + 3).status
        found.append((status.phase, status.pause.who))
    assert found == [("paused", "ada"), ("paused", "ada"), ("running", "")], "nodes are repaired in a pause, by plans"


def test_a_log_that_is_none_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "run.jsonl.gz").write_text("not packed")
    with pytest.raises(JobError, match=r"run\.jsonl\.gz"):
        Recorded(tmp_path / "run.jsonl.gz")


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (money(0), "$0.00"),
        (money(1234.5), "$1,234.50"),
        (money(0.0123), "$0.0123"),
        (money(-0.0123), "-$0.0123"),
        (span(59), "59 s"),
        (span(61), "1 min 1 s"),
        (span(7260), "2 h 1 min"),
        (span(3 * 86400 + 3600), "3 d 1 h"),
        (milliseconds(None), "–"),
        (milliseconds(12.4), "12 ms"),
        (milliseconds(12_400), "12.4 s"),
        (after(12.4), "12 ms"),
        (after(1240), "1.2 s"),
        (after(124_000), "2 min 4 s"),
        (size(999), "999 B"),
        (size(2_500_000), "2.5 MB"),
    ],
)
def test_numbers_in_words(said: str, words: str) -> None:
    assert said == words


def test_the_time_left() -> None:
    assert seconds_left(50, 100, 10.0, 20) == 100.0
    assert seconds_left(0, 100, 0.0, 20) is None


def test_times_are_told_where_they_are_looked_at() -> None:
    berlin = zone_of("Europe/Berlin", -60)
    assert clock(START, berlin) == "14:46:40"
    assert moment(START) == "1970-01-12 13:46:40"
    assert zone_in_words(berlin, START) == "Europe/Berlin, UTC+01:00"
    assert zone_in_words(zone_of(None, None), START) == "UTC"
    assert zone_in_words(zone_of("No/Where", 210), START) == "UTC-03:30", "a zone that this machine does not know"
