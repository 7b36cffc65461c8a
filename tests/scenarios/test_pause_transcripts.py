"""Pauses, checkpoints that are asked for, and limits, as the coordinator decides them (rule 24)."""

from dataclasses import replace

import pytest

from culm.coordinator import reports
from culm.coordinator.decide import validate
from culm.coordinator.edges.persistence import from_document, to_document
from culm.coordinator.requests import Limits, Pausing, SaveAsked, Unpausing
from culm.pipeline.pause import Pause
from tests.scenarios.coordinator_play import CoordinatorPlay, check_transcript

URL = "file:///culm"


def nodes(count: int, **settings: object) -> CoordinatorPlay:
    play = CoordinatorPlay(stages=2, nodes=count, steps=9, **settings)  # type: ignore[arg-type]
    for i in range(count):
        play.join(f"n{i}")
    return play


def pause(play: CoordinatorPlay) -> None:
    play.report("ada asks for a pause", Pausing(Pause("ada", 1_000.0)))


def paused_and_let_go_on() -> CoordinatorPlay:
    play = nodes(2, checkpoint_url=URL)
    play.wait(0.1)
    pause(play)
    play.ready("n0", "n1")
    play.saved(1)
    play.wait(3600.0)
    play.beat("n0", "n1")
    play.tick()
    play.report("ada lets it go on", Unpausing("ada"))
    play.ready("n0", "n1")
    return play


def lost_in_a_pause() -> CoordinatorPlay:
    """The spare takes its place, and is hot without a commit."""
    play = nodes(3)
    pause(play)
    play.ready(*play.nodes())
    play.wait(0.5)
    play.lose("n1", "n0")
    play.caught_up()
    play.report("bob lets it go on", Unpausing("bob"))
    play.ready(*play.nodes())
    return play


def drained_in_a_pause() -> CoordinatorPlay:
    play = nodes(3)
    pause(play)
    play.ready(*play.nodes())
    play.report("n1 is given notice", reports.Draining("n1", "its machine is to go", 120.0))
    play.caught_up()
    return play


def every_copy_lost_in_a_pause() -> CoordinatorPlay:
    """The next era begins paused, from the checkpoint of the pause."""
    play = nodes(2, checkpoint_url=URL)
    pause(play)
    play.ready("n0", "n1")
    play.saved(1)
    play.lose("n1", "n0")
    play.lose("n0", "n1")
    play.join("n0")
    play.join("n1")
    play.report("ada lets it go on", Unpausing("ada"))
    return play


def pause_before_the_run_begins() -> CoordinatorPlay:
    play = CoordinatorPlay(stages=2, nodes=2)
    play.join("n0")
    pause(play)
    play.join("n1")
    play.report("ada lets it go on", Unpausing("ada"))
    play.ready("n0", "n1")
    return play


def pause_that_is_taken_back() -> CoordinatorPlay:
    play = nodes(2)
    pause(play)
    play.report("ada lets it go on", Unpausing("ada"))
    play.ready("n0", "n1")
    return play


def coordinator_started_again_in_a_pause() -> CoordinatorPlay:
    """The next one pauses no less, loses nobody, and lets the run go on once it has heard from the nodes."""
    play = nodes(2)
    pause(play)
    play.ready("n0", "n1")
    play.lines.append("       another coordinator reads what this one has persisted")
    plan = play.state.plan
    play.state = from_document(to_document(play.state), play.state.settings, 2, play.now, 7)
    validate(play.state)
    play.report("ada lets it go on, which is too early", Unpausing("ada"))
    for node in ("n0", "n1"):
        play.report(f"{node} joins", reports.Joined(node=node, incarnation=1, address=f"{node}:1"))
        here = reports.Available(
            node=node,
            incarnation=1,
            layer_costs=(1.0,) * 6,
            version=1,
            holds_state=True,
            plan=plan,
            last_commit=play.state.last_commit,
            layers=frozenset(range(6)),
        )
        play.report(f"{node} is at step 1, and begins no step", here)
    play.report("ada lets it go on", Unpausing("ada"))
    play.ready("n0", "n1")
    return play


def pause_that_only_nodes_remember() -> CoordinatorPlay:
    """The commit with the pause never came to Redis: the next coordinator hears of it from a node."""
    play = nodes(2)
    before = to_document(play.state)
    pause(play)
    play.ready("n0", "n1")
    plan, commit = play.state.plan, play.state.last_commit
    play.lines.append("       another coordinator reads what this one had persisted before")
    play.state = from_document(before, play.state.settings, 2, play.now, 7)
    for node in ("n0", "n1"):
        play.report(f"{node} joins", reports.Joined(node=node, incarnation=1, address=f"{node}:1"))
        here = reports.Available(
            node=node,
            incarnation=1,
            layer_costs=(1.0,) * 6,
            version=1,
            holds_state=True,
            plan=plan,
            last_commit=commit,
            layers=frozenset(range(6)),
        )
        play.report(f"{node} is at step 1, and begins no step", here)
    assert play.state.pause == Pause("ada", 1_000.0)
    return play


def checkpoint_now() -> CoordinatorPlay:
    """It is asked for once more where a node is lost that may not have written its share."""
    play = nodes(3, checkpoint_url=URL)
    play.report("ada asks for a checkpoint", SaveAsked("ada"))
    play.ready(*play.nodes())
    play.lose("n1", "n0")
    play.ready(*play.nodes())
    play.saved(2)
    play.ready(*play.nodes())
    return play


def budget_that_is_reached() -> CoordinatorPlay:
    """The run pauses, and its nodes are let go an hour later; it goes on with a higher budget and other nodes."""
    play = nodes(2, checkpoint_url=URL, limits=Limits(budget=25.0))
    play.spent(0.0, "n1")
    play.wait(1.0)
    play.spent(0.1)
    play.ready("n0", "n1")
    play.wait(1.0)
    play.spent(25.04)
    play.ready("n0", "n1")
    play.saved(2)
    for _ in range(1800):
        play.wait(2.0)
        play.beat("n0", "n1")
    play.tick()
    play.join("n0")
    play.report("ada gives it 50 $", Unpausing("ada", budget=50.0))
    play.join("n0")
    play.join("n1")
    return play


def time_to_stop() -> CoordinatorPlay:
    """It counts once: the run goes on beyond it when somebody says so."""
    play = nodes(2, limits=Limits(stop_at=3600.0))
    play.now = 3599.0
    play.beat("n0", "n1")
    play.spent(1.0)
    play.now = 3600.0
    play.spent(1.0)
    play.ready("n0", "n1")
    play.report("ada lets it go on", Unpausing("ada"))
    play.now = 3601.0
    play.spent(1.0)
    return play


def node_without_a_price() -> CoordinatorPlay:
    """It joins a run with a budget that has begun."""
    play = nodes(2, limits=Limits(budget=25.0))
    play.spent(0.0)
    play.join("n2")
    play.spent(0.1, "n2")
    play.spent(0.2, "n2")
    return play


SCENARIOS = {
    f.__name__: f
    for f in (
        paused_and_let_go_on,
        lost_in_a_pause,
        drained_in_a_pause,
        every_copy_lost_in_a_pause,
        pause_before_the_run_begins,
        pause_that_is_taken_back,
        coordinator_started_again_in_a_pause,
        pause_that_only_nodes_remember,
        checkpoint_now,
        budget_that_is_reached,
        time_to_stop,
        node_without_a_price,
    )
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_transcript(name: str, request: pytest.FixtureRequest) -> None:
    check_transcript(name, SCENARIOS[name](), request.config.getoption("--rewrite"))


def test_a_store_that_forgets_the_pause_is_found() -> None:
    """The plan tells it as well: what says otherwise is no state of a coordinator."""
    play = nodes(2)
    pause(play)
    play.ready("n0", "n1")
    with pytest.raises(AssertionError):
        validate(replace(play.state, pause=None))
