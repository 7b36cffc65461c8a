"""Incidents, folded from the event log."""

from datetime import UTC

import pytest

from culm.protos import coordinator_pb2 as pb
from culm.ui.incident_facts import facts
from tests.unit.test_ui_history import START, a_run_with_a_lost_node, event, folded, plan


def test_a_lost_node_is_told_with_all_its_times() -> None:
    (lost,) = folded(a_run_with_a_lost_node()).incidents
    assert (lost.sequence, lost.node, lost.kind, lost.step, lost.why) == (9, "n0", "lost", 4, "its stream broke")
    assert (lost.detect_ms, lost.resume_ms, lost.redone) == (40.0, 50.0, 3)
    assert lost.promote_ms == pytest.approx(10.0, abs=0.01)
    assert lost.recovered_ms == pytest.approx(1500.0)
    assert lost.restored_ms == pytest.approx(3000.0)


def test_what_is_to_be_done_is_said() -> None:
    def to_do(events: list[pb.ListEventsResponse], over: bool = False) -> str:
        (lost,) = folded(events).incidents
        return dict(facts(lost, None, over, UTC))["to be done"]

    events = a_run_with_a_lost_node()
    gone = next(i for i, each in enumerate(events) if each.kind == "lost")
    assert to_do(events[: gone + 1]).startswith("add a node, if none comes by itself")
    assert to_do(events).startswith("nothing now; another node would")
    assert to_do([*events, event(40, 30.0, "joined", 5, node="n0", incarnation=7)]) == "nothing: n0 is back"
    assert to_do(events, over=True) == "nothing: the run is over"


def test_all_its_moments_count_from_its_last_sign_of_life() -> None:
    (lost,) = folded(a_run_with_a_lost_node()).incidents
    assert lost.origin == pytest.approx(START + 6.46)
    told = {what: round(ms) for what, ms in lost.moments()}
    assert told == {
        "declared lost": 40,
        "plan without it": 50,
        "its heir begins": 90,
        "step committed": 1540,
        "redundancy restored": 3040,
    }
    assert [entry.kind for entry in lost.story] == ["lost", "plan", "resumed", "recovered", "plan"]


def test_a_node_that_was_given_notice_and_handed_over_is_no_loss() -> None:
    history = folded(
        [
            *a_run_with_a_lost_node(),
            event(15, 10, "draining", 5, node="n1", why="AWS will terminate it"),
            event(16, 12.5, "left", 6, node="n1", why="AWS will terminate it"),
        ]
    )
    last = history.incidents[-1]
    assert (last.node, last.kind, last.notice_seconds, last.redone) == ("n1", "handover", 2.5, 0)
    assert last.title == "n1 handed over and left"


def test_nodes_that_leave_a_run_that_is_over_are_no_incidents() -> None:
    events = [event(15, 10, "done", 10, step=10), *(event(16 + i, 11, "left", 10, node=f"n{i}") for i in (1, 2))]
    assert len(folded([*a_run_with_a_lost_node(), *events]).incidents) == 1


def test_a_rollback_belongs_to_the_lost_node_that_led_to_it() -> None:
    events = a_run_with_a_lost_node()[:9]
    events += [event(10, 6.6, "rollback", 2, step=2, era=1), event(11, 8.0, "commit", 3, step=2, loss=1.8)]
    (incident,) = folded(events).incidents
    assert (incident.kind, incident.node, incident.step) == ("rollback", "n0", 2)
    assert incident.resume_ms == pytest.approx(1500.0)
    assert incident.title == "The run went back to step 2"


def test_a_rollback_long_after_a_lost_node_is_one_of_its_own() -> None:
    history = folded([*a_run_with_a_lost_node(), event(15, 20, "rollback", 2, step=2)])
    assert [i.kind for i in history.incidents] == ["lost", "rollback"]


def test_another_coordinator_and_a_stall_are_incidents_until_the_next_commit() -> None:
    events = [
        *a_run_with_a_lost_node(),
        event(15, 12, "recovered_coordinator", 5),
        event(16, 13, "commit", 6, step=5, loss=1.5),
        event(17, 20, "stalled", 6, step=6, awaited="n2 with stage 1"),
        event(18, 22, "moving", 7, stalled_seconds=9.0),
    ]
    coordinator, stall = folded(events).incidents[1:]
    assert (coordinator.kind, stall.kind) == ("coordinator", "stall")
    assert coordinator.resume_ms == pytest.approx(1000.0)
    assert coordinator.detect_ms == pytest.approx(2500.0), "since the last event before"
    assert stall.detect_ms == pytest.approx(7000.0), "since the last commit"
    assert stall.resume_ms == pytest.approx(2000.0)


def test_a_coordinator_that_takes_over_is_named_where_the_log_names_it() -> None:
    older = event(15, 12, "recovered_coordinator", 5)
    named = event(16, 13, "recovered_coordinator", 5, coordinator="culm-0")
    titles = [each.title for each in folded([*a_run_with_a_lost_node(), older, named]).incidents[1:]]
    assert titles == ["Another coordinator took over", "Coordinator culm-0 took over"]


def test_what_it_cost_is_found_by_its_node_and_time() -> None:
    (lost,) = folded(a_run_with_a_lost_node()).incidents
    charges = [
        pb.InterruptionCost(kind="lost", node="n1", time=lost.time, dollars=9.0),
        pb.InterruptionCost(kind="lost", node="n0", time=lost.time + 50, dollars=8.0),
        pb.InterruptionCost(kind="lost", node="n0", time=lost.time, dollars=0.5),
    ]
    found = lost.charge(charges)
    assert found is not None
    assert found.dollars == 0.5
    assert lost.charge(charges[:2]) is None


def test_copies_at_peers_count_as_redundancy() -> None:
    peers = [[0, 2, ["n1", "n2"], []], [2, 4, ["n2", "n1"], []]]
    events = [*a_run_with_a_lost_node()[:9], plan(10, 6.51, 4, peers)]
    assert folded(events).incidents[0].restored_ms == pytest.approx(10.0, abs=0.01)


def test_a_node_that_computed_wrongly_is_one_incident_with_its_rollback_and_its_loss() -> None:
    events = [
        *a_run_with_a_lost_node(),
        event(15, 12, "differed", 5, step=5, what="an output", found="n1"),
        event(16, 12, "rollback", 2, step=2, era=1),
        event(17, 12, "lost", 2, node="n1", evidence="it computes wrongly", detect_ms=200.0),
        event(18, 13, "joined", 2, node="n1", incarnation=2),
        plan(19, 14, 5, [[0, 2, ["n1"], [["n2", True]]], [2, 4, ["n2"], [["n1", True]]]]),
        event(20, 15, "commit", 3, step=2, loss=1.8),
        event(21, 20, "lost", 3, node="n1", evidence="its stream broke", detect_ms=40.0),
    ]
    differed, lost = folded(events).incidents[1:]
    assert (differed.kind, differed.node, differed.step, differed.back_to) == ("differed", "n1", 5, 2)
    assert differed.title == "n1 computed wrongly"
    assert differed.lost
    assert [entry.kind for entry in differed.story] == ["differed", "rollback", "lost", "joined", "plan"]
    told = ["found", "new plan", "training goes on", "redundancy restored", "n1 is back"]
    assert [what for what, _ in differed.moments()] == told
    assert differed.resume_ms == pytest.approx(3000.0)
    assert (lost.kind, lost.why) == ("lost", "its stream broke"), "a later loss is one of its own"
    charge = pb.InterruptionCost(kind="rollback", time=differed.time, dollars=0.5)
    assert differed.charge([charge]) is charge


def test_where_nobody_can_say_who_computes_wrongly_no_node_counts_as_lost() -> None:
    events = [
        *a_run_with_a_lost_node(),
        event(15, 12, "differed", 5, step=5, what="an output", nodes="n1, n2", found=""),
        event(16, 12, "failed", 5, step=5),
    ]
    differed = folded(events).incidents[-1]
    assert (differed.title, differed.lost, differed.back_to) == ("Nodes computed differently", False, None)
    assert [entry.kind for entry in differed.story] == ["differed", "failed"]
