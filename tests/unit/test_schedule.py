"""The schedule: what every stage runs, in which order, whoever hosts it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.schedule import Instruction, bubble_fraction, chart, inputs_of, one_f_one_b, program, timetable


def test_instructions_print_and_parse_short() -> None:
    assert str(Instruction(2, "B", 3)) == "2B3"
    assert Instruction.parse("2B3") == Instruction(2, "B", 3)
    with pytest.raises(ValueError, match="such as 2B3"):
        Instruction.parse("B3")


def test_1f1b_is_the_fields_order() -> None:
    def order(stage: int) -> str:
        return " ".join(str(i)[1:] for i in one_f_one_b(stage, 3, 4))

    assert order(0) == "F0 F1 F2 B0 F3 B1 B2 B3"
    assert order(1) == "F0 F1 B0 F2 B1 F3 B2 B3"
    assert order(2) == "F0 B0 F1 B1 F2 B2 F3 B3"


def test_a_stage_may_be_further_ahead_of_the_next() -> None:
    def order(stage: int) -> str:
        return " ".join(str(i)[1:] for i in one_f_one_b(stage, 3, 6, lead=2))

    assert order(0) == "F0 F1 F2 F3 F4 B0 F5 B1 B2 B3 B4 B5"
    assert order(1) == "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 B4 B5"
    assert order(2) == "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5"


def test_the_timetable_of_two_stages() -> None:
    assert chart(timetable([0, 1], 2)).splitlines() == [
        "  0 | 0F0 0F1 .   .   0B0 0B0 .   0B1 0B1",
        "  1 | .   1F0 1B0 1B0 1F1 1B1 1B1 .   .",
    ]


@pytest.mark.parametrize("lead", [1, 2, 3])
def test_the_bubble_is_the_one_of_the_formula(lead: int) -> None:
    stages, microbatches = 4, 8
    expected = (stages - 1) / (microbatches + stages - 1)
    assert bubble_fraction(timetable(list(range(stages)), microbatches, lead=lead)) == pytest.approx(expected)


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=6),
    st.integers(1, 5),
    st.integers(1, 3),
    st.data(),
)
def test_what_is_left_of_a_step_never_deadlocks(
    hosts: list[int], microbatches: int, lead: int, data: st.DataObject
) -> None:
    """Whatever was done before a loss, the nodes' programs without it run to their end."""
    stages = len(hosts)
    owners = [f"n{h}" for h in hosts]
    whole = [slot.instruction for slot in timetable(hosts, microbatches, lead=lead)]
    lost_stage = data.draw(st.integers(0, stages - 1))
    cut = data.draw(st.integers(0, len(whole)))
    results = set(whole[:cut])
    done = {i for i in results if i.stage != lost_stage}
    queues = {n: [i for i in program(owners, n, microbatches, lead) if i not in done] for n in set(owners)}
    available = set(done)
    while any(queues.values()):
        heads = [q[0] for q in queues.values() if q]
        ready = [h for h in heads if all(n in available for n in inputs_of(h, stages))]
        assert ready, f"all wait: {[str(h) for h in heads]}"
        for q in queues.values():
            if q and q[0] in ready:
                available.add(q.pop(0))
    assert available == set(whole)
