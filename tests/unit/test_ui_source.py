"""A dashboard that stays open over a live coordinator: whose run it shows."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from culm.protos import coordinator_pb2 as pb
from culm.protos.coordinator_pb2_grpc import CoordinatorServicer, add_CoordinatorServicer_to_server
from culm.ui import source
from culm.ui.history import History
from culm.ui.kept_logs import KeptLogs
from culm.ui.runs import Run, Runs
from culm.ui.source import Live
from tests.unit.test_ui_history import START, event
from tests.unit.test_ui_pages import used

Events = list[pb.ListEventsResponse]


@dataclass(eq=False)
class Coordinator(CoordinatorServicer):
    """Runs of one job, one after the other at one address."""

    events: Events = field(default_factory=list)
    asked: list[int] = field(default_factory=list)  # from which number
    nodes: list[pb.NodeStatus] = field(default_factory=list)
    as_of: float = 0.0  # by its clock
    lines: Any = None  # what answers for log lines; None: as a coordinator that knows none

    def GetStatus(  # noqa: N802
        self, request: pb.GetStatusRequest, context: grpc.ServicerContext
    ) -> pb.GetStatusResponse:
        return pb.GetStatusResponse(job="gpt", steps=10, nodes=self.nodes)

    def ListEvents(  # noqa: N802
        self, request: pb.ListEventsRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.ListEventsResponse]:
        self.asked.append(request.from_sequence)
        yield from [event for event in self.events if event.sequence >= request.from_sequence]

    def ListLogLines(  # noqa: N802
        self, request: pb.ListLogLinesRequest, context: grpc.ServicerContext
    ) -> pb.ListLogLinesResponse:
        if self.lines is None:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
        answer: pb.ListLogLinesResponse = self.lines(request, context)
        return answer

    def GetCost(self, request: pb.GetCostRequest, context: grpc.ServicerContext) -> pb.GetCostResponse:  # noqa: N802
        ends = [event for event in self.events if event.kind in ("done", "rollback")]
        done = bool(ends) and ends[-1].kind == "done"
        return pb.GetCostResponse(done=done, as_of=ends[-1].time if done else self.as_of)


@dataclass
class Dashboard:
    coordinator: Coordinator
    live: Live

    def shows(self, events: Events) -> History:
        """The history once the coordinator has these events on record."""
        self.coordinator.events = events
        look = self.live.look()
        assert not look.problem
        return look.history


@pytest.fixture
def dashboard(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Dashboard]:
    monkeypatch.setattr(source, "FRESH", -1.0)  # each look asks
    coordinator = Coordinator()  # type: ignore[abstract]
    server = grpc.server(ThreadPoolExecutor(2))
    add_CoordinatorServicer_to_server(coordinator, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield Dashboard(coordinator, Live(f"127.0.0.1:{port}", KeptLogs(tmp_path)))
    server.stop(None)


def a_run(begun: float, steps: int, loss: float) -> Events:
    joined = event(1, begun, "joined", node="n0", incarnation=1, zone="a", address="h0:1")
    return [joined, *(event(2 + s, begun + 1 + s, "commit", s + 1, step=s, loss=loss) for s in range(steps))]


@pytest.mark.parametrize("steps", [0, 1, 3, 5, 8], ids="its log is {} commits long".format)
def test_a_second_run_of_the_same_job_is_another_run(steps: int, dashboard: Dashboard) -> None:
    lost = event(7, 7.0, "lost", 5, node="n0", stages="0", detect_ms="40.0", evidence="its stream broke")
    assert list(dashboard.shows([*a_run(0.0, 5, 2.0), lost]).losses) == [2.0] * 5
    second = a_run(100.0, steps, 1.0)
    history = dashboard.shows(second)
    assert list(history.losses) == [1.0] * steps
    assert (len(history.notable), history.incidents) == (1, []), "nothing of the run before"


def test_a_run_that_has_no_events_yet_shows_none(dashboard: Dashboard) -> None:
    dashboard.shows(a_run(0.0, 5, 2.0))
    assert list(dashboard.shows([]).losses) == []
    assert list(dashboard.shows(a_run(100.0, 2, 1.0)).losses) == [1.0, 1.0]


def test_of_the_same_run_only_what_is_new_is_read(dashboard: Dashboard) -> None:
    whole = a_run(0.0, 5, 2.0)
    dashboard.shows(whole[:3])
    assert list(dashboard.shows(whole).steps) == list(range(5))
    assert list(dashboard.shows(whole).steps) == list(range(5))
    assert dashboard.coordinator.asked == [0, 3, 6]


def test_an_event_that_the_log_keeps_no_longer_is_shown_no_more(dashboard: Dashboard) -> None:
    """Nobody looked for so long that the log has dropped all that was seen."""
    whole = a_run(0.0, 9, 2.0)
    dashboard.shows(whole[:3])
    history = dashboard.shows(whole[5:])
    assert list(history.steps) == list(range(4, 9)), "without a gap"
    assert history.notable == []
    assert dashboard.shows(whole[5:]) is history


def test_a_successor_whose_store_lost_the_log_begins_one(dashboard: Dashboard) -> None:
    dashboard.shows(a_run(0.0, 3, 2.0))
    second_term = 1 << 32
    after = [event(second_term + 1 + s, 50.0 + s, "commit", s + 1, step=s, loss=1.0) for s in (3, 4)]
    assert list(dashboard.shows(after).steps) == [3, 4]


def test_a_long_log_is_read_in_parts_and_none_is_missing(dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = a_run(0.0, 50, 2.0)
    monkeypatch.setattr(source, "READING", -1.0)  # one event a look
    monkeypatch.setattr(source, "PARTLY", -1.0)
    dashboard.coordinator.events = whole
    looks = [dashboard.live.look() for _ in range(10)]
    assert [look.reading for look in looks] == list(range(1, 11))
    monkeypatch.setattr(source, "READING", 60.0)
    last = dashboard.live.look()
    assert (last.reading, list(last.history.steps)) == (0, list(range(50)))


def test_what_nodes_do_now_cuts_off_nothing_of_a_log_that_is_read(
    dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a node tells now is newer than the rest of the log: taken first, it would make that too late."""
    told = [used(i, 10.0 * i, "n0") for i in range(1, 9)]
    dashboard.coordinator.nodes = [pb.NodeStatus(id="n0", incarnation=2, times=pb.TimeSplit(bubble=60.0, forward=60.0))]
    dashboard.coordinator.events, dashboard.coordinator.as_of = told, START + 90.0
    monkeypatch.setattr(source, "READING", -1.0)  # one event a look
    monkeypatch.setattr(source, "PARTLY", -1.0)
    for _ in range(3):
        dashboard.live.look()
    monkeypatch.setattr(source, "READING", 60.0)
    shares = dashboard.live.look().history.trends.bubble_share(START, START + 100.0)
    assert [at - START for at, _ in shares["n0"]] == [20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0]


def test_the_log_of_a_run_that_has_ended_is_kept_once(dashboard: Dashboard, tmp_path: Path) -> None:
    planned = event(99, 0.5, "plan", 0, steps=3, stage_count=1, stages="[]", samples_per_step=8)
    run = a_run(0.0, 3, 2.0)
    whole = [run[0], planned, *run[1:], event(100, 9.0, "done", 3, step=3)]
    for number, each in enumerate(whole, 1):
        each.sequence = number
    dashboard.shows(whole[:-1])
    assert list(tmp_path.iterdir()) == [], "it goes on"
    dashboard.shows(whole)
    while not (found := Runs(tmp_path).all()):
        dashboard.shows(whole)
    assert [(run.name, run.look.history.steps_done()) for run in found] == [("gpt-19700112-134640", 3)]
    (file,) = tmp_path.iterdir()
    written = file.stat().st_mtime_ns
    dashboard.shows(whole)
    assert [path.stat().st_mtime_ns for path in tmp_path.iterdir()] == [written]


def kept_in(folder: Path) -> list[Run]:
    """The runs there, once those that are being written are whole."""
    for thread in threading.enumerate():
        if thread.name == "keep a log":
            thread.join()
    return Runs(folder).all()


def test_a_run_that_was_done_and_went_back_is_sampled_again_and_its_second_end_kept(
    dashboard: Dashboard, tmp_path: Path
) -> None:
    planned = event(1, 0.0, "plan", 0, steps=3, stage_count=1, stages="[]", samples_per_step=8)
    done = [planned, event(2, 5.0, "commit", 3, step=2, loss=1.0), event(3, 9.0, "done", 3, step=3)]
    dashboard.shows(done)
    assert [list(run.look.history.losses) for run in kept_in(tmp_path)] == [[1.0]]
    dashboard.coordinator.nodes = [pb.NodeStatus(id="n0", incarnation=2, times=pb.TimeSplit(bubble=6.0, forward=6.0))]
    back = [*done, event(4, 20.0, "rollback", 2, step=2)]
    for dashboard.coordinator.as_of in (START + 30.0, START + 40.0):
        dashboard.coordinator.nodes[0].times.forward += 6.0
        history = dashboard.shows(back)
    assert [at - START for at, _ in history.trends.bubble_share(START, START + 100.0)["n0"]] == [40.0]
    again = [*back, event(5, 50.0, "commit", 3, step=2, loss=0.5), event(6, 51.0, "done", 3, step=3)]
    dashboard.shows(again)
    assert [list(run.look.history.losses) for run in kept_in(tmp_path)] == [[0.5]]


def test_log_lines_of_a_coordinator_and_of_an_older_one(dashboard: Dashboard) -> None:
    found = dashboard.live.log_lines("", "info")
    assert found.lines == ()
    assert "keeps no log lines" in found.problem
    kept = pb.KeptLine(sequence=1, node="n0", line=pb.LogLine(number=1, text="a\x1b[31mb"))
    asked: list[pb.ListLogLinesRequest] = []

    def answer(request: pb.ListLogLinesRequest, context: grpc.ServicerContext) -> pb.ListLogLinesResponse:
        asked.append(request)
        return pb.ListLogLinesResponse(lines=[kept], newest=1, nodes=["n10", "n2"])

    dashboard.coordinator.lines = answer
    found = dashboard.live.log_lines("n0", "warning")
    assert [line.line.text for line in found.lines] == ["ab"]
    assert found.nodes == ("n2", "n10")
    assert (asked[0].node, asked[0].at_least) == ("n0", pb.LOG_LEVEL_WARNING)


def test_the_wait_after_the_end_is_no_part_of_where_the_time_went(dashboard: Dashboard) -> None:
    status = pb.GetStatusResponse()
    status.nodes.add(id="n0").times.idle = 100.0
    status.nodes.add(id="n1").times.idle = 20.0  # it joined after the end
    source._less_the_wait_after(status, 1000.0, 1090.0)
    assert [node.times.idle for node in status.nodes] == [10.0, 0.0]


def test_a_coordinator_that_keeps_no_log_lines_is_told_in_words(dashboard: Dashboard) -> None:
    assert dashboard.live.log_lines("", "info").problem == (
        "This coordinator runs a version of Culm that keeps no log lines of nodes."
    )


def test_where_nobody_listens_the_address_is_told_and_no_more() -> None:
    problem = Live("127.0.0.1:1").look().problem
    assert "(no connection to 127.0.0.1:1: Connection refused)" in problem
