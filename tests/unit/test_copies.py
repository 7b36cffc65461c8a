"""How many copies are enough for the losses that were seen."""

from dataclasses import replace
from itertools import combinations
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from culm.coordinator.copies import WORTHWHILE, Losses, and_before, bulks, choose, expected_rollbacks, risk
from culm.coordinator.copy_costs import Costs
from culm.coordinator.state import NOTHING_BEFORE, BulksBefore

ALONE = Losses(bulks=(1,) * 20, hours=10.0, nodes=20, owners=(1,) * 20, hours_left=10.0)
IN_BULK = replace(ALONE, bulks=(1, 2, 6, 2, 4, 1, 3))


def dear(of_step: float) -> Costs:
    """Steps of 10 s. Each copy beyond two makes one longer by so many seconds."""
    return Costs(step=10.0, of_step=lambda copies: of_step * (copies - 2), to_seed=1.0, rollback=300.0)


CHEAP = dear(0.04)


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


def test_owners_are_copies_and_lower_the_risk() -> None:
    owned = replace(IN_BULK, owners=(3,) * 20)
    assert expected_rollbacks(owned, 2) == expected_rollbacks(IN_BULK, 3) < expected_rollbacks(IN_BULK, 2)
    one_of_all = replace(IN_BULK, owners=(*(3,) * 19, 1))
    assert expected_rollbacks(IN_BULK, 3) < expected_rollbacks(one_of_all, 2) < expected_rollbacks(IN_BULK, 2)


def test_without_losses_two_copies_are_enough() -> None:
    assert choose(replace(ALONE, bulks=()), CHEAP) == (2, "2 copies of every stage: no node has been lost so far")


def test_nodes_that_go_one_by_one_need_two_copies_and_bulks_need_more() -> None:
    assert choose(ALONE, dear(0.1))[0] == 2
    assert choose(IN_BULK, CHEAP)[0] == 4
    assert choose(replace(IN_BULK, bulks=(12, 12, 12)), CHEAP)[0] > 4


def test_the_dearer_copies_are_the_fewer_are_chosen() -> None:
    huge = replace(IN_BULK, bulks=(18,) * 12)
    found = [choose(huge, dear(seconds))[0] for seconds in (0.0001, 0.01, 0.1, 1.0)]
    assert found == sorted(found, reverse=True)
    assert found[0] > 12
    assert found[-1] == 2


def test_the_more_a_rollback_costs_the_more_copies_are_chosen() -> None:
    found = [choose(IN_BULK, replace(dear(0.1), rollback=seconds))[0] for seconds in (10.0, 300.0, 30_000.0)]
    assert found == sorted(found)
    assert found[0] == 2 < found[-1]


def test_one_bulk_larger_than_any_is_reckoned_with() -> None:
    assert expected_rollbacks(ALONE, 2) == pytest.approx(risk(2, 2, 20, 20))
    assert expected_rollbacks(replace(ALONE, bulks=(2,)), 3) == pytest.approx(risk(3, 3, 20, 20))


def test_the_reason_has_both_costs_and_those_of_the_numbers_beside_it() -> None:
    copies, why = choose(IN_BULK, CHEAP, present=2)
    rolled = [300.0 * expected_rollbacks(IN_BULK, count) for count in (2, 3, 4, 5)]
    assert (copies, why) == (
        4,
        "4 copies of every stage: up to 6 of 20 nodes were lost at once, in 7 losses in 10.0 h; in the 10.0 h that are "
        f"left they cost 290 s, and {rolled[2]:.0f} s of rollbacks are to be expected, each of 300 s; with 2 copies "
        f"0 s and {rolled[0]:.0f} s, with 3 copies 145 s and {rolled[1]:.0f} s, "
        f"with 5 copies 435 s and {rolled[3]:.0f} s",
    )
    _, why = choose(IN_BULK, replace(CHEAP, taken="no link has been measured"), present=2)
    assert why.endswith("; no link has been measured")


def test_no_more_copies_are_chosen_than_have_a_place() -> None:
    assert choose(IN_BULK, CHEAP, most=3)[0] == 3
    assert choose(replace(IN_BULK, nodes=1, owners=(1,)), CHEAP)[0] == 1
    assert choose(replace(IN_BULK, nodes=2, owners=(1, 1)), CHEAP)[0] == 2


def test_a_bulk_of_all_nodes_calls_for_no_copies() -> None:
    copies, why = choose(replace(ALONE, bulks=(1, 20), hours_left=1.0), dear(0.1))
    assert copies == 2
    assert why.endswith("1 losses took as many nodes as there are, against which no number of copies helps")


def test_a_number_that_is_as_good_stays_and_one_that_costs_more_does_not() -> None:
    """Of a run of ten hours 36 s are as good as nothing."""
    free = dear(0.0)
    assert choose(ALONE, free, present=7)[0] == 7
    assert choose(ALONE, dear(0.005), present=4)[0] == 4
    assert choose(ALONE, dear(0.005), present=7)[0] < 7


@given(
    sizes=st.lists(st.integers(1, 30), max_size=12),
    nodes=st.integers(1, 30),
    hours=st.floats(0.0, 100.0),
    left=st.floats(0.0, 1000.0),
    present=st.integers(0, 6),
    of_step=st.floats(0.0, 10.0),
)
def test_no_other_number_costs_less(
    sizes: list[int], nodes: int, hours: float, left: float, present: int, of_step: float
) -> None:
    seen = Losses(bulks=sizes, hours=hours, nodes=nodes, owners=(1,) * nodes, hours_left=left)
    costs = replace(dear(of_step), to_seed=0.0)
    copies, why = choose(seen, costs, present)
    assert 1 <= copies <= nodes
    assert why.startswith(f"{copies} copies")

    def price(count: int) -> float:
        return left * 3600.0 * costs.of_step(count) / costs.step + costs.rollback * expected_rollbacks(seen, count)

    # Beyond it the search ends where the rollbacks that are left cost as good as nothing.
    least = min(map(price, range(min(2, nodes), nodes + 1)))
    assert price(copies) <= least + 2 * WORTHWHILE * left * 3600.0 + 1e-6
    risks = [expected_rollbacks(seen, count) for count in range(1, nodes + 1)]
    assert risks == sorted(risks, reverse=True), "one more copy never brings more rollbacks"


def test_a_trace_tells_of_bulks_by_their_share_of_the_machines() -> None:
    before = BulksBefore((0.05, 0.3), 8.0)
    seen = and_before(replace(ALONE, bulks=(2,), hours=1.0), before)
    assert (list(seen.bulks), seen.hours, seen.from_trace) == ([1, 6, 2], 9.0, 2)
    copies, why = choose(seen, CHEAP)
    assert copies > choose(replace(ALONE, bulks=(2,), hours=1.0), CHEAP)[0]
    assert "in 3 losses in 9.0 h (of these 2 as in the given trace); in the" in why
    assert and_before(ALONE, NOTHING_BEFORE) == ALONE
