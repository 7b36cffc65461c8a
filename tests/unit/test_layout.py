"""Replicas within zones, the owners of a stage in several, and nodes where they hold most already."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from culm.coordinator.crossing import StepBytes, crossing, in_words
from culm.coordinator.layout import laid_out_in_zones
from culm.coordinator.node_prices import NodePrice
from culm.coordinator.placement import place
from culm.coordinator.zone_places import Row, Weights, apart, most_apart, places
from culm.pipeline.plan import Buckets, StagePlan

ONES = (1e6,) * 12


def even(stages: int, activations: float | None = None) -> Weights:
    return Weights((1.0,) * stages, () if activations is None else (activations,) * (stages - 1))


def drawn(rows: list[Row]) -> list[str]:
    return ["".join(zone or "." for zone in row) for row in rows]


def crossed(rows: list[Row]) -> int:
    """Boundaries between two zones that are named."""
    return sum(one != other and bool(one and other) for row in rows for one, other in pairwise(row))


@pytest.mark.parametrize(
    ("nodes", "rows", "expected"),
    [
        ({"a": 8, "b": 8}, 4, ["aaaa", "aaaa", "bbbb", "bbbb"]),
        # Zones that give no whole replica more share one.
        ({"a": 6, "b": 6}, 3, ["aaaa", "bbbb", "aabb"]),
        ({"a": 9, "b": 2, "c": 2}, 3, ["aaaa", "aaaa", "bbcc"]),
        # No zone has enough for a replica: the two of every stage are apart all the same.
        ({"a": 3, "b": 3, "c": 2}, 2, ["aaab", "bbcc"]),
        # With nodes left over one replica is elsewhere: the fewest gradients cross.
        ({"a": 16, "b": 16}, 4, ["aaaa", "aaaa", "aaaa", "bbbb"]),
        # Two nodes elsewhere keep two stages apart, and no more.
        ({"a": 10, "b": 2}, 3, ["aaaa", "aaaa", "aabb"]),
        # Who names no zone is apart from nobody.
        ({"a": 4, "b": 4, "": 8}, 4, ["aaaa", "bbbb", "....", "...."]),
    ],
)
def test_replicas_lie_in_zones(nodes: dict[str, int], rows: int, expected: list[str]) -> None:
    assert drawn(places(nodes, rows, even(4))) == expected


def test_large_gradients_are_worth_a_boundary() -> None:
    nodes = {"a": 6, "b": 6, "c": 4}
    assert drawn(places(nodes, 3, even(4, 100.0))) == ["aaaa", "bbbb", "cccc"]
    assert drawn(places(nodes, 3, even(4, 0.1))) == ["aaaa", "bbbb", "aabb"]


sizes = st.dictionaries(st.sampled_from(["", "a", "b", "c", "d"]), st.integers(1, 9), min_size=1)


@given(sizes, st.integers(1, 6), st.data())
@settings(max_examples=200)
def test_every_stage_is_in_two_zones_where_any_layout_has_it(
    nodes: dict[str, int], stages: int, data: st.DataObject
) -> None:
    total = sum(nodes.values())
    if total < 2 * stages:
        nodes, total = {**nodes, "a": nodes.get("a", 0) + 2 * stages}, total + 2 * stages
    rows = data.draw(st.integers(2, total // stages))
    weights = even(stages, data.draw(st.sampled_from([None, 0.01, 1.0, 100.0])))
    found = places(nodes, rows, weights)
    assert len(found) == rows
    assert {len(row) for row in found} == {stages}
    used = Counter(zone for row in found for zone in row)
    assert all(used[zone] <= nodes[zone] for zone in used), "no zone gives more than it has"
    assert apart(found) == most_apart(nodes, stages)
    assert found == places(nodes, rows, weights)
    if not weights.activations and all(count % stages == 0 for count in nodes.values()) and apart(found) == stages:
        assert crossed(found) == 0, "every replica can lie within a zone"


def most_by_hand(nodes: list[str], stages: int) -> int:
    """The most pairs of nodes in two zones, one taken after the other from the two largest."""
    left, found = Counter(zone for zone in nodes if zone), 0
    while found < stages and len(left) > 1:
        for zone, _ in left.most_common(2):
            left -= Counter([zone])
        found += 1
    return found


@given(st.lists(st.sampled_from(["", "a", "b", "c"]), max_size=16), st.integers(1, 6))
def test_so_many_stages_can_be_apart(nodes: list[str], stages: int) -> None:
    assert most_apart(Counter(nodes), stages) == most_by_hand(nodes, stages)


def test_a_node_keeps_the_stage_that_it_holds() -> None:
    nodes = [f"n{i}" for i in range(8)]
    zones = dict(zip(nodes, "aaaabbbb", strict=True))
    held = {"n0": ((1, 5.0),), "n1": ((1, 3.0),), "n2": ((0, 1.0),), "n5": ((0, 4.0),), "n7": ((0, 1.0), (1, 9.0))}
    grid = laid_out_in_zones(nodes, 4, zones, even(2), held)
    columns = [set(column) for column in zip(*grid, strict=True)]
    assert columns[0] == {"n2", "n3", "n5", "n4"}
    assert columns[1] == {"n0", "n1", "n7", "n6"}
    assert all(len({zones[node] for node in row}) == 1 for row in grid)
    rested = laid_out_in_zones(nodes, 2, {}, even(2), held, {"n0", "n2"})
    assert {node for row in rested for node in row} == {"n1", "n5", "n7", "n3"}, "slow nodes come last"


def test_a_run_begins_with_every_stage_in_two_zones() -> None:
    """Nodes in the order of names, zones at random: no replica leaves its zone, and each stage is in both."""
    zones = {f"n{i}": zone for i, zone in enumerate("abbabaab")}
    stages = place(zones, ONES, 2, copies=2, zones=zones, pipelines=4)
    assert [[zones[n] for n in stage.distinct_owners] for stage in stages] == [["a", "a", "b", "b"]] * 2
    assert in_words(stages, zones, StepBytes(ONES)) == (
        "the copies of every stage are in two zones or more; 4 of 4 replicas lie in one zone each; "
        "between zones a step sends 192.0 MB of parameter gradients, and activations at 0 of 4 boundaries"
    )


def test_what_crosses_is_counted_and_paid_by_whoever_sends() -> None:
    """Three owners of two layers: n0 adds up one, n1 the other; n1 is in another zone, and n2 in another region."""
    stage = StagePlan(0, 2, ("n0", "n1", "n2"), (), Buckets((), ("n0", "n1")))
    zones = {"n0": "a", "n1": "b", "n2": "c"}
    prices = {"n0": NodePrice(1.0, 0.01, 0.08, "r"), "n1": NodePrice(1.0, 0.02, 0.09, "r")}
    prices["n2"] = NodePrice(1.0, 0.03, 0.1, "s")
    sizes = StepBytes((1e9, 1e9))  # of 4 GB each
    counted = crossing((stage,), zones, sizes, prices)
    # Each layer: two parts to its reducer, two sums back.
    assert counted.gradient_bytes == 2 * 4 * 4_000_000_000
    parts = 4 * (0.01 + 0.02) + 2 * 4 * 0.1
    sums = 4 * (0.01 + 0.08) + 4 * (0.02 + 0.09)
    assert counted.dollars == pytest.approx(parts + sums)
    away = replace(stage, first_layer=2, end_layer=4)
    both = crossing((stage, away), zones, StepBytes((1e9,) * 4, (0.0, 5e8, 0.0, 0.0)), prices)
    assert (both.boundaries, both.all_boundaries, both.activation_bytes) == (0, 3, 0)
    turned = replace(away, owners=("n1", "n0", "n2"))
    one = crossing((stage, turned), zones, StepBytes((0.0,) * 4, (0.0, 5e8, 0.0, 0.0)), prices)
    assert (one.boundaries, one.activation_bytes) == (2, 2 * 2 * 500_000_000)
    assert one.dollars == pytest.approx(2 * 0.5 * (0.01 + 0.02))
