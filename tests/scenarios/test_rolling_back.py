"""From what an era begins where Redis is older than the checkpoints (rule 14)."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from culm.coordinator.commands import Command, FindCheckpoints, Publish, Record
from culm.coordinator.decide import advance, begin, validate
from culm.coordinator.edges.persistence import from_document, to_document
from culm.coordinator.reports import Available, CheckpointBad, CheckpointsFound, Joined, Report, Tick, Whole
from culm.coordinator.state import Phase, Settings, State
from culm.pipeline.identity import Identity
from culm.pipeline.origin import Origin

URL = "memory://c"
SETTINGS = Settings(stages=2, microbatches=1, steps=300, checkpoint_url=URL, searches=True)
CODE, OTHER = Identity({"code": "a" * 64}), Identity({"code": "b" * 64})
LATE = SETTINGS.patience.seconds + 1.0  # after a takeover: who has not come by now does not come


def origin(step: int) -> Origin:
    return Origin(step, f"{URL}/step-{step:08d}", f"{step:064d}")


def found(*steps: int, identity: Identity = CODE) -> CheckpointsFound:
    return CheckpointsFound(tuple(Whole(origin(step), identity) for step in steps))


def after(state: State, *reports: Report, now: float = 0.0) -> tuple[State, Sequence[Command]]:
    commands: list[Command] = []
    for report in reports:
        state, more = advance(state, report, now)
        validate(state)
        commands += more
    return state, commands


def arrival(node: str, incarnation: int) -> tuple[Report, Report]:
    available = Available(node=node, incarnation=incarnation, layer_costs=(1.0, 1.0), identity=CODE)
    return Joined(node=node, incarnation=incarnation, address=f"{node}:1"), available


def taken_over(settings: Settings = SETTINGS, resumed: bool = False) -> tuple[State, Sequence[Command]]:
    """A coordinator over a document that names the checkpoint of step 50; all nodes of then are dead."""
    state, _ = after(begin(settings), *arrival("n0", 1), *arrival("n1", 2))
    assert state.plan is not None
    plan = replace(state.plan, step=60)
    state = replace(state, committed=60, plan=plan, checkpoints=(origin(50),), resumed=resumed)
    return after(from_document(to_document(state), settings, 2, 0.0), Tick(), now=LATE)


def test_the_storage_is_searched_before_an_era_begins() -> None:
    state, commands = taken_over()
    assert [c for c in commands if isinstance(c, FindCheckpoints)] == [FindCheckpoints()]
    state, commands = after(state, *arrival("n2", 3), *arrival("n3", 4), now=LATE)
    assert not any(isinstance(c, FindCheckpoints | Publish) for c in commands), "it is searched once, and waited for"
    state, commands = after(state, found(190, 200), now=LATE)
    (plan,) = (c.plan for c in commands if isinstance(c, Publish))
    assert (plan.step, plan.origin) == (200, origin(200))
    assert state.checkpoints == (origin(50), origin(190), origin(200))


def test_a_storage_that_does_not_answer_is_waited_for() -> None:
    state, _ = after(taken_over()[0], *arrival("n2", 3), *arrival("n3", 4), now=LATE)
    state, commands = after(state, *[CheckpointsFound(why="no route to host")] * 2, now=LATE)
    assert [c.kind for c in commands if isinstance(c, Record)] == ["waiting"], "that is said once"
    assert "no route to host" in state.detail
    assert state.plan is None


def test_what_other_code_wrote_is_left_out_and_that_is_said() -> None:
    state, commands = after(taken_over()[0], found(200, identity=OTHER), now=LATE)
    assert state.checkpoints == (origin(50),)
    assert state.origin == origin(50)
    (text,) = (c.text for c in commands if isinstance(c, Record) and c.kind == "checkpoint_fault")
    assert "step-00000200 is not this run's, so it is left out" in text


def test_one_that_was_proved_bad_is_not_found_again() -> None:
    state, _ = after(taken_over()[0], found(190, 200), *arrival("n2", 3), *arrival("n3", 4), now=LATE)
    state, commands = after(state, CheckpointBad("n2", origin(200), "it is of another model"), now=LATE)
    assert any(isinstance(c, FindCheckpoints) for c in commands), "the record may be as old as this one"
    state, commands = after(state, found(190, 200), now=LATE)
    (plan,) = (c.plan for c in commands if isinstance(c, Publish))
    assert plan.origin == origin(190)


@pytest.mark.parametrize(("whole", "phase"), [((), Phase.FAILED), ((200,), Phase.WAITING)])
def test_a_resumed_run_ends_only_once_the_storage_shows_no_checkpoint(whole: tuple[int, ...], phase: Phase) -> None:
    state, _ = taken_over(resumed=True)
    state = replace(state, checkpoints=(), origin=Origin(), committed=0)
    assert state.phase is Phase.WAITING
    state, _ = after(state, found(*whole), now=LATE)
    assert state.phase is phase


def test_a_run_that_is_begun_anew_looks_for_nothing() -> None:
    _, commands = taken_over(replace(SETTINGS, searches=False))
    assert not any(isinstance(c, FindCheckpoints) for c in commands)
