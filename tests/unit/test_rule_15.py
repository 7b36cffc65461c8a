"""Rule 15: a term is issued once in a run's whole life; what only Redis remembered, a coordinator learns again."""

import json
from dataclasses import replace

import pytest

from culm.coordinator import membership
from culm.coordinator.commands import Command, Dismiss, LeadAnew, Persist, Publish, Record
from culm.coordinator.decide import advance, begin, validate
from culm.coordinator.edges.persistence import from_document, to_document
from culm.coordinator.membership import FENCED_KEPT, fence
from culm.coordinator.reports import Available, Draining, Heartbeat, Joined, Left, PeerLost, Report, StreamBroken, Tick
from culm.coordinator.state import Phase, Settings, State
from culm.pipeline.plan import Plan
from culm.pipeline.terms import LEAP, TERM_LIMIT, is_believable

SETTINGS = Settings(stages=2, microbatches=2, steps=9)
COSTS = (1.0, 1.0, 1.0)


def after(state: State, *reports: Report, now: float = 0.0) -> tuple[State, list[Command]]:
    commands: list[Command] = []
    for report in reports:
        state, more = advance(state, report, now)
        validate(state)
        commands.extend(more)
    return state, commands


def arrival(node: str, incarnation: int = 1, term: int = 0, plan: Plan | None = None) -> tuple[Report, Report]:
    layers = frozenset(range(3)) if plan is not None else frozenset()
    standing = Available(
        node=node,
        incarnation=incarnation,
        layer_costs=COSTS,
        fingerprint="",
        era=plan.era if plan else 0,
        version=0,
        holds_state=plan is not None,
        plan=plan,
        last_commit=None,
        layers=layers,
    )
    return Joined(node=node, incarnation=incarnation, address=f"{node}:1", term=term), standing


def led(term: int, leader: int = 1) -> tuple[State, Plan]:
    """A run of two nodes, and its plan as this leader made it."""
    state, _ = after(begin(SETTINGS, term, leader), *arrival("n0"), *arrival("n1"))
    assert state.plan is not None
    return state, state.plan


@pytest.mark.parametrize(("theirs", "own"), [(3, 3), (4, 3), (3, 1)])
def test_a_leader_whose_term_is_not_above_a_node_s_takes_one_above_it(theirs: int, own: int) -> None:
    _, plan = led(theirs, leader=1)
    state, commands = after(begin(SETTINGS, own, 2, 0.0), *arrival("n0", term=theirs, plan=plan)[1:])
    state, commands = after(begin(SETTINGS, own, 2, 0.0), *arrival("n0", term=0), arrival("n0", plan=plan)[1])
    assert [c.above for c in commands if isinstance(c, LeadAnew)] == [theirs]
    assert not any(isinstance(c, Publish) for c in commands)
    assert state.plan is None


def test_a_node_that_has_only_heard_of_a_term_counts_too() -> None:
    _, commands = after(begin(SETTINGS, 2, 2, 0.0), arrival("n0", term=5)[0])
    assert [c.above for c in commands if isinstance(c, LeadAnew)] == [5]


def test_a_leader_s_own_plan_is_not_another_s() -> None:
    state, plan = led(3, leader=7)
    _, commands = after(state, StreamBroken("n0", 1), *arrival("n0", term=3, plan=plan))
    assert not any(isinstance(c, LeadAnew) for c in commands)


def test_over_an_empty_store_nothing_begins_before_nodes_that_hold_state_had_time_to_say_so() -> None:
    _, plan = led(1)
    state, commands = after(begin(SETTINGS, 2, 2, 0.0), *arrival("new0", 5), *arrival("new1", 5))
    assert not any(isinstance(c, Publish) for c in commands)
    state, commands = after(state, *arrival("n0", term=1, plan=plan), now=1.0)
    assert state.plan is not None
    assert set(state.plan.members) == {"n0", "n1"}, "the plan of before goes on"
    alone, commands = after(begin(SETTINGS, 2, 2, 0.0), *arrival("new0", 5), *arrival("new1", 5))
    beats = (Heartbeat(node="new0", incarnation=5), Heartbeat(node="new1", incarnation=5))
    alone, commands = after(alone, *beats, Tick(), now=SETTINGS.patience.seconds + 0.1)
    assert any(isinstance(c, Publish) for c in commands)


def test_a_spare_knows_the_plan_as_well() -> None:
    _, plan = led(1)
    spare = Available(node="n9", incarnation=4, layer_costs=COSTS, plan=plan)
    state, _ = after(begin(SETTINGS, 2, 2, 0.0), Joined(node="n9", incarnation=4, address="n9:1"), spare)
    assert state.plan is not None


def test_a_plan_of_an_absurd_term_sends_its_node_away_and_changes_nothing() -> None:
    state, plan = led(3)
    absurd = replace(plan, term=3 + LEAP + 1)
    state, commands = after(
        state,
        Joined(node="n2", incarnation=9, address="n2:1"),
        Available(node="n2", incarnation=9, layer_costs=COSTS, plan=absurd),
    )
    assert [type(c) for c in commands if isinstance(c, Dismiss | LeadAnew)] == [Dismiss]
    assert state.term == 3


def test_terms_have_bounds() -> None:
    assert is_believable(LEAP, 0)
    assert not is_believable(LEAP + 1, 0)
    assert not is_believable(1 << 63, (1 << 63) - 1)
    assert (TERM_LIMIT << 12) + (1 << 12) <= 1 << 32, "an era's number begins with a term"


def test_a_drain_outlives_a_coordinator() -> None:
    state, _ = led(1)
    state, commands = after(state, Draining("n1", "an operator asked for it"))
    assert any(isinstance(c, Persist) for c in commands)
    document = json.loads(json.dumps(to_document(state)))
    successor = from_document(document, SETTINGS, 2, 50.0)
    assert successor.nodes["n1"].draining == "an operator asked for it"
    assert successor.nodes["n0"].draining == ""
    again = from_document({**document, "draining": {"n1": [7, "its namesake"]}}, SETTINGS, 2, 50.0)
    assert again.nodes["n1"].draining == "", "another incarnation was meant"
    told, records = after(successor, Draining("n1", "its machine is to go", 30.0), now=60.0)
    assert told.nodes["n1"].leaves_at == 90.0
    assert not any(isinstance(c, Record) for c in records), "it is known"


def test_fenced_incarnations_are_bounded_and_all_of_them_stay_refused() -> None:
    state, _ = led(1)
    state = replace(state, nodes={k: replace(n, incarnation=1) for k, n in state.nodes.items()})
    gone = [(f"spot{i}", 100 + i) for i in range(5 * FENCED_KEPT)]
    for each in gone:
        state = fence(state, {each})
    assert len(state.fenced) <= FENCED_KEPT
    assert all(membership.is_fenced(state, node, incarnation) for node, incarnation in gone)
    assert not membership.is_fenced(state, "n0", 1), "old, and never lost"
    assert not membership.is_fenced(state, "spot7", 10**6), "it was started again"


def test_two_reasons_to_wait_are_each_said_once() -> None:
    state, _ = led(1)
    state, _ = after(state, Left("n0", 1), Left("n1", 1))
    state, _ = after(state, Joined(node="n3", incarnation=9, address="n3:1"), now=1.0)
    assert state.phase is Phase.WAITING
    said: list[str] = []
    for tick in range(200):
        state, commands = after(state, Tick(), now=1.0 + tick * 0.05)
        said += [c.text for c in commands if isinstance(c, Record)]
    assert len(said) == len(set(said)), "nothing is said twice while nothing changes"


def test_a_link_and_silence_do_not_take_turns() -> None:
    state, _ = led(1)
    said: list[str] = []
    for tick in range(400):
        now = tick * 0.05
        state, commands = after(state, PeerLost("n0", 1, "n1", 1, "unreached"), Tick(), now=now)
        said += [c.text for c in commands if isinstance(c, Record) and c.kind in ("waiting", "silent")]
    assert len(said) <= 2
