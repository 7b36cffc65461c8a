"""Keys and plans mean the same on both sides of the wire."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from culm.pipeline.keys import Key, Kind
from culm.pipeline.messages import key_from_proto, key_to_proto
from culm.pipeline.plan import Member, Plan, StagePlan, Standby
from culm.pipeline.plan_codec import OtherPlan, change_of, plan_from_proto, plan_to_proto, whole
from culm.protos import coordinator_pb2, tensor_pb2

SMALL = st.integers(0, 2**32 - 1)
LARGE = st.integers(0, 2**64 - 1)
WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)

keys = st.builds(Key, SMALL, LARGE, SMALL, st.sampled_from(Kind), SMALL, SMALL, SMALL, SMALL)
stages = st.builds(
    StagePlan,
    SMALL,
    SMALL,
    st.lists(WORDS, max_size=3).map(tuple),
    st.lists(st.builds(Standby, WORDS, st.booleans()), max_size=3).map(tuple),
)
members = st.lists(st.builds(Member, WORDS, LARGE, WORDS, WORDS), max_size=4).map(lambda m: {x.node: x for x in m})
plans = st.builds(
    Plan,
    term=LARGE,
    generation=LARGE,
    era=SMALL,
    step=LARGE,
    stages=st.lists(stages, max_size=4).map(tuple),
    members=members,
    reason=WORDS,
)


@given(keys)
def test_a_key_survives_the_wire(key: Key) -> None:
    wire = key_to_proto(key).SerializeToString()
    assert key_from_proto(tensor_pb2.Key.FromString(wire)) == key


@given(plans)
def test_a_plan_survives_the_wire(plan: Plan) -> None:
    wire = plan_to_proto(plan).SerializeToString()
    assert plan_from_proto(coordinator_pb2.Plan.FromString(wire)) == plan


@given(plans)
def test_the_wire_keeps_the_order_of_members(plan: Plan) -> None:
    assert list(plan_from_proto(plan_to_proto(plan)).members) == list(plan.members)


@given(plans, plans, st.data())
def test_a_plan_and_its_change_are_the_plan_after(before: Plan, other: Plan, data: st.DataObject) -> None:
    mixed = tuple(data.draw(st.sampled_from(pair)) for pair in zip(before.stages, other.stages, strict=False))
    stages = (*mixed, *before.stages[len(mixed) :])
    members = {name: m for name, m in before.members.items() if data.draw(st.booleans())} | dict(other.members)
    plan = replace(other, stages=stages, members=members)
    change = change_of(plan, before)
    if change is not None:
        after = whole(coordinator_pb2.Plan.FromString(change.SerializeToString()), plan_to_proto(before))
        assert after == plan_to_proto(plan)


def test_a_loss_among_many_stages_is_a_small_change() -> None:
    members = {f"n{s}": Member(f"n{s}", 1) for s in range(100)}
    before = Plan(
        term=1,
        generation=1,
        era=0,
        step=0,
        stages=tuple(StagePlan(s, s + 1, (f"n{s}",)) for s in range(100)),
        members=members,
    )
    stages = (before.stages[0], replace(before.stages[1], owners=("n0",)), *before.stages[2:])
    plan = replace(before, generation=2, stages=stages, members={n: m for n, m in before.members.items() if n != "n1"})
    change = change_of(plan, before)
    assert change is not None
    assert not change.stages
    assert not change.members
    assert (list(change.change.stages), list(change.change.gone)) == ([1], ["n1"])
    assert plan_from_proto(whole(change, plan_to_proto(before))) == plan


def test_a_change_of_another_plan_is_not_taken() -> None:
    before = Plan(term=1, generation=1, era=0, step=0, stages=(StagePlan(0, 1, ("n0",)),))
    change = change_of(replace(before, generation=3), replace(before, generation=2))
    assert change is not None
    with pytest.raises(OtherPlan, match=r"a change of the plan \(1, 2\) has come after the plan \(1, 1\)"):
        whole(change, plan_to_proto(before))


def test_kinds_have_the_numbers_of_the_wire() -> None:
    named = {f"KIND_{kind.name}": kind.value for kind in Kind}
    assert {"KIND_UNSPECIFIED": 0, **named} == dict(tensor_pb2.Kind.items())
