"""What a coordinator persists is what its successor goes on from."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from culm.coordinator import watchdog
from culm.coordinator.checks import Checks
from culm.coordinator.commands import Record
from culm.coordinator.decide import advance, begin, validate
from culm.coordinator.edges.persistence import from_document, to_document, without_volatile
from culm.coordinator.failures import Work
from culm.coordinator.links import part
from culm.coordinator.reports import (
    Available,
    Draining,
    Heartbeat,
    Joined,
    Left,
    NodeFailed,
    Ready,
    Report,
    StreamBroken,
    Tick,
)
from culm.coordinator.state import Phase, Settings, State
from culm.pipeline.origin import Origin

SETTINGS = Settings(stages=2, microbatches=2, steps=5, clip_norm=0.1)
COSTS = (3.0, 1.0, 0.1, 2.0)


def after(*reports: Report) -> State:
    state = begin(SETTINGS, term=3)
    for now, report in enumerate(reports):
        state, _ = advance(state, report, now / 100)
        validate(state)
    return state


def arrival(node: str, incarnation: int = 1) -> tuple[Report, Report]:
    address = f"{node}.example:7000"
    return Joined(node=node, incarnation=incarnation, address=address, pid=42, zone="a"), Available(
        node=node, incarnation=incarnation, layer_costs=COSTS, fingerprint="code"
    )


def step(number: int, loss: float) -> list[Report]:
    """Everything that nodes n0 and n1, each owner and standby, report in a step."""
    facts: list[Report] = []
    norms = ((loss,), (loss / 7, loss / 9, loss / 11))  # stage 0 has one layer, stage 1 three
    for stage in (0, 1):
        for node in ("n0", "n1"):
            tallies = (loss, loss / 3) if stage == 1 else ()
            facts.append(
                Ready(
                    node=node,
                    incarnation=1,
                    era=0,
                    step=number,
                    stage=stage,
                    first_layer=stage,
                    squared_norms=norms[stage],
                    tallies=tallies,
                )
            )
    return facts


def successor_of(state: State, now: float = 100.0) -> State:
    """Through the text that is stored."""
    return from_document(json.loads(json.dumps(to_document(state))), state.settings, state.term + 1, now)


def test_what_is_in_doubt_outlives_a_coordinator() -> None:
    doubt = frozenset({"n0", "n1"})
    lasting = Checks(doubts=(doubt, doubt), doubted=(2, 5), found={"n2": 1}, good={"n0": 7})
    checks = lasting.told(("n0", 1), 0, [7], [], []).done_by("n0", range(1), (1, 2))
    state = replace(after(*arrival("n0"), *arrival("n1")), checks=checks)
    assert successor_of(state).checks == lasting


def test_a_quarantine_outlives_a_coordinator() -> None:
    state = part(after(*arrival("n0"), *arrival("n1")), "n1", "n0", 5.0)
    assert successor_of(state).parted["n1"].peer == "n0"
    assert successor_of(state).parted["n1"].until > 100.0


@given(st.floats(min_value=1e-12, max_value=1e12))
def test_a_successor_knows_the_last_commit_to_the_last_bit(loss: float) -> None:
    state = after(*arrival("n0"), *arrival("n1"), *step(0, loss))
    assert state.last_commit is not None
    assert successor_of(state).last_commit == state.last_commit


def test_a_successor_differs_only_in_what_nodes_say_again() -> None:
    state = after(
        *arrival("n0"),
        *arrival("n1"),
        *step(0, 0.1),
        Ready(node="n0", incarnation=1, era=0, step=1, stage=0, first_layer=0, squared_norms=(1.0,)),
        Heartbeat(node="n0", incarnation=1, version=1),
    )
    successor = successor_of(state)
    kept = replace(state, term=4, last_tick=None, detail=successor.detail)
    assert without_volatile(successor) == without_volatile(kept)


def test_what_audits_have_found_outlives_the_coordinator() -> None:
    known = Checks(found={"n1": 2}, forwards=40, compared=8, differed=2)
    state = replace(after(*arrival("n0"), *arrival("n1")), checks=known)
    assert successor_of(state).checks == known
    older = {name: value for name, value in to_document(state).items() if name != "checks"}
    assert from_document(older, SETTINGS, 4, 0.0).checks == Checks()


def test_a_successor_knows_how_long_steps_usually_take() -> None:
    """Of a run whose steps take three minutes each takeover was told as a stall, two minutes into the next step."""
    slow = (180.0,) * 3
    state = after(*arrival("n0"), *arrival("n1"), *step(0, 0.1))
    state = replace(state, watch=replace(state.watch, recent=slow))
    successor = replace(successor_of(state), took_over_at=None)
    for now in (100.0, 300.0):
        successor, told = watchdog.look(successor, now)
        assert told == ()
    older = {name: value for name, value in to_document(state).items() if name != "step_seconds"}
    assert from_document(older, SETTINGS, 4, 0.0).watch.recent == ()


def test_members_count_as_detached_until_they_attach_again() -> None:
    successor = successor_of(after(*arrival("n0"), *arrival("n1")), now=100.0)
    validate(successor)
    assert sorted(successor.nodes) == ["n0", "n1"]
    for node in successor.nodes.values():
        assert (node.attached_since, node.detached_at, node.available) == (None, 100.0, False)


def test_a_node_that_refuses_its_coordinator_again_and_again_fills_no_log() -> None:
    """It joins, refuses the Welcome and goes, twice a second. The event log keeps its newest events alone."""
    state = successor_of(after(*arrival("n0"), *arrival("n1")))
    told: list[str] = []
    for report in (*[arrival("n0")[0], StreamBroken("n0", 1, "it ended")] * 3, *arrival("n0")):
        state, commands = advance(state, report, 100.0)
        told += [command.kind for command in commands if isinstance(command, Record)]
    assert told == ["attached"], "once it takes part again"


def test_exposure_counts_from_the_successors_own_clock() -> None:
    state = after(*arrival("n0"), *arrival("n1"), Left("n1", 1))
    assert sorted(state.exposed_since) == [0, 1]
    assert successor_of(state, now=100.0).exposed_since == {0: 100.0, 1: 100.0}


def test_a_lost_incarnation_stays_fenced() -> None:
    successor = successor_of(after(*arrival("n0"), *arrival("n1"), *arrival("n2"), Left("n2", 1)))
    assert sorted(successor.nodes) == ["n0", "n1"]
    assert ("n2", 1) in successor.fenced
    refused, commands = advance(successor, Joined(node="n2", incarnation=1, address="n2.example:7000"), 101.0)
    assert "n2" not in refused.nodes
    assert len(commands) == 1


def test_a_commit_that_carries_a_switch_keeps_its_plan() -> None:
    state = after(*arrival("n0"), *arrival("n1"), *arrival("n2"), *step(0, 0.5))
    assert state.last_commit is not None
    assert state.plan is not None
    state = replace(state, last_commit=replace(state.last_commit, next_plan=state.plan))
    assert successor_of(state).last_commit == state.last_commit


EARLY = [
    after(),
    after(*arrival("n0")),
    after(*arrival("n0"), *arrival("n1"), Left("n0", 1)),
]


@pytest.mark.parametrize("state", EARLY)
def test_a_state_at_any_point_can_be_gone_on_from(state: State) -> None:
    successor = successor_of(state)
    validate(successor)
    assert (successor.era, successor.committed, successor.plan) == (state.era, state.committed, state.plan)


def test_a_run_that_is_done_stays_done() -> None:
    steps = [fact for number in range(SETTINGS.steps) for fact in step(number, 0.25)]
    successor = successor_of(after(*arrival("n0"), *arrival("n1"), *steps))
    assert (successor.phase, successor.committed) == (Phase.DONE, SETTINGS.steps)


WORK = Work("2B0", 2, 0, 4)
PATIENCE = SETTINGS.patience.seconds
CHECKPOINT = Origin(step=1, folder="memory://x/step-1", sha256="a" * 64)
LAST_ENDS = [arrival("n1", 2)[0], Draining("n1", "it was told to stop", told=True)]


def told(state: State, now: float, *reports: Report) -> State:
    for report in reports:
        state, _ = advance(state, report, now)
        validate(state)
    return state


@pytest.mark.parametrize("ends", LAST_ENDS, ids=["started again", "told to stop"])
@pytest.mark.parametrize("origin", [Origin(), CHECKPOINT], ids=["from step 0", "from a checkpoint"])
def test_a_run_that_failed_goes_on_from_what_new_nodes_can_be_given(ends: Report, origin: Origin) -> None:
    """It had come to step 2, which nobody holds any more: the new nodes asked each other for it, and the run hung."""
    state = after(*arrival("n0"), *arrival("n1"), *step(0, 0.25), *step(1, 0.25))
    state = replace(state, checkpoints=(origin,) if origin.folder else ())
    state = told(state, 1.0, NodeFailed("n0", 1, "it raised", WORK), NodeFailed("n1", 1, "it raised", WORK))
    state = told(state, 2.0, ends)
    assert (state.phase, state.plan, state.committed) == (Phase.FAILED, None, 2)

    state = told(successor_of(state), 101.0 + PATIENCE, *arrival("n0", 3), *arrival("n1", 3), Tick(), Tick())
    assert state.phase is Phase.RUNNING
    assert state.plan is not None
    assert (state.plan.step, state.plan.origin, state.committed) == (origin.step, origin, origin.step)


def test_a_resumed_run_that_has_lost_its_checkpoint_keeps_no_plan_of_lost_nodes() -> None:
    """Its successor would wait for them, and tell of no reason."""
    state = replace(after(*arrival("n0"), *arrival("n1"), *step(0, 0.25)), resumed=True)
    state = told(state, 1.0, Left("n0", 1), Left("n1", 1))
    assert (state.phase, state.plan) == (Phase.FAILED, None)
    state = told(successor_of(state), 101.0 + PATIENCE, Tick())
    assert state.phase is Phase.FAILED
    assert "resumes from another one" in state.detail


@pytest.mark.parametrize("wrong", ["12", -1, True, None, 2.0, [1]])
@pytest.mark.parametrize("name", ["era", "committed", "generation"])
def test_a_state_with_a_count_that_is_none_is_not_gone_on_from(name: str, wrong: object) -> None:
    """The next plan would raise at it, in each coordinator that is started."""
    document = {**to_document(begin(SETTINGS)), name: wrong}
    with pytest.raises(ValueError, match="is not a count"):
        from_document(document, SETTINGS, 4, 0.0)
