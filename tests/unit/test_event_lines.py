"""How ``culm events`` prints: for a person at a terminal, and as plain text."""

import io
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from rich.console import Console

from culm.__main__ import main, make_parser
from culm.commands.events import is_wanted
from culm.pipeline.money.kinds import KINDS
from culm.protos import coordinator_pb2 as pb
from culm.protos.coordinator_pb2_grpc import CoordinatorServicer, add_CoordinatorServicer_to_server
from culm.terminal.event_lines import EventLines
from culm.terminal.severity import OF_KIND, Severity, severity_of

NOON = time.mktime((2026, 1, 2, 12, 0, 0, 0, 0, -1))
DAY = 86_400.0
LOST = pb.ListEventsResponse(
    time=NOON + 0.25, kind="lost", text="n1 is lost: n10 misses it", fields={"node": "n1", "stages": "0"}
)
PLAN = pb.ListEventsResponse(time=NOON + 0.5, kind="plan", text=f"n0 runs stage 1 for n1, {'and so on ' * 20}".strip())
RESUMED = pb.ListEventsResponse(
    time=NOON + 0.75, kind="resumed", text="n0 resumed stage 1", fields={"node": "n1", "heir": "n0"}
)
CODES = re.compile(r"\x1b\[[0-9;]*m")


def printed(*events: pb.ListEventsResponse, terminal: bool = True, width: int = 80, now: float = NOON) -> list[str]:
    written = io.StringIO()
    console = Console(file=written, force_terminal=terminal, color_system="standard" if terminal else None, width=width)
    lines = EventLines(console, lambda: now)
    for event in events:
        lines.write(event)
    return written.getvalue().splitlines()


def test_plain_text_is_a_line_for_each_event_whatever_its_length() -> None:
    shown = printed(LOST, PLAN, terminal=False, width=20)
    assert shown == [f"12:00:00.250  lost       {LOST.text}", f"12:00:00.500  plan       {PLAN.text}"]


def test_a_new_day_has_a_line_with_its_date() -> None:
    later = pb.ListEventsResponse(time=NOON + DAY, kind="hot", text="stage 0")
    for terminal in (True, False):
        shown = [CODES.sub("", line) for line in printed(LOST, later, later, terminal=terminal)]
        assert [line for line in shown if re.fullmatch(r"[\d-]{10}", line)] == ["2026-01-03"]
        assert shown[1] == "2026-01-03"


def test_a_person_is_told_the_day_of_an_old_event_and_a_file_does_not_depend_on_today() -> None:
    assert CODES.sub("", printed(LOST, now=NOON + DAY)[0]) == "2026-01-02"
    assert printed(LOST, terminal=False, now=NOON + DAY) == printed(LOST, terminal=False)


def test_a_lost_node_is_red_and_what_mends_it_is_green() -> None:
    lost, resumed = printed(LOST, RESUMED)
    assert "\x1b[1;31mlost" in lost
    assert "\x1b[1;31m is lost: n10 misses it" in lost
    assert "\x1b[32mresumed" in resumed
    assert "\x1b[1mn0\x1b[0m resumed stage 1" in resumed


@pytest.mark.parametrize("width", [80, 30, 10])
def test_long_text_is_wrapped_below_itself(width: int) -> None:
    shown = [CODES.sub("", line) for line in printed(PLAN, width=width)]
    indent = {80: 25, 30: 2, 10: 2}[width]
    assert len(shown) > 3
    assert all(line.startswith(" " * indent) and line[indent] != " " for line in shown[1:])
    if width > 25:
        assert max(map(len, shown)) <= width
    assert " ".join(" ".join(shown).split()) == " ".join(f"12:00:00.500  plan {PLAN.text}".split())


def test_text_of_other_processes_is_no_markup() -> None:
    odd = pb.ListEventsResponse(time=NOON, kind="left", text="[red]n0[/] :boom:", fields={"node": "n(0"})
    assert CODES.sub("", printed(odd)[0]).endswith("[red]n0[/] :boom:")


def test_every_kind_has_a_severity_and_an_unknown_one_is_news() -> None:
    assert set(OF_KIND) == set(KINDS.values())
    assert severity_of("of a later version") is Severity.NEWS


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("", {"usage": False, "lost": True, "of_a_later_version": True}),
        ("--all", {"usage": True, "lost": True}),
        ("--json", {"usage": True, "lost": True, "of_a_later_version": True}),
        ("--kind usage", {"usage": True, "lost": False}),
        ("--json --kind lost", {"usage": False, "lost": True, "of_a_later_version": False}),
    ],
)
def test_usage_is_shown_where_it_is_asked_for(words: str, shown: dict[str, bool]) -> None:
    arguments = make_parser(["events"]).parse_args(["events", *words.split()])
    assert {kind: is_wanted(kind, arguments) for kind in shown} == shown


class Log(CoordinatorServicer):
    """A coordinator with this log."""

    def ListEvents(  # noqa: N802
        self, request: pb.ListEventsRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.ListEventsResponse]:
        for sequence, kind in enumerate(["joined", "commit", "measured", "commit", "lost"], 1):
            yield pb.ListEventsResponse(sequence=sequence, kind=kind, text=f"text {sequence}")


@pytest.mark.parametrize(
    ("words", "on_terminal", "shown", "said"),
    [
        ("", True, [1, 5], "3 events of single steps are left out: --all prints them"),
        ("--follow", True, [1, 5], "commits are left out: --all prints them"),
        ("--all", True, [1, 2, 3, 4, 5], ""),
        ("--kind commit", True, [2, 4], ""),
        ("--kind lost", True, [5], ""),
        ("", False, [1, 2, 3, 4, 5], ""),
    ],
)
def test_a_terminal_is_spared_the_commits(
    words: str,
    on_terminal: bool,
    shown: list[int],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A run of an hour listed thousands of them, and a lost node was not to be found."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: on_terminal)
    with ThreadPoolExecutor() as pool:
        server = grpc.server(pool)
        add_CoordinatorServicer_to_server(Log(), server)  # type: ignore[abstract]
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        assert main(["events", "--coordinator", f"127.0.0.1:{port}", *words.split()]) == 0
        server.stop(None).wait()
    told = capsys.readouterr()
    assert [int(number) for number in re.findall(r"text (\d)", told.out)] == shown
    assert said in told.err if said else not told.err
