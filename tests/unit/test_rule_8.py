"""Rule 8: what nodes have applied is committed, and who is behind gets the commit that it missed."""

from dataclasses import replace

from culm.coordinator.commands import Ask, Command, Commit, Dismiss, Publish, Record, SendCommit
from culm.coordinator.decide import advance, begin, validate
from culm.coordinator.edges.persistence import from_document, to_document
from culm.coordinator.reports import Available, CheckpointBad, Draining, Heartbeat, Joined, Left, Ready, Report, Tick
from culm.coordinator.state import Phase, Settings, State
from culm.pipeline.money.kinds import Done
from culm.pipeline.origin import Origin
from culm.pipeline.plan import Member, Plan, Standby

SETTINGS = Settings(stages=2, microbatches=1, steps=9)
PATIENCE = SETTINGS.patience.seconds
COSTS = (1.0, 1.0)
BOTH = frozenset({0, 1})


def after(state: State, *reports: Report, now: float = 0.0) -> tuple[State, list[Command]]:
    commands: list[Command] = []
    for report in reports:
        state, more = advance(state, report, now)
        validate(state)
        commands.extend(more)
    return state, commands


def joins(node: str) -> tuple[Report, Report]:
    return Joined(node=node, incarnation=1, address=f"{node}:1"), Available(node=node, incarnation=1, layer_costs=COSTS)


def facts_of(node: str) -> tuple[Report, ...]:
    return tuple(
        Ready(
            node=node,
            incarnation=1,
            era=0,
            step=0,
            stage=s,
            first_layer=s,
            squared_norms=(4.0,),
            tallies=(0.5,) if s else (),
            redone=0,
        )
        for s in range(2)
    )


def successor(settings: Settings = SETTINGS) -> tuple[State, Plan, Commit]:
    """Of a leader that decided on step 0, told n0 alone, and did not persist it. n0 and n1 hold all; n2 is a spare."""
    state, _ = after(begin(settings, 1, 1), *joins("n0"), *joins("n1"), *joins("n2"))
    plan, document = state.plan, to_document(state)
    assert plan is not None
    _, commands = after(state, *facts_of("n0"), *facts_of("n1"))
    decided = next(command for command in commands if isinstance(command, Commit))
    return from_document(document, settings, 2, 10.0, 2), plan, decided


def back(node: str, plan: Plan, version: int, last: Commit | None) -> tuple[Report, Report]:
    layers = BOTH if node in plan.stages[0].holders() else frozenset()
    return Joined(node=node, incarnation=1, address=f"{node}:1", term=1), Available(
        node=node,
        incarnation=1,
        layer_costs=COSTS,
        fingerprint="",
        era=0,
        version=version,
        holds_state=True,
        plan=plan,
        last_commit=last,
        layers=layers,
    )


def test_a_commit_that_comes_to_light_late_goes_to_those_who_were_there_before() -> None:
    state, plan, decided = successor()
    state, _ = after(state, *back("n1", plan, 0, None), now=10.1)
    state, commands = after(state, *back("n0", plan, 1, decided), now=10.2)
    assert state.committed == 1
    assert [c.node for c in commands if isinstance(c, Ask)] == ["n1"]
    state, commands = after(state, back("n1", plan, 0, None)[1], now=10.3)
    assert [(c.node, c.commit.step) for c in commands if isinstance(c, SendCommit)] == [("n1", 0)]


def test_a_spare_that_was_told_of_the_step_alone_proves_no_commit() -> None:
    """Nobody could say how to apply it: n0 is gone for good, and n1 decides on the same step again."""
    state, plan, decided = successor()
    told = replace(plan, step=1)
    state, _ = after(state, *back("n1", plan, 0, None), *facts_of("n1"), *back("n2", told, 1, None), now=10.1)
    assert state.committed == 0
    commands: list[Command] = []
    for quarter in range(1, 50):
        now = 10.1 + quarter / 4
        state, more = after(state, Heartbeat(node="n1", incarnation=1), Tick(), now=now)
        commands += more
    again = [c for c in commands if isinstance(c, Commit)]
    assert [(c.step, c.scale, c.loss) for c in again] == [(decided.step, decided.scale, decided.loss)]


def test_a_commit_of_a_history_that_nobody_goes_on_from_is_told_to_nobody() -> None:
    """n2 obeyed a leader that Redis forgot, and whose plan is older than the present one."""
    state, plan, decided = successor()
    members = {name: member for name, member in plan.members.items() if name != "n0"}
    forgotten = replace(plan, generation=plan.generation - 1, members=members)
    state, _ = after(state, *back("n0", plan, 0, None), *back("n1", plan, 0, None), now=10.1)
    before = state.last_commit
    state, commands = after(state, *back("n2", forgotten, 1, decided), now=10.2)
    assert (state.committed, state.last_commit) == (0, before)
    assert not [c for c in commands if isinstance(c, Ask | SendCommit)]


def newer_plan(plan: Plan) -> Plan:
    """One that the store does not know: n2 holds everything, beside n0."""
    stages = tuple(replace(s, owners=("n0",), standbys=(Standby("n2", hot=True),)) for s in plan.stages)
    member = Member("n2", 1, "n2:1", "")
    return replace(plan, generation=plan.generation + 1, stages=stages, members={**plan.members, "n2": member})


def back_with_all(node: str, plan: Plan) -> tuple[Report, Report]:
    joined, available = back(node, plan, 0, None)
    assert isinstance(available, Available)
    return joined, replace(available, layers=BOTH)


def test_a_node_that_says_that_it_ends_is_lost_once_the_others_are_heard() -> None:
    """A plan without it came from what the store knew, and passed over a newer one that the others obey."""
    state, plan, _ = successor()
    state, commands = after(state, *back("n1", plan, 0, None), Left("n0", 1, "its disk is full"), Tick(), now=10.1)
    assert not [c for c in commands if isinstance(c, Publish)]
    state, _ = after(state, *back_with_all("n2", newer_plan(plan)), now=10.2)
    commands = []
    now = 10.2
    while not any(isinstance(c, Publish) for c in commands) and now < 10.2 + 2 * PATIENCE:
        now += 0.25
        beats = (Heartbeat(node=name, incarnation=1) for name in ("n1", "n2"))
        state, commands = after(state, *beats, Tick(), now=now)
    assert now > 10.1 + PATIENCE, "another may have come meanwhile, with a newer plan"
    (published,) = [c.plan for c in commands if isinstance(c, Publish)]
    assert [stage.owners for stage in published.stages] == [("n2",), ("n2",)]
    assert any("its disk is full" in c.text for c in commands if isinstance(c, Record))


def test_a_node_that_drains_is_let_go_once_its_leader_knows_what_it_holds() -> None:
    """By the plan that the store knew it held nothing, and was sent away with the only copy."""
    state, plan, _ = successor()
    state, commands = after(state, Draining("n2", "its machine is to go"), now=10.1)
    assert not [c for c in commands if isinstance(c, Dismiss)]
    state, commands = after(state, *back_with_all("n2", newer_plan(plan)), *back("n1", plan, 0, None), now=10.2)
    assert "n2" in state.nodes
    assert not [c for c in commands if isinstance(c, Dismiss)]


def test_what_is_said_against_a_checkpoint_counts_once_the_others_are_heard() -> None:
    """The node had said it when the era began; the others are far beyond, which the store did not know."""
    origin = Origin(0, "memory://c/step-00000000", "a" * 64)
    state, plan, decided = successor()
    plan = replace(plan, origin=origin)
    state = replace(state, origin=origin, checkpoints=(origin,), plan=replace(plan, term=1))
    state, _ = after(state, *back("n1", plan, 0, None), CheckpointBad("n1", origin, "it does not fit"), now=10.1)
    assert (state.era, state.checkpoints) == (0, (origin,))
    asked_again = back("n1", plan, 0, None)[1]
    state, _ = after(state, *back("n0", plan, 1, decided), asked_again, Tick(), now=10.2)
    assert (state.era, state.committed, state.checkpoints) == (0, 1, ()), "it is struck off, and the era goes on"


def test_that_a_node_was_told_to_stop_outlives_its_coordinator() -> None:
    """Its notice was repeated to the next one, which only took the deadline from it."""
    state, plan, _ = successor()
    asks = Draining("n0", "it was told to stop", seconds_left=30.0, told=True)
    state, _ = after(state, *back("n0", plan, 0, None), *back("n1", plan, 0, None), asks, now=10.1)
    state = from_document(to_document(state), SETTINGS, 3, 20.0, 3)
    state, _ = after(state, *back("n0", plan, 0, None), asks, now=20.1)
    assert state.nodes["n0"].told


def test_a_run_that_ended_before_its_end_was_on_record_is_told_to_have_ended() -> None:
    """Else trackers wait for more."""
    state, plan, decided = successor(replace(SETTINGS, steps=1))
    state, commands = after(state, *back("n0", plan, 1, decided), *back("n1", plan, 1, decided), now=10.1)
    assert state.phase is Phase.DONE
    assert [c.event for c in commands if isinstance(c, Record) and isinstance(c.event, Done)] == [Done(step=1)]
