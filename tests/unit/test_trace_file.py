"""A trace that Perfetto opens."""

import json
from itertools import pairwise
from typing import Any

from culm.pipeline.timetable import Timetable
from culm.pipeline.trace_file import COMPUTE, NETWORK, trace
from tests.unit.hand_made import a_step


def events(*timetables: Timetable) -> list[dict[str, Any]]:
    written = json.loads(json.dumps(trace(timetables), allow_nan=False))
    assert written["displayTimeUnit"] == "ms"
    found: list[dict[str, Any]] = written["traceEvents"]
    return found


def test_every_event_has_what_the_format_asks_for() -> None:
    for event in events(a_step()):
        assert {"ph", "name", "pid", "tid"} <= set(event)
        assert event["ph"] in "MXibe"
        if event["ph"] != "M":
            assert event["ts"] > -1e6
        if event["ph"] == "X":
            assert event["dur"] >= 0


def test_a_node_is_a_process_and_its_compute_thread_does_one_thing_at_a_time() -> None:
    found = events(a_step())
    names = {e["args"]["name"]: e["pid"] for e in found if e["name"] == "process_name"}
    assert set(names) == {"run", "n0", "n1", "ideal of step 7"}
    for node, ran in (("n0", ["0F0", "0F1", "0B0", "0B1"]), ("n1", ["1F0", "1B0", "1F1", "1B1"])):
        own = [e for e in found if (e["ph"], e["pid"], e["tid"]) == ("X", names[node], COMPUTE)]
        assert [e["name"] for e in own if "microbatch" in e["args"]] == ran
        assert all(a["ts"] + a["dur"] <= b["ts"] + 1e-3 for a, b in pairwise(own))


def test_tensors_travel_from_the_end_of_their_work() -> None:
    found = [e for e in events(a_step()) if e["tid"] == NETWORK and e["ph"] in "be"]
    assert len(found) == 8
    begin, end = (e for e in found if e["id"] == "n1.7.0")
    assert (begin["name"], round(begin["ts"]), round(end["ts"])) == ("0F0", 1_000_000, 1_100_000)


def test_no_steps_are_an_empty_trace() -> None:
    assert [e["name"] for e in events()] == ["process_name", "thread_name"]
