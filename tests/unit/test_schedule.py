"""The schedule: what every stage runs, in which order, whoever hosts it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from culm.pipeline.flow import inputs_of
from culm.pipeline.instruction import Duty, Instruction
from culm.pipeline.schedule import (
    Schedule,
    bubble_fraction,
    chart,
    one_f_one_b,
    programs,
    timetable,
    zero_bubble,
)
from tests.short import duty, unit


def test_instructions_print_short() -> None:
    assert str(unit(2, "B", 3)) == "2B3"
    assert str(Instruction(Duty(1, 2), "B", 3)) == "p1/2B3"


def test_1f1b_is_the_fields_order() -> None:
    def order(stage: int) -> str:
        return " ".join(str(i)[1:] for i in one_f_one_b(duty(stage), 3, 4))

    assert order(0) == "F0 F1 F2 B0 F3 B1 B2 B3"
    assert order(1) == "F0 F1 B0 F2 B1 F3 B2 B3"
    assert order(2) == "F0 B0 F1 B1 F2 B2 F3 B3"


def test_a_stage_may_be_further_ahead_of_the_next() -> None:
    def order(stage: int) -> str:
        return " ".join(str(i)[1:] for i in one_f_one_b(duty(stage), 3, 6, lead=2))

    assert order(0) == "F0 F1 F2 F3 F4 B0 F5 B1 B2 B3 B4 B5"
    assert order(1) == "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 B4 B5"
    assert order(2) == "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5"


def test_the_timetable_of_two_stages() -> None:
    assert chart(timetable([[0, 1]], Schedule(2))).splitlines() == [
        "  0 | 0F0 0F1 .   .   0B0 0B0 .   0B1 0B1",
        "  1 | .   1F0 1B0 1B0 1F1 1B1 1B1 .   .",
    ]


@pytest.mark.parametrize("lead", [1, 2, 3])
def test_the_bubble_is_the_one_of_the_formula(lead: int) -> None:
    stages, microbatches = 4, 8
    expected = (stages - 1) / (microbatches + stages - 1)
    assert bubble_fraction(timetable([range(stages)], Schedule(microbatches, lead))) == pytest.approx(expected)


def test_the_zero_bubble_timetable_of_four_stages() -> None:
    assert chart(timetable([range(4)], Schedule(8, splits=True))).splitlines() == [
        "  0 | 0F0 0F1 0F2 0F3 .   .   .   0B0 0B0 0F4 0B1 0B1 0F5 0B2 0B2 0F6 0B3 0B3 0F7 0B4 0B4 0B5 0B5 0B6 0B6"
        " 0B7 0B7",
        "  1 | .   1F0 1F1 1F2 .   .   1B0 1F3 1B1 1W0 1B2 1F4 1B3 1W1 1F5 1W2 1B4 1F6 1W3 1F7 1B5 1W4 1B6 1W5 1B7"
        " 1W6 1W7",
        "  2 | .   .   2F0 2F1 .   2B0 2F2 2B1 2F3 2B2 2W0 2B3 2F4 2W1 2W2 2B4 2F5 2W3 2F6 2B5 2F7 2B6 2W4 2B7 2W5"
        " 2W6 2W7",
        "  3 | .   .   .   3F0 3B0 3F1 3B1 3F2 3B2 3F3 3B3 3W0 3W1 3F4 3B4 3W2 3W3 3F5 3B5 3F6 3B6 3F7 3B7 3W4 3W5"
        " 3W6 3W7",
    ]


@given(st.integers(2, 6), st.integers(1, 9), st.integers(1, 3))
def test_zero_bubble_keeps_no_more_graphs_than_the_first_stage(stages: int, microbatches: int, lead: int) -> None:
    most = lead * (stages - 1) + 1
    for stage in range(stages):
        order = zero_bubble(duty(stage), stages, microbatches, lead)
        for op in "FBW" if stage else "FB":
            assert [i.microbatch for i in order if i.op == op] == list(range(microbatches)), "in order: bits"
        kept = 0
        for i in order:
            kept += (i.op == "F") - (i.op == ("W" if stage else "B"))
            assert kept <= most
    splits, whole = (timetable([range(stages)], Schedule(microbatches, lead, x)) for x in (True, False))
    assert max(slot.end for slot in splits) <= max(slot.end for slot in whole)


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=6),
    st.integers(1, 5),
    st.integers(1, 3),
    st.booleans(),
    st.data(),
)
def test_what_is_left_of_a_step_never_deadlocks(
    hosts: list[int], microbatches: int, lead: int, splits: bool, data: st.DataObject
) -> None:
    """Whatever was done before a loss, the nodes' programs without it run to their end."""
    stages = len(hosts)
    owners = [f"n{h}" for h in hosts]
    schedule = Schedule(microbatches, lead, splits)
    whole = [slot.instruction for slot in timetable([hosts], schedule)]
    lost_stage = data.draw(st.integers(0, stages - 1))
    cut = data.draw(st.integers(0, len(whole)))
    results = set(whole[:cut])
    done = {i for i in results if i.stage != lost_stage}
    queues = {n: [i for i in mine if i not in done] for n, mine in programs([owners], schedule).items()}
    available = set(done)
    while any(queues.values()):
        heads = [q[0] for q in queues.values() if q]
        ready = [h for h in heads if all(n in available for n in inputs_of(h, stages))]
        assert ready, f"all wait: {[str(h) for h in heads]}"
        for q in queues.values():
            if q and q[0] in ready:
                available.add(q.pop(0))
    assert available == set(whole)
