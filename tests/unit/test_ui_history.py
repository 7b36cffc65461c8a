"""What the pages are made from: the log folded, replayed, and drawn."""

import json
from pathlib import Path

import pytest

from culm.pipeline.money.codec import of_message, to_line
from culm.protos import coordinator_pb2 as pb
from culm.ui.charts import loss_curve, time_split, timeline
from culm.ui.history import History
from culm.ui.recorded import Recorded, Replay
from culm.ui.ring import in_words, ring_svg
from culm.ui.words import milliseconds, money, seconds_left, size, span

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


def test_a_lost_node_is_told_with_all_its_times() -> None:
    (lost,) = folded(a_run_with_a_lost_node()).preemptions
    assert (lost.node, lost.kind, lost.step, lost.why, lost.redone) == ("n0", "lost", 4, "its stream broke", 3)
    assert (lost.detect_ms, lost.resume_ms) == (40.0, 50.0)
    assert lost.promote_ms == pytest.approx(10.0, abs=0.01)
    assert lost.restored_ms == pytest.approx(3000.0)


def test_a_node_that_was_given_notice_and_handed_over_is_no_loss() -> None:
    history = folded(
        [
            *a_run_with_a_lost_node(),
            event(15, 10, "draining", 5, node="n1", why="AWS will terminate it"),
            event(16, 12.5, "left", 6, node="n1", why="AWS will terminate it"),
        ]
    )
    last = history.preemptions[-1]
    assert (last.node, last.kind, last.notice_seconds, last.redone) == ("n1", "handover", 2.5, 0)


def test_a_commit_that_the_next_coordinator_tells_again_is_in_the_curve_once() -> None:
    run = a_run_with_a_lost_node()
    again = event(15, 12, "commit", 5, step=4, loss=1.6)
    assert folded([*run, again]).steps == folded(run).steps == list(range(5))


def test_a_rollback_takes_the_curve_back() -> None:
    history = folded([*a_run_with_a_lost_node(), event(15, 10, "rollback", 2, step=2)])
    assert history.steps == [0, 1]
    assert history.preemptions[-1].kind == "rollback"


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
    assert recorded.look().status.step == 0
    now[0] = 2.0
    assert recorded.look().status.step == 3
    now[0] = 5.0
    assert recorded.look().status.step == 5
    now[0] = 100.0
    assert recorded.look().status.step == 0, "it begins again"
    assert recorded.kill("n0") == "this is a recorded run: it has no nodes to preempt"


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


def test_the_ring_tells_everything_in_words_too() -> None:
    replay = Replay()
    for each in a_run_with_a_lost_node():
        replay.take(of_message(each))
    look = replay.look(START + 10)
    picture = ring_svg(look.status, look.history.gone, START + 10, "#123456")
    for words in ("n1</tspan> · active", "runs stages 0, 1", "stands by for 0, 1", "in b", "n0</tspan> · lost"):
        assert words in picture
    assert "<title>stage 0: n1, standby n2 (hot)" in picture
    assert "n0" not in ring_svg(look.status, look.history.gone, START + 60, "#123456"), "after a while it is gone"
    assert in_words(pb.GetStatusResponse(), []) == "no nodes"


def test_a_name_cannot_break_the_picture() -> None:
    status = pb.GetStatusResponse(nodes=[pb.NodeStatus(id="<b>&", state="spare", zone='"')])
    assert "<b>" not in ring_svg(status, {}, 0.0, "#000")


def test_the_loss_curve_is_thinned_and_keeps_its_end() -> None:
    events = [event(s, s, "commit", s + 1, step=s, loss=1 / (s + 1)) for s in range(10_000)]
    points = loss_curve(folded(events))["layer"][0]["data"]["values"]
    assert len(points) < 600
    assert points[-1]["step"] == 9_999


def test_what_was_evaluated_is_in_the_chart_once_and_as_a_number() -> None:
    told = [(3, 0.5, 0.75), (6, float("nan"), 0.5), (3, 0.5, 0.75)]
    events = [event(i, i, "evaluated", s, step=s, loss=x, **{"metric.accuracy": y}) for i, (s, x, y) in enumerate(told)]
    history = folded([*events, event(9, 9, "commit", 7, step=6, loss=1.0)])
    assert history.evaluations[3] == {"loss": 0.5, "accuracy": 0.75}
    assert loss_curve(history)["layer"][2]["data"]["values"] == [{"step": 3, "loss": 0.5}]


def test_charts_hold_what_there_is() -> None:
    history = folded(a_run_with_a_lost_node())
    assert [v["phase"] for v in timeline(history.preemptions)["data"]["values"]] == [
        "detect", "promote", "resume", "redundancy restored",
    ]  # fmt: skip
    node = pb.NodeStatus(id="n0", times=pb.TimeSplit(forward=1.0, bubble=2.0))
    assert [v["seconds"] for v in time_split([node])["data"]["values"]] == [1.0, 2.0]


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
        (size(999), "999 B"),
        (size(2_500_000), "2.5 MB"),
    ],
)
def test_numbers_in_words(said: str, words: str) -> None:
    assert said == words


def test_the_time_left() -> None:
    assert seconds_left(50, 100, 10.0, 20) == 100.0
    assert seconds_left(0, 100, 0.0, 20) is None
