"""A pause where it meets something else: the end, a store, an early end of its nodes, a plan on the wire."""

from dataclasses import replace

from culm.coordinator import reports, saving
from culm.coordinator import state as co
from culm.coordinator.edges.persistence import from_document, to_document, without_volatile
from culm.coordinator.requests import Limits, Pausing, SaveAsked, Saving, Unpausing
from culm.pipeline.pause import Pause
from culm.pipeline.plan import StagePlan, Standby
from culm.pipeline.plan_bounds import plan_problem
from culm.pipeline.plan_codec import plan_from_proto, plan_to_proto
from tests.scenarios.coordinator_play import CoordinatorPlay

URL = "file:///culm"
ADA = Pause("ada", 1_000.0)


def play(steps: int = 9, url: str = URL) -> CoordinatorPlay:
    made = CoordinatorPlay(stages=2, nodes=2, steps=steps, checkpoint_url=url)
    for node in ("n0", "n1"):
        made.join(node)
    return made


def paused(url: str = URL) -> CoordinatorPlay:
    made = play(url=url)
    made.report("a pause", Pausing(ADA))
    made.ready("n0", "n1")
    return made


def test_a_pause_goes_through_the_store_and_over_the_wire() -> None:
    state = paused().state
    state = replace(state, limits=Limits(50.0, 7.0))
    back = from_document(to_document(state), state.settings, 1, 0.0, state.leader)
    assert back.pause == ADA
    assert back.phase is co.Phase.PAUSED
    assert without_volatile(back).limits == Limits(50.0, 7.0)
    assert state.plan is not None
    message = plan_to_proto(state.plan)
    assert plan_from_proto(message).pause == ADA
    assert plan_problem(message, 6, 9, 1) == ""
    message.pause.since = float("nan")
    assert "when the run was paused" in plan_problem(message, 6, 9, 1)


def test_an_older_store_knows_no_pause() -> None:
    document = to_document(play().state)
    del document["pause"], document["limits"]
    back = from_document(document, play().state.settings, 2, 0.0)
    assert (back.pause, back.limits) == (None, None)


def test_the_last_commit_pauses_nothing() -> None:
    run = play(steps=1)
    run.report("a pause", Pausing(ADA))
    run.ready("n0", "n1")
    assert run.state.phase is co.Phase.DONE
    assert run.state.pause is None


def test_the_first_word_counts() -> None:
    run = paused()
    run.report("another one", Pausing(Pause("bob", 2_000.0)))
    assert run.state.pause == ADA


def test_a_pause_is_no_stall() -> None:
    run = paused()
    for _ in range(100):
        run.wait(60.0)
        run.beat("n0", "n1")
        run.tick()
    assert run.state.watch.stalled == ""
    assert not any("stalled" in line for line in run.lines)


def test_nothing_is_committed_in_a_pause_whatever_nodes_say() -> None:
    run = paused()
    run.ready("n0", "n1")
    assert run.state.committed == 1
    run.report("it goes on", Unpausing("ada"))
    assert run.state.committed == 2, "all that the commit needs was on record"


def test_in_a_pause_the_nodes_are_saving_already() -> None:
    run = paused()
    assert saving.step_of(run.state) == 1
    found = []
    for _ in range(2):
        run.report("a checkpoint", SaveAsked("ada"))
        found.append(run.state.saving)
        run.saved(1)
    assert found == [Saving(1), None], "it is whole by then"


def test_who_lets_it_go_on_too_soon_gets_the_checkpoint_of_the_next_commit() -> None:
    run = paused()
    run.report("a checkpoint", SaveAsked("ada"))
    run.report("it goes on", Unpausing("ada"))
    assert saving.is_due(run.state)
    run.ready("n0", "n1")
    assert run.state.last_commit is not None
    assert run.state.last_commit.save


def test_without_a_place_for_checkpoints_none_is_asked_for() -> None:
    run = play(url="")
    run.report("a checkpoint", SaveAsked("ada"))
    assert run.state.saving is None


def test_every_node_that_is_told_to_stop_in_a_pause_stays_for_its_checkpoint() -> None:
    run = paused()
    for node in ("n0", "n1"):
        run.report(f"{node} is told", reports.Draining(node, "it was told to stop", 25.0, told=True))
    assert run.state.nodes
    run.saved(1)
    run.tick()
    assert not run.state.nodes
    assert (run.state.phase, run.state.pause) == (co.Phase.WAITING, ADA)
    assert run.state.origin.step == 1


def test_stages_to_be_stay_in_a_pause_until_a_node_that_they_need_goes() -> None:
    """Its goodbye left them with a node that was gone."""
    run = CoordinatorPlay(stages=2, nodes=3, steps=9)
    for node in ("n0", "n1", "n2"):
        run.join(node)
    run.report("a pause", Pausing(ADA))
    run.ready("n0", "n1")
    assert run.state.plan is not None
    target = (StagePlan(0, 6, ("n1",), (Standby("n2", hot=False),)),)
    run.state = replace(run.state, plan=replace(run.state.plan, target=target))
    targets = []
    for words, report in (
        ("time passes", reports.Tick()),
        ("n1 is given notice", reports.Draining("n1", "its machine is to go", 120.0)),
    ):
        run.report(words, report)
        plan = run.state.plan
        targets.append(plan.target if plan is not None else None)
    assert targets == [target, ()]
    run.caught_up()
    assert "n1" not in run.state.nodes
