"""How a run stands, in words."""

import math
from dataclasses import replace

from culm.pipeline.money.codec import of_message
from culm.protos import coordinator_pb2 as pb
from culm.ui.look import Look
from culm.ui.recorded import Replay
from culm.ui.screens.cost import told
from culm.ui.standing import alerts, is_done, is_over, result, standing
from culm.ui.words import money
from tests.unit.test_ui_history import ALONE, START, a_run_with_a_lost_node, event, plan


def look(*more: pb.ListEventsResponse, at: float = 20.0) -> Look:
    replay = Replay("gpt")
    for each in [*a_run_with_a_lost_node(), *more]:
        replay.take(of_message(each))
    return replay.look(START + at)


DONE = event(20, 12, "done", 10, step=10)
CHECKPOINT = event(19, 11, "checkpoint", 10, step=5, folder="s3://runs/5")


def test_a_run_that_goes_on() -> None:
    now = standing(look(at=9.5))
    assert (now.word, now.tone, now.name) == ("running", "good", "gpt")
    assert now.told.startswith("step 5 of 10, about")
    assert not is_over(look())


def test_of_a_run_whose_coordinator_is_away_only_the_past_is_told() -> None:
    now = standing(replace(look(at=9.5), problem="The coordinator does not answer."))
    assert (now.word, now.tone) == ("no answer", "leaving")
    assert now.told == "step 5 of 10 when it last answered", "nobody knows how long the rest takes"
    told = alerts(replace(look(at=9.5), problem="The coordinator does not answer."))
    assert told[0] == ("leaving", "The coordinator does not answer. It last answered at 1970-01-12 13:46:49.")


def test_the_weights_may_still_be_there_when_the_coordinator_is_not() -> None:
    away = replace(look(DONE), problem="The coordinator does not answer.")
    away.status.nodes.add(id="n0")
    assert dict(result(away))["weights"].startswith("on the nodes, when the coordinator was last heard")


def test_a_finished_run_is_a_success_whoever_has_gone() -> None:
    done = look(DONE)
    gone = replace(done, status=pb.GetStatusResponse(job="gpt", phase="done", step=10, steps=10, detail="no node"))
    for each in (done, gone, replace(gone, problem="The coordinator does not answer.")):
        assert is_done(each)
        assert standing(each).word == "finished"
        assert standing(each).tone == "good"
        assert "steps, after 11 s" in standing(each).told
        assert not [words for tone, words in alerts(each) if tone in ("bad", "leaving")]


def test_while_nobody_knows_what_a_run_has_cost_no_money_is_told() -> None:
    waits = replace(look(DONE), cost=pb.GetCostResponse(dollars=math.nan))  # until Redis is read
    assert standing(waits).told == "5 steps, after 11 s"
    assert dict(result(waits))["cost"] == "no price is known"
    assert told(waits)[-1] == ("Lost to interruptions", "–", "")
    assert money(math.nan) == "–"


def test_what_there_is_of_a_finished_run() -> None:
    told = dict(result(look(CHECKPOINT, DONE)))
    assert told["weights"] == "in the checkpoint s3://runs/5"
    assert told["ended"] == "1970-01-12 13:46:52, 11 s after the first plan"
    assert told["nodes lost"] == "1; handed over in time: 0"
    assert told["cost"] == "no price is known"


def test_where_the_weights_are() -> None:
    done = look(DONE)
    assert dict(result(done))["weights"].startswith("the nodes have gone")
    kept = pb.GetStatusResponse()
    kept.CopyFrom(done.status)
    kept.kept_seconds = 3600.0
    assert "on the nodes, for 1 h 0 min more" in dict(result(replace(done, status=kept)))["weights"]
    fetched = look(DONE, event(21, 13, "fetched", 10, who="culm weights"))
    assert dict(result(fetched))["weights"] == "fetched, because"


def test_money_stands_still_when_the_run_is_over() -> None:
    assert look(DONE, at=20.0).cost.dollars == look(DONE, at=9_999.0).cost.dollars


def test_a_run_that_failed_says_why() -> None:
    failed = look(event(20, 12, "failed", 5, node="n1", why="ValueError"))
    assert (standing(failed).word, standing(failed).tone) == ("failed", "bad")
    assert alerts(failed) == [("bad", "The run failed: failed, because")]
    assert "training did not come to its end" in dict(result(failed))["weights"]


def test_a_failed_run_whose_job_was_mended_runs_again() -> None:
    mended = [
        event(20, 12, "failed", 5, node="n1", why="ValueError"),
        event(21, 13, "recovered_coordinator", 5),
        plan(22, 14, 5, ALONE),
    ]
    again = look(*mended, at=14.0)
    again.status.stalled_seconds = 400.0
    assert not is_over(again)
    assert standing(again).word == "stalled"
    assert next(words for _, words in alerts(again)).startswith("No commit for 6 min 40 s.")
    assert again.history.failed is None, "nor does it say so once the coordinator is away, or on the page Runs"
    assert not is_over(replace(again, problem="The coordinator does not answer."))


def test_a_coordinator_that_answers_knows_better_than_the_log_whether_a_run_is_over() -> None:
    failed = look(event(20, 12, "failed", 5, node="n1", why="ValueError"))
    answered = replace(failed, status=pb.GetStatusResponse(job="gpt", phase="running", step=5, steps=10))
    assert not is_over(answered)
    assert is_over(replace(answered, problem="The coordinator does not answer."))


def test_what_everybody_has_to_know() -> None:
    status = pb.GetStatusResponse(phase="running", steps=10, stalled_seconds=9.0, awaited="n2", checkpoint_fault="full")
    status.nodes.extend(pb.NodeStatus(id=f"n{i}") for i in range(200))
    status.exposure.update({s: float(s) for s in range(200)})
    told = [words for _, words in alerts(Look(status=status, problem="No answer."))]
    assert told[:3] == ["No answer.", "No commit for 9 s. Waiting for n2", "No checkpoint can be written: full"]
    assert told[3].endswith("stage 196 for 3 min 16 s, and 195 more stages")


def test_the_last_node_of_several_is_said_to_have_no_standby() -> None:
    alone = look(event(20, 10, "lost", 5, node="n1", incarnation=2), at=15.0)
    assert [node.id for node in alone.status.nodes] == ["n2"]
    alone.status.exposure.update({0: 5.0, 1: 5.0})
    assert ("leaving", "Without a hot standby: stage 0 for 5.0 s, stage 1 for 5.0 s") in alerts(alone)
    begun_alone = Look(status=alone.status)
    assert alerts(begun_alone) == [], "a run of one node is to have no standby"


def test_a_run_that_stands_still_names_some_of_those_that_it_waits_for() -> None:
    stalled = look(at=9.5)
    stalled.status.stalled_seconds = 400.0
    stalled.status.awaited = "; ".join(f"n{i} with stage 0 (in 2B3 for 9 s)" for i in range(192))
    (words,) = [words for tone, words in alerts(stalled) if tone == "bad"]
    assert words.startswith("No commit for 6 min 40 s. Waiting for n0 with stage 0 (in 2B3 for 9 s); n1 with")
    assert words.endswith("n3 with stage 0 (in 2B3 for 9 s); and 188 more")
    assert "left" not in standing(stalled).told, "nobody knows when it goes on"


def test_before_anything_is_known() -> None:
    assert standing(Look(problem="No coordinator answers yet.")).word == "no answer"
    assert standing(Look(status=pb.GetStatusResponse(phase="waiting", detail="waiting for 2"))).word == "waiting"


def test_a_log_that_breaks_off() -> None:
    assert standing(replace(look(), ended=True)).word == "broke off"
