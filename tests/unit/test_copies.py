"""How many copies are enough for the losses that were seen."""

from dataclasses import replace
from itertools import combinations
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from culm.coordinator.copies import MOST_ROLLBACKS, Losses, and_before, bulks, choose, expected_rollbacks, risk
from culm.coordinator.state import NOTHING_BEFORE, BulksBefore

ALONE = Losses(bulks=(1,) * 20, hours=10.0, nodes=20, stages=20, hours_left=10.0)
IN_BULK = replace(ALONE, bulks=(1, 2, 6, 2, 4, 1, 3))


def test_nodes_that_go_within_a_second_of_the_one_before_are_one_bulk() -> None:
    assert bulks([], 1.0) == ()
    assert bulks([3.0, 3.0, 3.9, 4.8, 8.0, 20.0, 21.1], 1.0) == (4, 1, 1, 1)


@pytest.mark.parametrize(("bulk", "copies"), [(2, 2), (4, 2), (4, 3), (3, 4)])
def test_the_risk_of_one_stage_is_what_counting_all_bulks_gives(bulk: int, copies: int) -> None:
    nodes, held = 7, set(range(copies))
    taken = sum(held <= set(gone) for gone in combinations(range(nodes), bulk))
    assert risk(bulk, copies, nodes, 1) == pytest.approx(taken / comb(nodes, bulk))


def test_a_bulk_rolls_back_once_however_many_stages_it_takes() -> None:
    assert risk(6, 2, 8, 8) == 1.0
    assert risk(8, 8, 8, 1) == 1.0


def test_without_losses_two_copies_are_enough() -> None:
    assert choose(replace(ALONE, bulks=())) == (2, "2 copies of every stage: no node has been lost so far")


def test_nodes_that_go_one_by_one_need_two_copies_and_bulks_need_more() -> None:
    assert choose(replace(ALONE, hours_left=1.0))[0] == 2
    assert choose(IN_BULK)[0] == 4
    assert choose(replace(IN_BULK, bulks=(12, 12, 12)))[0] > 4


def test_one_bulk_larger_than_any_is_reckoned_with() -> None:
    assert expected_rollbacks(ALONE, 2) == pytest.approx(risk(2, 2, 20, 20))
    assert expected_rollbacks(replace(ALONE, bulks=(2,)), 3) == pytest.approx(risk(3, 3, 20, 20))


def test_a_longer_run_needs_more_copies() -> None:
    found = [choose(replace(IN_BULK, hours_left=hours))[0] for hours in (0.01, 1.0, 10.0, 1000.0)]
    assert found == sorted(found)
    assert found[0] == 2 < found[-1]


def test_the_reason_tells_what_one_copy_less_would_bring() -> None:
    copies, why = choose(IN_BULK)
    assert why == (
        "4 copies of every stage: up to 6 of 20 nodes were lost at once, in 7 losses in 10.0 h; so all copies of a "
        f"stage are expected to go {expected_rollbacks(IN_BULK, 4):.2g} times in the 10.0 h that are left, and with 3 "
        f"copies {expected_rollbacks(IN_BULK, 3):.2g} times"
    )
    assert expected_rollbacks(IN_BULK, copies) <= MOST_ROLLBACKS < expected_rollbacks(IN_BULK, copies - 1)


def test_more_copies_than_there_is_room_for_are_told_of() -> None:
    copies, why = choose(IN_BULK, most=3)
    assert copies == 3
    assert why.endswith("that is more than 0.5, but no more copies have a place")
    assert choose(replace(IN_BULK, nodes=1, stages=1))[0] == 1
    assert choose(replace(IN_BULK, nodes=2, stages=2))[0] == 2


def test_a_bulk_of_all_nodes_calls_for_no_copies() -> None:
    copies, why = choose(replace(ALONE, bulks=(1, 20), hours_left=1.0))
    assert copies == 2
    assert why.endswith("1 losses took as many nodes as there are, against which no number of copies helps")


def test_copies_become_fewer_only_well_below_the_bound() -> None:
    expected = expected_rollbacks(IN_BULK, 3)
    between = replace(IN_BULK, hours_left=10.0 * 0.75 * MOST_ROLLBACKS / expected)
    assert choose(between, present=3)[0] == choose(between)[0] == 3
    assert choose(between, present=4)[0] == 4
    assert choose(replace(between, hours_left=between.hours_left / 2), present=4)[0] == 3


@given(
    sizes=st.lists(st.integers(1, 30), max_size=12),
    nodes=st.integers(1, 30),
    hours=st.floats(0.0, 100.0),
    left=st.floats(0.0, 1000.0),
    present=st.integers(0, 6),
)
def test_the_bound_is_kept_wherever_there_are_nodes_for_it(
    sizes: list[int], nodes: int, hours: float, left: float, present: int
) -> None:
    seen = Losses(bulks=sizes, hours=hours, nodes=nodes, stages=nodes, hours_left=left)
    copies, why = choose(seen, present)
    assert 1 <= copies <= nodes
    assert copies == nodes or expected_rollbacks(seen, copies) <= MOST_ROLLBACKS
    assert why.startswith(f"{copies} copies")
    risks = [expected_rollbacks(seen, count) for count in range(1, nodes + 1)]
    assert risks == sorted(risks, reverse=True), "one more copy never brings more rollbacks"


def test_a_trace_tells_of_bulks_by_their_share_of_the_machines() -> None:
    before = BulksBefore((0.05, 0.3), 8.0)
    seen = and_before(replace(ALONE, bulks=(2,), hours=1.0), before)
    assert (list(seen.bulks), seen.hours, seen.from_trace) == ([1, 6, 2], 9.0, 2)
    copies, why = choose(seen)
    assert copies > choose(replace(ALONE, bulks=(2,), hours=1.0))[0]
    assert "in 3 losses in 9.0 h (of these 2 as in the given trace); so" in why
    assert and_before(ALONE, NOTHING_BEFORE) == ALONE
