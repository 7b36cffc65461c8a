"""Which files are on a path: those entered between two moments, on threads that take part, each once."""

from dataclasses import replace

from benchmarks.paths import STEP, Entry, between, of_a_lost_node, of_a_tensor, told


def entry(
    time: float, place: str, function: str, process: str = "1", thread: str = "MainThread", given: str = ""
) -> Entry:
    return Entry(
        time=time,
        process=process,
        event="call",
        thread=thread,
        place=place,
        function=function,
        marks=(),
        given=given,
    )


FORWARD = entry(1.0, "stage_server/compute/stage.py", "forward")
MADE = replace(FORWARD, event="return", marks=(STEP, 0, 1, 0))
TAKEN = replace(FORWARD, time=3.0, process="2", marks=(STEP, 0, 0, 0))
SENT = entry(2.0, "stage_server/streams/sender.py", "send")
ELSEWHERE = entry(2.1, "coordinator/decide.py", "advance", process="3")
BEAT = entry(2.2, "stage_server/watching/traffic.py", "sent", thread="heartbeat")


def test_a_tensors_path_is_in_the_two_nodes_alone() -> None:
    found = [entry(0.5, "pipeline/plan.py", "order"), MADE, SENT, ELSEWHERE, BEAT, TAKEN, entry(4.0, "a.py", "late")]
    assert of_a_tensor(found) == [MADE, SENT, TAKEN]


def test_a_lost_nodes_path_begins_at_the_coordinator_and_ends_there() -> None:
    evidence = entry(1.0, "coordinator/membership.py", "peer_lost")
    resumed = entry(3.0, "coordinator/decide.py", "_resumed")
    found = [entry(0.1, "stage_server/node.py", "peer_lost"), evidence, SENT, resumed, entry(4.0, "a.py", "late")]
    assert of_a_lost_node(found) == [evidence, SENT, resumed]


def test_generated_stubs_and_tests_are_nobodys_reading() -> None:
    stub = entry(2.0, "protos/stage_pb2.py", "f")
    assert between([MADE, stub, TAKEN], MADE, TAKEN) == [MADE, TAKEN]


def test_a_file_is_told_once_and_as_handed_if_the_thing_itself_reached_it() -> None:
    handed = replace(SENT, function="_tensor", given="t")
    text = told("a path", [MADE, SENT, handed, replace(TAKEN, given="n")], "t")
    assert text.startswith("a path: 1 files handed, 2 entered\n  stage_server/streams/sender.py: _tensor")
