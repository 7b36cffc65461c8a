"""Keys and plans mean the same on both sides of the wire."""

from hypothesis import given
from hypothesis import strategies as st

from pipeline.keys import Key, Kind
from pipeline.messages import key_from_proto, key_to_proto, plan_from_proto, plan_to_proto
from pipeline.plan import Member, Plan, StagePlan, Standby
from protos import coordinator_pb2, tensor_pb2

SMALL = st.integers(0, 2**32 - 1)
LARGE = st.integers(0, 2**64 - 1)
WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)

keys = st.builds(Key, SMALL, LARGE, SMALL, st.sampled_from(Kind), SMALL, SMALL)
stages = st.builds(
    StagePlan,
    SMALL,
    SMALL,
    st.lists(WORDS, max_size=3).map(tuple),
    st.lists(st.builds(Standby, WORDS, st.booleans()), max_size=3).map(tuple),
)
members = st.lists(st.builds(Member, WORDS, LARGE, WORDS, WORDS), max_size=4).map(lambda m: {x.node: x for x in m})
plans = st.builds(Plan, LARGE, LARGE, SMALL, LARGE, st.lists(stages, max_size=4).map(tuple), members, WORDS)


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


def test_kinds_have_the_numbers_of_the_wire() -> None:
    named = {f"KIND_{kind.name}": kind.value for kind in Kind}
    assert {"KIND_UNSPECIFIED": 0, **named} == dict(tensor_pb2.Kind.items())
