"""Rule 17: after the last commit a seeded copy counts once its node says, under the present plan, that it is there."""

from dataclasses import replace

import pytest

from culm.coordinator.commands import Command, Dismiss, Record
from culm.coordinator.decide import advance, begin, validate
from culm.coordinator.ending import LAST_CHECKPOINT_SECONDS, SPARE_SECONDS
from culm.coordinator.reports import (
    Available,
    CaughtUp,
    Checkpointed,
    Draining,
    Heartbeat,
    Joined,
    PeerLost,
    Ready,
    Report,
    StreamBroken,
    Tick,
)
from culm.coordinator.state import Phase, Settings, State
from culm.pipeline.money.kinds import RolledBack
from culm.pipeline.origin import Origin

SETTINGS = Settings(stages=2, microbatches=2, steps=1, nodes=3)
COSTS = (1.0,) * 4


def after(state: State, *reports: Report, now: float = 0.0) -> tuple[State, list[Command]]:
    commands: list[Command] = []
    for report in reports:
        state, more = advance(state, report, now)
        validate(state)
        commands.extend(more)
    return state, commands


def done(settings: Settings = SETTINGS) -> State:
    """n0 and n1 own a stage each of a run that is done; n2 is a spare."""
    state = committed(begun(settings))
    assert state.phase is Phase.DONE
    return state


def begun(settings: Settings) -> State:
    state = begin(settings)
    for node in ("n0", "n1", "n2"):
        state, _ = after(
            state,
            Joined(node=node, incarnation=1, address=f"{node}:1"),
            Available(node=node, incarnation=1, layer_costs=COSTS),
        )
    return state


def committed(state: State) -> State:
    """The state once the running step is."""
    assert state.plan is not None
    step = state.committed
    for s, stage in enumerate(state.plan.stages):
        for node in stage.holders():
            tallies = (1.0, 1.0) if s == 1 else ()
            state, _ = after(
                state,
                Ready(
                    node=node,
                    incarnation=1,
                    era=state.era,
                    step=step,
                    stage=s,
                    first_layer=stage.first_layer,
                    squared_norms=(1.0, 1.0),
                    tallies=tallies,
                ),
            )
    assert state.committed == step + 1
    return state


def done_with_a_copy_on_its_way() -> State:
    """n0 owns both stages of a run that is done; n2 is being seeded with them."""
    state, _ = after(done(), StreamBroken("n1", 1), PeerLost("n0", 1, "n1", 1, "the stream broke"))
    assert state.plan is not None
    assert state.plan.exposed() == (0, 1)
    return state


def test_a_late_report_of_the_last_step_makes_no_copy_hot() -> None:
    """The node may have lost since what it reported on: no commit shows that it still has it."""
    state = done_with_a_copy_on_its_way()
    state, _ = after(
        state,
        Ready(node="n2", incarnation=1, era=state.era, step=0, stage=0, first_layer=0, squared_norms=(1.0, 1.0)),
        Tick(),
    )
    assert state.plan is not None
    assert state.plan.exposed() == (0, 1)
    state, _ = after(
        state,
        CaughtUp(
            node="n2", incarnation=1, era=state.era, first_layer=0, end_layer=2, version=1, order=state.plan.order
        ),
    )
    assert state.plan is not None
    assert state.plan.exposed() == (1,)


def missed_for(state: State, seconds: float) -> State:
    """n2 and n0 do not reach each other, and everybody beats."""
    for i in range(round(2 * seconds)):
        told = [PeerLost("n2", 1, "n0", 1, "no stream"), PeerLost("n0", 1, "n2", 1, "no stream")]
        beats = [Heartbeat(node=node.node, incarnation=node.incarnation) for node in state.nodes.values()]
        state, _ = after(state, *told, *beats, Tick(), now=0.5 * i)
    return state


def test_who_cannot_be_seeded_over_a_broken_link_makes_room_for_a_node_that_is_free() -> None:
    state = done_with_a_copy_on_its_way()
    alone = missed_for(state, 200.0)
    assert sorted(alone.nodes) == ["n0", "n2"], "nobody else is there: it goes on trying"
    state, _ = after(
        state, Joined(node="n3", incarnation=1, address="n3:1"), Available(node="n3", incarnation=1, layer_costs=COSTS)
    )
    state = missed_for(state, 200.0)
    assert sorted(state.nodes) == ["n0", "n3"]
    assert state.plan is not None
    assert [[b.node for b in stage.standbys] for stage in state.plan.stages] == [["n3"], ["n3"]]


def test_who_is_to_go_goes_with_the_era_that_it_could_not_hand_over_in() -> None:
    state = done_with_a_copy_on_its_way()
    state, _ = after(state, Draining("n2", "its machine is to go"))
    assert "n2" in state.nodes
    state, commands = after(state, StreamBroken("n0", 1), PeerLost("n2", 1, "n0", 1, "the stream broke"))
    assert state.phase is Phase.WAITING
    assert state.nodes == {}
    assert ("n2", True) in [(c.node, c.goodbye) for c in commands if isinstance(c, Dismiss)]


def told_to_stop_after_the_last_commit(*seconds_left: float | None) -> State:
    """Every node, while the checkpoint of the last step is being written."""
    state = done(replace(SETTINGS, checkpoint_url="file:///runs"))
    for node, left in zip(("n0", "n1", "n2"), seconds_left or (None,) * 3, strict=True):
        state, commands = after(state, Draining(node, "it was told to stop", left, told=True))
        assert not any(isinstance(command, Dismiss) for command in commands)
    return state


def test_nodes_that_all_have_to_stop_stay_for_the_checkpoint_of_the_last_step() -> None:
    state, commands = after(told_to_stop_after_the_last_commit(), Tick())
    assert not any(isinstance(command, Dismiss) for command in commands)
    state, commands = after(state, Checkpointed(Origin(1, "file:///runs/step-00000001", "ab" * 32)), Tick())
    assert {c.node for c in commands if isinstance(c, Dismiss)} == {"n0", "n1", "n2"}
    assert (state.phase, state.committed) == (Phase.DONE, 1)
    assert state.ending.released


def test_a_storage_that_does_not_answer_does_not_keep_them() -> None:
    state, commands = after(told_to_stop_after_the_last_commit(), Tick(), now=LAST_CHECKPOINT_SECONDS)
    assert {c.node for c in commands if isinstance(c, Dismiss)} == {"n0", "n1", "n2"}
    assert state.committed == 0, "nothing is left but to train again"


@pytest.mark.parametrize("last", ["whole", "not whole"], ids="the last checkpoint is {}".format)
def test_a_run_whose_nodes_all_stop_loses_work_unless_a_last_checkpoint_is_whole(last: str) -> None:
    """The operator who stopped them is not to be told that all copies of a stage were lost at once."""
    state = committed(begun(replace(SETTINGS, steps=9, checkpoint_url="file:///runs")))
    for node in ("n0", "n1", "n2"):
        state, _ = after(state, Draining(node, "it was told to stop", told=True))
    state = committed(committed(state))  # the first of them asks for the checkpoint
    if last == "whole":
        state, commands = after(state, Checkpointed(Origin(2, "file:///runs/step-00000002", "ab" * 32)), Tick())
    else:
        state, commands = after(state, Tick(), now=LAST_CHECKPOINT_SECONDS)
    (back,) = [c.event for c in commands if isinstance(c, Record) and isinstance(c.event, RolledBack)]
    assert (back.step, back.work_lost) == ((2, 0) if last == "whole" else (0, 1))


@pytest.mark.parametrize(
    ("seconds_left", "kept"),
    [
        pytest.param((30.0, 25.0, 30.0), 25.0 - SPARE_SECONDS, id="the first deadline"),
        pytest.param((30.0, 9.0, 30.0), 9.0 - SPARE_SECONDS, id="a near one"),
        pytest.param((30.0, None, 30.0), LAST_CHECKPOINT_SECONDS, id="one does not say"),
        pytest.param((None, 9.0, 30.0), 9.0 - SPARE_SECONDS, id="one does not say, another is nearer"),
    ],
)
def test_nodes_that_all_have_to_stop_stay_for_as_long_as_they_all_can(
    seconds_left: tuple[float | None, ...], kept: float
) -> None:
    state = told_to_stop_after_the_last_commit(*seconds_left)
    for now in range(1, int(kept)):
        beats = [Heartbeat(node=node, incarnation=1) for node in state.nodes]
        state, commands = after(state, *beats, Tick(), now=float(now))
        assert not any(isinstance(command, Dismiss) for command in commands)
    state, commands = after(state, Tick(), now=kept)
    assert {c.node for c in commands if isinstance(c, Dismiss)} == {"n0", "n1", "n2"}
