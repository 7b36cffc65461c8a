"""The alerts of the dashboard: the same as those of deploy/monitoring, and when each fires."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from culm.pipeline.money.codec import of_message
from culm.protos import coordinator_pb2 as pb
from culm.ui.alert_rules import DOLLARS_AN_HOUR, EXPOSED_SECONDS, RULES, evaluate
from culm.ui.history import History
from culm.ui.look import Firing, Look
from tests.unit.test_ui_history import START, event, plan

ALERTS = Path(__file__).parents[2] / "deploy" / "monitoring" / "alerts.yml"
WHOLE = [[0, 2, ["n0"], [["n1", True]]], [2, 4, ["n1"], [["n0", True]]]]
UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
MINUTE = 60.0


def test_the_rules_are_those_of_prometheus() -> None:
    told = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
    theirs = [
        (
            rule["alert"],
            rule["labels"]["severity"],
            float(rule["for"][:-1]) * UNITS[rule["for"][-1]] if "for" in rule else 0.0,
            rule["annotations"]["summary"],
        )
        for rule in told
    ]
    assert [(rule.name, rule.severity, rule.seconds, rule.summary) for rule in RULES] == theirs
    exprs = {rule["alert"]: rule["expr"] for rule in told}
    assert exprs["CulmStageExposed"].endswith(f"> {EXPOSED_SECONDS:g}")
    assert exprs["CulmTooExpensive"].endswith(f"> {DOLLARS_AN_HOUR:g}")


def history(*events: pb.ListEventsResponse) -> History:
    found = History()
    for each in events:
        found.take(of_message(each))
    return found


def a_run(*more: pb.ListEventsResponse) -> History:
    joined = [event(i + 1, 0.0, "joined", node=f"n{i}", incarnation=1, zone="a", address="h:1") for i in range(3)]
    return history(*joined, plan(4, 1.0, 0, WHOLE), event(5, 2.0, "commit", 1, step=0, loss=1.0), *more)


def look(found: History, at: float, **status: object) -> Look:
    whole = {"phase": "running", "step": 1, "steps": 10, **status}
    made = pb.GetStatusResponse(**whole)  # type: ignore[arg-type]
    if "nodes" not in status:
        made.nodes.extend(pb.NodeStatus(id=f"n{i}", state="active") for i in range(3))
    return Look(status=made, history=found, at=START + at)


def firing(seen: Look, now: float | None = None) -> list[str]:
    found, _ = evaluate(seen, seen.at if now is None else START + now, {})
    return [alert.name for alert in found]


def test_a_calm_run_wakes_nobody() -> None:
    assert firing(look(a_run(), 30.0)) == []


def test_a_coordinator_that_is_away() -> None:
    gone = replace(look(a_run(), 100.0, stalled_seconds=99.0), problem="It does not answer.")
    assert firing(gone, 130.0) == []
    assert firing(gone, 161.0) == ["CulmCoordinatorAway"], "of all else nothing is known"
    over = replace(look(a_run(event(6, 3.0, "done", 1, step=1)), 10.0), problem="It does not answer.")
    assert firing(over, 9_999.0) == [], "a run that is over needs none"


def test_one_that_never_answered_is_away_from_the_first_look_on() -> None:
    never = Look(problem="No coordinator answers yet.")
    found, pending = evaluate(never, START, {})
    assert found == ()
    found, _ = evaluate(never, START + 60.0, pending)
    assert found == (Firing(RULES[0].name, "page", RULES[0].summary, START),)


def test_a_run_that_stands_still() -> None:
    stalled = a_run(event(6, 50.0, "stalled", 1, step=1, awaited="n2"))
    assert firing(look(stalled, 60.0, stalled_seconds=58.0)) == []
    assert firing(look(stalled, 81.0, stalled_seconds=79.0)) == ["CulmStalled"]
    assert firing(look(stalled, 81.0)) == [], "it moves again"


def test_a_run_that_waits_for_nodes() -> None:
    waits = a_run(event(6, 100.0, "waiting", 1))
    assert "CulmWaitingForNodes" not in firing(look(waits, 390.0, phase="waiting"))
    assert "CulmWaitingForNodes" in firing(look(waits, 401.0, phase="waiting"))


def test_a_paused_run_whose_nodes_were_let_go_waits_for_none() -> None:
    paused = [event(6, 10.0, "paused", 1, who="", why="its budget is spent"), event(7, 20.0, "rollback", 1, step=1)]
    waits = look(a_run(*paused), 401.0, phase="waiting", pause=pb.Pause(why="its budget is spent"))
    assert "CulmWaitingForNodes" not in firing(waits)
    unpaused = a_run(*paused, event(8, 400.0, "unpaused", 1, who="me"))
    assert "CulmWaitingForNodes" not in firing(look(unpaused, 401.0, phase="waiting")), "nodes have their time to come"
    assert "CulmWaitingForNodes" in firing(look(unpaused, 701.0, phase="waiting"))


def test_no_commit_for_long() -> None:
    assert firing(look(a_run(), 15 * MINUTE)) == []
    assert firing(look(a_run(), 2.0 + 16 * MINUTE)) == ["CulmNoCommit"]
    assert firing(look(a_run(), 2.0 + 16 * MINUTE, step=10)) == []


def test_a_paused_run_commits_nothing_and_is_looked_at_once_it_goes_on() -> None:
    paused = event(6, 10.0, "paused", 1, who="me", why="the price")
    assert firing(look(a_run(paused), 60 * MINUTE, pause=pb.Pause(why="the price"))) == []
    goes_on = a_run(paused, event(7, 60 * MINUTE, "unpaused", 1, who="me"))
    assert firing(look(goes_on, 75 * MINUTE)) == []
    assert firing(look(goes_on, 76 * MINUTE)) == ["CulmNoCommit"]


LOST = event(6, 100.0, "lost", 1, node="n2", stages="", detect_ms="40.0", evidence="its stream broke")
BACK = event(7, 400.0, "joined", node="n2", incarnation=2, zone="a", address="h:1")


def test_a_lost_node_that_is_not_replaced() -> None:
    commits = [event(10 + i, 300.0 * i, "commit", 2 + i, step=1 + i, loss=1.0) for i in range(1, 20)]
    two = [pb.NodeStatus(id=f"n{i}", state="active") for i in range(2)]
    assert firing(look(a_run(LOST, *commits), 600.0, nodes=two)) == []
    found, _ = evaluate(look(a_run(LOST, *commits), 701.0, nodes=two), START + 701.0, {})
    assert [alert.summary for alert in found] == [
        "A lost node was not replaced: 2 are left. Start another one, or see why none joins."
    ]
    assert firing(look(a_run(LOST, BACK, *commits), 1_000.0)) == []
    assert firing(look(a_run(LOST, *commits), 100.0 + 3_700.0, nodes=two)) == [], "after an hour it is the new usual"


def test_a_stage_without_a_standby() -> None:
    assert firing(look(a_run(), 30.0, exposure={0: 100.0})) == []
    found, _ = evaluate(look(a_run(), 30.0, exposure={0: 0.0, 1: 150.0}), START + 30.0, {})
    assert [alert.summary for alert in found] == ["A stage has had no hot standby for 2 min 30 s. Add a node."]


def test_no_storage() -> None:
    fault = a_run(event(6, 10.0, "checkpoint_fault", 1, node="n1", step=1, why="denied"))
    assert firing(look(fault, 200.0, checkpoint_fault="denied")) == []
    assert firing(look(fault, 320.0, checkpoint_fault="denied")) == ["CulmCheckpointStorageAway"]


def test_a_rollback_is_told_for_ten_minutes() -> None:
    back = a_run(event(6, 100.0, "rollback", 0, era=1, step=0), event(7, 101.0, "commit", 1, step=0, loss=1.0))
    assert firing(look(back, 130.0)) == ["CulmRolledBack"]
    assert firing(look(back, 701.0)) == []


def test_a_rollback_that_lost_no_work_is_not_told() -> None:
    stopped = a_run(event(6, 100.0, "rollback", 1, era=1, step=1, work_lost=0))
    assert "CulmRolledBack" not in firing(look(stopped, 130.0))


def test_money() -> None:
    def at(now: float, per_hour: float) -> Look:
        cost = pb.GetCostResponse(nodes=[pb.NodeCost(node="n0", joined=START, price_per_hour=per_hour)])
        commit = event(6, now, "commit", 2, step=1, loss=1.0)
        return replace(look(a_run(commit), now), cost=cost)

    assert firing(at(20 * MINUTE, 120.0)) == [], "it has not been so for long enough"
    assert firing(at(31 * MINUTE, 120.0)) == ["CulmTooExpensive"]
    assert firing(at(31 * MINUTE, 90.0)) == []
    found, _ = evaluate(at(31 * MINUTE, 120.0), START + 31 * MINUTE, {})
    assert found[0].summary.startswith("The run costs $120 an hour, more than planned.")


def test_a_run_that_is_done_and_costs() -> None:
    done = a_run(event(6, 10.0, "done", 10, step=10))
    assert firing(look(done, 20 * MINUTE, phase="done", step=10)) == []
    assert firing(look(done, 31 * MINUTE, phase="done", step=10)) == ["CulmDoneAndRunning"]
    assert firing(look(done, 31 * MINUTE, phase="done", step=10, nodes=[])) == []


def test_those_that_wake_somebody_come_first() -> None:
    seen = look(a_run(), 2.0 + 16 * MINUTE, exposure={0: 150.0})
    assert firing(seen) == ["CulmNoCommit", "CulmStageExposed"]


@pytest.mark.parametrize(("kind", "phase"), [("done", "done"), ("failed", "failed")])
def test_of_a_run_that_is_over_nobody_is_to_mend_anything(kind: str, phase: str) -> None:
    over = a_run(event(6, 10.0, kind, 1, step=1))
    assert firing(look(over, 2.0 + 20 * MINUTE, phase=phase, exposure={0: 150.0})) == []


def test_what_holds_no_more_is_forgotten() -> None:
    _, pending = evaluate(look(a_run(), 30.0, checkpoint_fault="full"), START + 30.0, {})
    assert set(pending) == {"CulmCheckpointStorageAway"}
    _, pending = evaluate(look(a_run(), 31.0), START + 31.0, pending)
    assert pending == {}


@pytest.mark.parametrize("phase", ["", "running"])
def test_nothing_is_said_before_the_log_is_read(phase: str) -> None:
    seen = replace(look(a_run(), 20 * MINUTE, phase=phase), reading=5)
    assert firing(seen) == []
