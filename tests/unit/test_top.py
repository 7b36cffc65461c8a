"""``culm top``: what is on the screen, for few nodes and for many."""

import re

import pytest
from rich.console import Console

from culm.__main__ import main
from culm.commands.cost import in_words
from culm.pipeline.money.codec import of_message
from culm.protos import coordinator_pb2 as pb
from culm.terminal.recently import Recently
from culm.terminal.top_picture import picture
from culm.ui.history import History
from culm.ui.look import Look
from tests.unit.test_ui_history import START, a_run_with_a_lost_node, event

NOW = START + 8.0


def node(name: str, state: str = "active", bubble: float = 1.0, sent: int = 0, **more: object) -> pb.NodeStatus:
    times = pb.TimeSplit(forward=10.0 - bubble, bubble=bubble)
    return pb.NodeStatus(id=name, state=state, times=times, sent_bytes={"n0": sent}, **more)  # type: ignore[arg-type]


def status(*nodes: pb.NodeStatus, **more: object) -> pb.GetStatusResponse:
    said: dict[str, object] = {
        "job": "gpt2",
        "phase": "running",
        "detail": "training",
        "step": 412,
        "steps": 10_000,
        "loss": 3.21456,
        "samples_per_second": 16.0,
        "samples_per_step": 8,
        **more,
    }
    return pb.GetStatusResponse(nodes=nodes, **said)  # type: ignore[arg-type]


def lines(
    found: pb.GetStatusResponse,
    history: History | None = None,
    width: int = 80,
    height: int | None = 24,
    **more: object,
) -> list[str]:
    """The picture as a terminal of this size shows it, without its colours."""
    look = Look(status=found, history=history or History(), at=NOW, **more)  # type: ignore[arg-type]
    recently = Recently()
    recently.take(found, NOW)
    console = Console(width=width, height=height or 100)
    with console.capture() as capture:
        console.print(picture(look, recently, width, height))
    return [line.rstrip() for line in capture.get().splitlines()]


def four() -> pb.GetStatusResponse:
    found = status(
        node("n0", stages=[0], standby_of=[1], instruction="0F3", sent=8_100_000, price_per_hour=0.91),
        node("n1", stages=[1], standby_of=[2], instruction="1B12", bubble=4.0),
        node("n2", stages=[2], standby_of=[0]),
        node("n10", "spare", bubble=0.0),
    )
    for s, (owner, standby) in enumerate((("n0", "n2"), ("n1", "n0"), ("n2", "n1"))):
        found.plan.stages.add(owners=[owner], standbys=[pb.Standby(node=standby, hot=s != 1)])
    return found


def test_four_nodes_fit_a_small_terminal() -> None:
    shown = lines(
        four(), cost=pb.GetCostResponse(dollars=12.4, dollars_per_hour=3.2, seconds=100.0, useful_seconds=97.0)
    )
    assert len(shown) <= 24
    assert max(map(len, shown)) <= 80
    assert shown[0].startswith("gpt2  running  4 nodes: 3 active, 1 spare")
    assert shown[1].endswith("step 412/10,000  loss 3.2146  16 samples/s  1 h 19 min left")
    assert shown[2] == "$12.40  $3.20 an hour now  goodput 97.0%  plan 0, term 0"
    assert [line.split() for line in shown[4:9]] == [
        ["node", "state", "stages", "standby", "of", "runs", "bubble", "sent", "$/h"],
        ["n0", "active", "0", "1", "(seeding)", "0F3", "10%", "8.1", "MB", "0.91"],
        ["n1", "active", "1", "2", "1B12", "40%", "0", "B"],
        ["n2", "active", "2", "0", "10%", "0", "B"],
        ["n10", "spare", "0%", "0", "B"],
    ]
    assert shown[-1] == "Nothing has happened in the last 10 minutes."


def test_the_forecast_gives_the_time_left_and_what_is_to_come() -> None:
    cost = pb.GetCostResponse(dollars=12.4, dollars_per_hour=3.2, seconds=100.0, useful_seconds=97.0)
    cost.forecast.seconds.expected = 5400.0
    cost.forecast.dollars.CopyFrom(pb.Estimate(expected=4.8, low=4.5, high=5.2))
    shown = lines(four(), cost=cost)
    assert shown[1].endswith("16 samples/s  1 h 30 min left")
    assert shown[2].startswith("$12.40  $3.20 an hour now  $4.80 ($4.50 to $5.20) to come  goodput 97.0%")


def test_a_graph_counts_epochs() -> None:
    on_graph = four()
    on_graph.graph.chunks = 8  # a step of 16 samples a second is one of two epochs
    assert lines(on_graph)[1].endswith("epoch 412/10,000  loss 3.2146  2 epochs/s  1 h 19 min left")
    cost = pb.GetCostResponse(samples=1600, dollars_per_thousand_samples=0.5, value=24.0, chunks=8)
    assert {"an epoch        $0.00400", "value           3.000 epochs/s for $1 an hour"} < set(in_words(cost))


def test_of_two_hundred_nodes_the_worst_are_on_the_screen_and_the_others_are_counted() -> None:
    many = [node(f"n{i}", bubble=i / 40, zone="us-east-1b") for i in range(200)]
    many[7].state, many[9].state, many[150].state = "spare", "detached", "draining"
    shown = lines(status(*many))
    assert len(shown) == 24
    assert [line.split()[0] for line in shown[5:9]] == ["n9", "n150", "n199", "n198"]
    (more,) = (line for line in shown if line.startswith("and "))
    count = 200 - shown.index(more) + 5
    assert more == f"and {count} more: {count - 1} active, 1 spare"
    assert len(lines(status(*many), width=200, height=None)) > 200, "without a height every node is shown"


def test_a_lost_node_comes_first_and_what_followed_stands_below() -> None:
    history = History()
    for said in a_run_with_a_lost_node():
        if said.time <= NOW:
            history.take(of_message(said))
    shown = lines(status(node("n1"), node("n2"), exposure={0: 3.0, 1: 0.0}), history)
    assert "Without a hot standby for up to 3 s: stage 0" in shown
    (row,) = (i for i, line in enumerate(shown) if line.startswith("node "))
    assert re.match(r"n0 +lost .* ago", shown[row + 1])
    told = [line.split()[1] for line in shown[row:] if re.match(r"\d\d:\d\d:\d\d ", line)]
    assert told[told.index("lost") + 1 :][:2] == ["plan", "resumed"]


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ({"stalled_seconds": 30.0, "awaited": "n1 with stage 1"}, "No commit for 30 s, waiting for n1 with stage 1"),
        ({"phase": "waiting", "detail": "waiting for 2 more node(s)"}, "waiting for 2 more node(s)"),
        ({"checkpoint_fault": "the storage is away"}, "the storage is away"),
    ],
)
def test_what_is_wrong_has_a_line_of_its_own(more: dict[str, object], line: str) -> None:
    assert lines(status(node("n0"), **more))[3] == line


def test_other_processes_words_are_neither_markup_nor_longer_than_the_screen() -> None:
    history = History()
    history.take(of_message(event(1, 7.0, "joined", node="n0", incarnation=1)))
    found = status(node("[red]n0", instruction="[/]" * 30), detail="[bold]" * 40, phase="waiting")
    shown = lines(found, history, problem="gone " * 40, width=60)
    assert max(map(len, shown)) <= 60
    assert any(line.startswith("[red]n0") for line in shown)


@pytest.mark.parametrize(("width", "height"), [(20, 5), (1, 1), (40, 12), (300, 80)])
def test_any_size_of_a_terminal_will_do(width: int, height: int) -> None:
    assert lines(four(), width=width, height=height)


def test_before_the_first_look_and_without_nodes_there_is_a_picture() -> None:
    assert "No node has joined yet." in lines(pb.GetStatusResponse())


# ---- what nodes did lately -------------------------------------------------------------------------------------------


def test_bubbles_and_bytes_are_those_of_the_last_seconds() -> None:
    recently = Recently()
    for at in range(40):
        waited = min(at, 20.0)  # it has waited all the time for 20 s, and then no more
        times = pb.TimeSplit(forward=at - waited, bubble=waited)
        found = pb.NodeStatus(id="n0", incarnation=1, times=times, sent_bytes={"n1": 1000 * at})
        recently.take(pb.GetStatusResponse(nodes=[found]), 100.0 + at)
        if at == 15:
            assert recently.bubble_share(found) == 1.0
    assert recently.bubble_share(found) == 0.0
    assert recently.sent_per_second(found) == pytest.approx(1000.0)


def test_a_new_incarnation_begins_anew() -> None:
    recently = Recently()
    old = pb.NodeStatus(id="n0", incarnation=1, times=pb.TimeSplit(forward=50.0), sent_bytes={"n1": 900})
    new = pb.NodeStatus(id="n0", incarnation=2, times=pb.TimeSplit(forward=1.0, bubble=3.0), sent_bytes={"n1": 9})
    recently.take(pb.GetStatusResponse(nodes=[old]), 1.0)
    recently.take(pb.GetStatusResponse(nodes=[new]), 2.0)
    assert (recently.bubble_share(new), recently.sent_per_second(new)) == (0.75, None)
    assert recently.bubble_share(pb.NodeStatus(id="n1")) is None


# ---- the command -----------------------------------------------------------------------------------------------------


def test_without_a_coordinator_the_command_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--coordinator", "127.0.0.1:1", "--once"]) == 2
    assert "no coordinator answers at 127.0.0.1:1" in capsys.readouterr().err
