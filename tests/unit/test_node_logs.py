"""The log lines of nodes, as a coordinator keeps them."""

from culm.coordinator.edges.node_logs import ANSWERED, LINES, LONGEST, NODES, NodeLogs
from culm.protos import coordinator_pb2 as pb


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


def lines(
    first: int, count: int, text: str = "line", level: pb.LogLevel.ValueType = pb.LOG_LEVEL_INFO
) -> list[pb.LogLine]:
    return [
        pb.LogLine(number=n, time=n, level=level, logger="culm", text=f"{text} {n}")
        for n in range(first, first + count)
    ]


def asked(logs: NodeLogs, **about: object) -> list[str]:
    return [kept.line.text for kept in logs.answer(pb.ListLogLinesRequest(**about)).lines]  # type: ignore[arg-type]


def test_the_newest_lines_of_a_node_are_kept() -> None:
    logs = NodeLogs(Clock())
    logs.take("n0", 1, lines(1, LINES + 50))
    found = asked(logs, node="n0")
    assert (len(found), found[0], found[-1]) == (LINES, "line 51", f"line {LINES + 50}")
    assert asked(logs, node="n0", most=2) == found[-2:]
    assert asked(logs, node="n7") == []


def test_what_is_told_again_on_a_new_stream_is_kept_once() -> None:
    logs = NodeLogs(Clock())
    logs.take("n0", 1, lines(1, 5))
    logs.take("n0", 1, lines(3, 4))
    assert asked(logs) == [f"line {n}" for n in range(1, 7)]


def test_a_process_that_starts_again_begins_anew_and_its_last_life_stays() -> None:
    logs = NodeLogs(Clock())
    logs.take("n0", 1, lines(1, 3, "first life"))
    logs.take("n0", 2, lines(1, 1, "second life"))
    kept = logs.answer(pb.ListLogLinesRequest(node="n0")).lines
    assert [(k.incarnation, k.line.text) for k in kept][-2:] == [(1, "first life 3"), (2, "second life 1")]


def test_who_follows_gets_what_has_come_since() -> None:
    clock = Clock()
    logs = NodeLogs(clock)
    logs.take("n0", 1, lines(1, 2))
    logs.take("n1", 1, lines(1, 2, "other"))
    answer = logs.answer(pb.ListLogLinesRequest())
    assert [k.node for k in answer.lines] == ["n0", "n0", "n1", "n1"]
    assert list(answer.nodes) == ["n0", "n1"]
    logs.take("n0", 1, lines(3, 1))
    assert asked(logs, after=answer.newest) == ["line 3"]
    clock.now += 1.0
    successor = NodeLogs(clock)
    successor.take("n0", 1, lines(4, 1))
    assert asked(successor, after=answer.newest + 1) == ["line 4"], "a coordinator that takes over counts on"


def test_lines_can_be_chosen_by_their_level() -> None:
    logs = NodeLogs(Clock())
    logs.take("n0", 1, lines(1, 1))
    logs.take("n0", 1, lines(2, 1, "bad", pb.LOG_LEVEL_ERROR))
    logs.take("n0", 1, [pb.LogLine(number=3, level=17, text="of a later version")])  # type: ignore[arg-type]
    assert asked(logs, at_least=pb.LOG_LEVEL_WARNING) == ["bad 2", "of a later version"]
    assert len(asked(logs)) == 3


def test_a_line_cannot_harm_who_looks_at_it() -> None:
    logs = NodeLogs(Clock())
    evil = "\x1b]0;title\x07a\nb \u202edecapsid s3://u:hunter2@b/x " + "y" * 3000
    logs.take("n0", 1, [pb.LogLine(number=1, logger="a\x1b[2Jb", text=evil)])
    (kept,) = logs.answer(pb.ListLogLinesRequest()).lines
    assert kept.line.text.isprintable()
    assert "hunter2" not in kept.line.text
    assert len(kept.line.text) <= LONGEST
    assert kept.line.logger == "ab"


def test_memory_is_bounded_whoever_comes_and_goes() -> None:
    logs = NodeLogs(Clock())
    for n in range(NODES + 10):
        logs.take(f"n{n}", 1, lines(1, 1))
    answer = logs.answer(pb.ListLogLinesRequest())
    assert len(answer.nodes) == NODES
    assert "n0" not in answer.nodes
    assert len(answer.lines) == ANSWERED
    assert answer.lines[-1].node == f"n{NODES + 9}"


def test_no_lines_leave_no_trace() -> None:
    logs = NodeLogs(Clock())
    logs.take("n0", 1, [])
    assert list(logs.answer(pb.ListLogLinesRequest()).nodes) == []
