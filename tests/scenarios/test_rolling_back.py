"""From what an era begins where Redis is older than the checkpoints (rule 14)."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from culm.coordinator.agreement import Agreement
from culm.coordinator.commands import Command, Dismiss, FindCheckpoints, Publish, Record, Retain, WriteManifest
from culm.coordinator.decide import advance, begin, validate
from culm.coordinator.edges.persistence import from_document, to_document
from culm.coordinator.reports import (
    Available,
    Built,
    CheckpointBad,
    Checkpointed,
    CheckpointsFound,
    Joined,
    Ready,
    Report,
    Saved,
    Tick,
    Whole,
)
from culm.coordinator.state import Phase, Search, Settings, State
from culm.pipeline.checkpoints.manifest import File
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


def ready(state: State) -> list[Report]:
    """All reports that the running step waits for."""
    assert state.plan is not None
    return [
        Ready(
            node=node,
            incarnation=state.nodes[node].incarnation,
            era=state.era,
            step=state.committed,
            stage=s,
            first_layer=stage.first_layer,
            squared_norms=(1.0,),
            tallies=(1.0,),
        )
        for s, stage in enumerate(state.plan.stages)
        for node in stage.required()
    ]


def taken_over(settings: Settings = SETTINGS, resumed: bool = False) -> tuple[State, Sequence[Command]]:
    """A coordinator over a document that names the checkpoint of step 50; all nodes of then are dead, one has come."""
    state, _ = after(begin(settings), *arrival("n0", 1), *arrival("n1", 2))
    assert state.plan is not None
    plan = replace(state.plan, step=60)
    state = replace(state, committed=60, plan=plan, checkpoints=(origin(50),), resumed=resumed)
    state, _ = after(from_document(to_document(state), settings, 2, 0.0), Tick(), now=LATE)
    return after(state, *arrival("n2", 3), now=LATE)


def test_the_storage_is_searched_before_an_era_begins() -> None:
    state, commands = taken_over()
    assert [c for c in commands if isinstance(c, FindCheckpoints)] == [FindCheckpoints()]
    state, commands = after(state, *arrival("n3", 4), now=LATE)
    assert not any(isinstance(c, FindCheckpoints | Publish) for c in commands), "it is searched once, and waited for"
    state, commands = after(state, found(190, 200), now=LATE)
    (plan,) = (c.plan for c in commands if isinstance(c, Publish))
    assert (plan.step, plan.origin) == (200, origin(200))
    assert state.checkpoints == (origin(50), origin(190), origin(200))


def test_a_storage_that_does_not_answer_is_waited_for() -> None:
    state, _ = after(taken_over()[0], *arrival("n3", 4), now=LATE)
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
    state, _ = after(taken_over()[0], found(190, 200), *arrival("n3", 4), now=LATE)
    state, commands = after(state, CheckpointBad("n2", origin(200), "it is of another model"), now=LATE)
    assert any(isinstance(c, FindCheckpoints) for c in commands), "the record may be as old as this one"
    state, commands = after(state, found(190, 200), now=LATE)
    (plan,) = (c.plan for c in commands if isinstance(c, Publish))
    assert plan.origin == origin(190)


def test_a_manifest_that_was_ordered_may_be_there_though_its_answer_is_late() -> None:
    state, _ = after(begin(SETTINGS), *arrival("n0", 1), *arrival("n1", 2))
    assert state.plan is not None
    state = replace(state, committed=60, plan=replace(state.plan, step=60), checkpoints=(origin(50),))
    shares = [
        Saved(node=node, incarnation=1, era=state.era, step=55, files={layer: (File("x", 1, "0" * 64),)}, loss=0.0)
        for layer, node in enumerate(["n0", "n1"])
    ]
    state, commands = after(state, *shares)
    assert any(isinstance(c, WriteManifest) for c in commands)
    state, _ = after(state, *arrival("n0", 3), *arrival("n1", 4))
    state, commands = after(state, found(55))
    (plan,) = (c.plan for c in commands if isinstance(c, Publish))
    assert plan.origin == origin(55)


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


def test_the_search_waits_for_a_node_that_tells_what_the_run_is_made_of() -> None:
    """Another code's checkpoint was found while no node was there; this code's nodes trained on with its weights."""
    state = replace(begin(SETTINGS, 2, 2, 0.0), committed=20, origin=origin(20), checkpoints=(origin(20),))
    state = replace(state, agreement=Agreement(checkpoint=CODE))
    state, commands = after(state, Tick(), now=LATE)
    assert not any(isinstance(c, FindCheckpoints) for c in commands)
    state, _ = after(state, *arrival("n0", 1), now=LATE)
    both = CheckpointsFound((Whole(origin(20), CODE), Whole(origin(40), OTHER)))
    state, commands = after(state, both, *arrival("n1", 2), now=LATE)
    (plan,) = (c.plan for c in commands if isinstance(c, Publish))
    assert plan.origin == origin(20)


def test_what_a_run_left_that_follows_from_another_checkpoint_is_left_out() -> None:
    """A run was resumed with another learning rate; an earlier one of the same job file had begun at step 0."""
    state, _ = taken_over()
    state = replace(state, agreement=replace(state.agreement, lineage="c" * 64))
    own = Whole(origin(60), replace(CODE, lineage="c" * 64))
    state, commands = after(state, CheckpointsFound((own, Whole(origin(200), CODE))), now=LATE)
    assert state.origin == origin(60)
    assert any("resumed from another checkpoint" in c.text for c in commands if isinstance(c, Record))


def test_an_answer_that_nobody_waits_for_is_dropped() -> None:
    """A leader of a higher term hears from the nodes, which may be further than all checkpoints."""
    state, _ = after(begin(SETTINGS, 3, 3, 0.0), found(20, 40), now=1.0)
    assert (state.era, state.checkpoints) == (0, ())


def test_nothing_is_deleted_before_it_is_known_what_is_there() -> None:
    """Redis names the checkpoints of an hour ago, and nodes live: those that have come since were deleted."""
    state, _ = after(begin(SETTINGS), *arrival("n0", 1), *arrival("n1", 2))
    state = replace(state, committed=150, storage=replace(state.storage, search=Search.NEEDED))
    state, commands = after(state, Checkpointed(origin(150)))
    assert [type(c) for c in commands if isinstance(c, FindCheckpoints | Retain)] == [FindCheckpoints]
    state, _ = after(state, found(120, 130, 140, 150))
    state, commands = after(replace(state, committed=160), Checkpointed(origin(160)))
    assert [c for c in commands if isinstance(c, Retain)] == [Retain(160, frozenset({140, 150, 160}))]


@pytest.mark.parametrize("recovers", [True, False])
def test_a_node_of_another_run_changes_nothing_when_it_is_refused(recovers: bool) -> None:
    """Its plan was never adopted, but its code became this run's; or the checkpoints that were found were lost."""
    led, _ = after(begin(SETTINGS), *arrival("m0", 1), *arrival("m1", 2))
    assert led.plan is not None
    _, said = arrival("m0", 1)
    assert isinstance(said, Available)
    stranger = replace(said, identity=OTHER, era=0, version=7, plan=replace(led.plan, step=7), holds_state=True)
    state = replace(begin(SETTINGS, 2, 2, 0.0), committed=20, origin=origin(20), checkpoints=(origin(20),))
    state = replace(state, agreement=Agreement(nodes=CODE), era=1 if recovers else 0)
    joined = Joined(node="m0", incarnation=1, address="m0:1")
    state, commands = after(state, Tick(), joined, stranger, now=1.0 if recovers else LATE)
    assert any(isinstance(c, Dismiss) for c in commands)
    assert state.agreement.nodes == CODE
    assert (state.committed, state.checkpoints) == (20, (origin(20),))


@pytest.mark.parametrize("every", [30, 40])
def test_a_checkpoint_that_nodes_now_write_over_is_off_the_record(every: int) -> None:
    """It was another run's of the last step: the final weights were let go though their manifest had been removed.

    One of a step that is not saved stays: all nodes had been told to go, a last checkpoint was ordered, and became
    whole in the next era. It was off the record with the commit of its step, and a lost node led back to step 0.
    """
    state, _ = after(begin(replace(SETTINGS, checkpoint_every=every)), *arrival("n0", 1), *arrival("n1", 2))
    state = replace(state, committed=89, checkpoints=(origin(80), origin(90)))
    state, _ = after(state, *ready(state))
    assert state.committed == 90
    assert state.checkpoints == ((origin(80),) if every == 30 else (origin(80), origin(90)))


@pytest.mark.parametrize("searches", [True, False], ids=["", "a new run"])
@pytest.mark.parametrize("written", [True, False])
def test_a_rollback_looks_for_a_checkpoint_that_was_to_be_written_over(written: bool, searches: bool) -> None:
    """Those who were to write it anew were lost before they did: the run went back further, beside a whole one."""
    settings = replace(SETTINGS, checkpoint_every=30, searches=searches)
    state, _ = after(begin(settings), *arrival("n0", 1), *arrival("n1", 2))
    state = replace(state, committed=89, checkpoints=(origin(80), origin(90)))
    state, _ = after(state, *ready(state))
    assert state.checkpoints == (origin(80),)
    if written:
        state, _ = after(state, Checkpointed(origin(90)))
    state, commands = after(state, *arrival("n0", 3), *arrival("n1", 4))
    if not written:
        assert any(isinstance(c, FindCheckpoints) for c in commands)
        assert state.plan is None, "no era begins before the storage has answered"
        state, commands = after(state, found(80, 90))
    *_, plan = (c.plan for c in commands if isinstance(c, Publish))
    assert plan.origin == origin(90)


def test_nobody_goes_on_with_what_a_node_computed_with_other_initial_values() -> None:
    """It was dismissed; but its activations lay at the next stage, which never asks its heir for them again."""
    state, _ = after(begin(replace(SETTINGS, nodes=3)), *arrival("n0", 1), *arrival("n1", 2), *arrival("n2", 3))
    assert state.plan is not None
    state, _ = after(state, Built("n0", 1, {0: "a" * 64, 1: "b" * 64}))
    state, commands = after(state, Built("n1", 2, {1: "c" * 64}))
    assert {c.node for c in commands if isinstance(c, Dismiss)} == {"n1"}
    *_, plan = (c.plan for c in commands if isinstance(c, Publish))
    assert (plan.era > 0, plan.step, sorted(plan.members)) == (True, 0, ["n0", "n2"])
    state, commands = after(state, Built("n2", 3, {0: "d" * 64}))
    assert not commands or not any(isinstance(c, Dismiss) for c in commands), "n0's word of before counts no more"


@pytest.mark.parametrize("recovers", [True, False])
def test_a_manifest_that_is_late_starts_no_search_before_nodes_are_heard(recovers: bool) -> None:
    """The answer would have begun an era of its own, and nodes that had come further were newcomers in it."""
    state = begin(SETTINGS, 3, 3, 0.0)
    state, _ = (state, ()) if recovers else after(state, Tick(), now=LATE)
    state, commands = after(state, Checkpointed(origin(120)), now=1.0 if recovers else LATE)
    assert not any(isinstance(c, FindCheckpoints | Retain) for c in commands)
    assert state.checkpoints == (origin(120),)
