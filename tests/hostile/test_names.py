"""Names, reasons and other words of nodes are text that nobody vouches for, wherever they enter and are shown."""

import io
import time
from html import escape
from pathlib import Path

import grpc
import pytest
from rich.console import Console

from culm.commands.cost import _table
from culm.commands.status import exposure_lines
from culm.coordinator.edges.store import MemoryStore
from culm.coordinator.edges.translation import report_of
from culm.pipeline.errors import JobError
from culm.pipeline.money.codec import of_lines, to_line
from culm.pipeline.text import LONGEST_TEXT, as_name, check_name, cleaned, closest, is_name, plain, told
from culm.pipeline.version import PROTOCOL_VERSION
from culm.protos import coordinator_pb2 as pb
from culm.terminal.outcome import Outcome
from culm.terminal.progress import Screen, lost_nodes_table, nodes_table
from tests.fake_node import FakeNode
from tests.hostile.commands import in_process
from tests.integration.test_coordinator_service import Cluster, run
from tests.unit.test_ui_history import START, a_run_with_a_lost_node
from tests.unit.test_ui_pages import page

GOOD = ["n0", "a", "A.b_c-9", "7", "a" * 64, "us-east-1a", "ip-10-0-0-1.ec2.internal"]
BAD = [
    *("", ".", "..", "-a", "_a", "a/b", "../x", "a b", "a\n", "\na", "a\tb", "a\0b", "a" * 65, "[red]x", "ü", "a:b"),
    *("\x1b[31mx", "x\x9b2J", "x\u202ey", "x\u200by", "%2e%2e", "a\\b", "a@b", "$(id)", "`id`", "a'b", 'a"b', "a<b>"),
]
NASTY = [
    ("\x1b[31mred\x1b[0m", "red"),
    ("\x1b]0;a title\x07rest", "rest"),
    ("\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", "link"),
    ("clear\x1b[2J\x1b[Hscreen", "clearscreen"),
    ("one\ntwo\r\nthree\ttabs", "one two  three tabs"),
    ("back\b\b\b\bspace", "backspace"),
    ("c1 \x9b31mcontrol", "c1 control"),
    ("bidi \u202eesrever\u202c", "bidi esrever"),
    ("isolate \u2066x\u2069", "isolate x"),
    ("hid\u200b\u2060\ufeffden", "hidden"),
    ("line\u2028separator", "line separator"),
    ("nul\0", "nul"),
    ("half \x1b[3", "half 3"),
    ("tags\U000e0041", "tags"),
    ("half of a pair \ud800", "half of a pair"),
    ("plain text, ümlauts, 漢字, emoji 🎋", "plain text, ümlauts, 漢字, emoji 🎋"),
]
MARKUP = "[/nothing][bold red]x[/][link=http://evil]y"


@pytest.mark.parametrize("text", GOOD)
def test_a_name(text: str) -> None:
    assert is_name(text)
    assert check_name(text, "--name") == text
    assert as_name(text) == text


@pytest.mark.parametrize("text", BAD)
def test_what_is_no_name(text: str) -> None:
    assert not is_name(text)
    with pytest.raises(JobError) as refused:
        check_name(text, "--name")
    assert str(refused.value).isprintable()
    assert is_name(as_name(text))


@pytest.mark.parametrize(("text", "shown"), NASTY)
def test_what_is_shown_is_one_line_of_what_can_be_seen(text: str, shown: str) -> None:
    assert plain(text) == shown
    assert plain(shown) == shown


def test_what_a_node_says_is_bounded() -> None:
    assert len(told("x" * 10**7)) <= LONGEST_TEXT
    assert told("begin" + "x" * 10**4 + "end").startswith("begin")


def test_the_closest_known_word() -> None:
    assert closest("lasy", ["off", "lazy"]) == "did you mean lazy?"
    assert closest("zzz", ["off", "lazy"]) == "known here: off, lazy"


def a_status(word: str) -> pb.GetStatusResponse:
    """Every text in it is the word."""
    node = pb.NodeStatus(id=word, state=word, instruction=word, zone=word, address=word, stages=[0])
    node.machine.provider, node.machine.instance_type = word, word
    status = pb.GetStatusResponse(job=word, phase="waiting", detail=word, nodes=[node], exposure={0: 3.0})
    stage = status.plan.stages.add(end_layer=1, owners=[word])
    stage.standbys.add(node=word, hot=True)
    return status


def shown(*what: object) -> str:
    """As a terminal gets it, without colours of our own."""
    out = io.StringIO()
    console = Console(file=out, width=200, color_system=None)
    for each in what:
        console.print(each)
    return out.getvalue()


@pytest.mark.parametrize("word", [MARKUP, "[red]n1[/red]", "[", "[/]", "\\[x]"])
def test_markup_in_a_name_is_shown_as_it_is(word: str) -> None:
    status = a_status(word)
    cost = pb.GetCostResponse()
    cost.nodes.add(node=word).machine.market = word
    outcome = Outcome()
    loss = {"node": word, "stage": 0, "step": 1, "detect_ms": 1.0, "resume_ms": 1.0, "redone": 1}
    outcome.losses_of_nodes.append(loss)
    for table in (nodes_table(status), _table(cost), lost_nodes_table(outcome)):
        assert word in shown(table)


@pytest.mark.parametrize("word", ["\x1b[31mn1", "n1\n\x1b]0;x\x07", "\u202en1"])
def test_the_status_of_a_coordinator_that_checks_nothing_is_shown_plain(word: str) -> None:
    status = cleaned(a_status(word))
    text = shown(nodes_table(status)) + status.detail + status.job + "".join(exposure_lines(status))
    assert "n1" in text
    assert all(c.isprintable() or c == "\n" for c in text)


def test_every_text_of_a_message_is_cleaned() -> None:
    event = pb.ListEventsResponse(kind="lo\x07st", text="a\nb", fields={"wh\x1by": "\x1b[2Jx", "step": "3"})
    assert dict(cleaned(event).fields) == {"why": "x", "step": "3"}
    assert (event.kind, event.text) == ("lost", "a b")
    status = cleaned(a_status("a\x07b"))
    assert "\x07" not in str(status)
    assert status.nodes[0].machine.provider == "ab"
    assert status.plan.stages[0].owners == ["ab"]


def test_the_live_display_takes_any_words() -> None:
    status = a_status(MARKUP)
    event = pb.ListEventsResponse(kind="lost", text=MARKUP)
    with Screen(MARKUP) as screen:
        screen.watch(status, [event], Outcome())


REPORTS = [
    pb.AttendRequest(failed=pb.Failed(why="\x1b[31mno\nluck")),
    pb.AttendRequest(draining=pb.Draining(why="\x1b[31mno\nluck")),
    pb.AttendRequest(warned=pb.Warned(why="\x1b[31mno\nluck")),
    pb.AttendRequest(leave=pb.Leave(why="\x1b[31mno\nluck")),
    pb.AttendRequest(peer_lost=pb.PeerLost(node="n2", why="\x1b[31mno\nluck")),
    pb.AttendRequest(checkpoint_bad=pb.CheckpointBad(step=3, why="\x1b[31mno\nluck")),
]


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: str(report.WhichOneof("body")))
def test_a_reason_is_plain_before_anything_is_decided(report: pb.AttendRequest) -> None:
    assert getattr(report_of("n1", 1, report), "why") == "no luck"  # noqa: B009


@pytest.mark.parametrize("name", ["../../x", "[red]n1", "\x1b[31mn1", "", "a" * 65, "n 1"])
def test_a_node_of_no_name_does_not_get_in(name: str) -> None:
    async def scenario(running: Cluster) -> None:
        node = await running.open(name)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await node.call.read()
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert any(said in str(refused.value.details()) for said in ("not a valid name", "cannot be printed"))
        assert not (await running.stub.GetStatus(pb.GetStatusRequest())).nodes

    run(scenario, MemoryStore())


@pytest.mark.parametrize("zone", ["a b", "\x1b[31m", "[red]"])
def test_a_zone_of_no_name_does_not_get_in(zone: str) -> None:
    async def scenario(running: Cluster) -> None:
        node = FakeNode("n1", running.stub.Attend())
        join = pb.Join(node="n1", incarnation=1, address="n1:1", protocol_version=PROTOCOL_VERSION, zone=zone)
        await node.say(join=join)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await node.call.read()
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    run(scenario, MemoryStore())


def test_a_recorded_log_is_read_plain(tmp_path: Path) -> None:
    event = pb.ListEventsResponse(sequence=1, time=time.time(), kind="joined", text="\x1b[31mn1 joined")
    event.fields.update({"node": "n1\x1b[2J", "incarnation": "1", "zone": MARKUP})
    log = tmp_path / "run.jsonl"
    log.write_text(to_line(event) + "\n")
    (read,) = of_lines(log.read_text().splitlines(), str(log))
    assert (read.text, read.fields["node"]) == ("n1 joined", "n1")
    done = in_process("cost", "--log", "run.jsonl", folder=tmp_path)
    assert done.code == 0, done.err
    assert "\x1b" not in done.out


def test_the_dashboard_shows_markup_as_it_is(tmp_path: Path) -> None:
    """No link, no picture, no formula comes of a node's words."""
    events = a_run_with_a_lost_node()
    waiting = events[-1]
    waiting.kind, waiting.time = "waiting", START + 20.0
    waiting.text = "![x](http://evil) [y](http://evil) :red[z] $e^x$ <b> `c` **d**"
    log = tmp_path / "run.jsonl"
    log.write_text("".join(to_line(event) + "\n" for event in events))
    app = page("overview", log, 20.0)
    written = " ".join(each.proto.body for each in app.get("html"))  # no Markdown is made of HTML
    assert "Waiting: " + escape(waiting.text) in written
    assert "<b> `c`" not in written
    assert not any(waiting.text in each.value for each in app.markdown)
