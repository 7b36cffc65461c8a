"""Cutting layers into stages."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from culm.pipeline.partition import partition, partitions


def test_equal_layers_are_shared_out_evenly() -> None:
    assert partition([1.0] * 4, 2) == ((0, 2), (2, 4))


def test_too_few_layers_are_refused() -> None:
    with pytest.raises(ValueError, match="2 layers cannot make 3 stages"):
        partition([1.0, 1.0], 3)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.data())
def test_no_cut_has_a_cheaper_worst_stage(costs: list[int], data: st.DataObject) -> None:
    stages = data.draw(st.integers(1, len(costs)))
    ranges = partition(costs, stages)
    assert [i for first, end in ranges for i in range(first, end)] == list(range(len(costs)))
    assert all(first < end for first, end in ranges)

    def worst(cuts: tuple[int, ...]) -> int:
        edges = (0, *cuts, len(costs))
        return max(sum(costs[a:b]) for a, b in pairwise(edges))

    best = min(worst(cuts) for cuts in combinations(range(1, len(costs)), stages - 1))
    assert max(sum(costs[a:b]) for a, b in ranges) == best


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8))
def test_all_numbers_of_stages_at_once_are_each_cut_alike(costs: list[int]) -> None:
    assert partitions(tuple(costs), len(costs)) == tuple(partition(costs, n) for n in range(1, len(costs) + 1))
