"""A stage and its standby are in different zones where there are several, and what that costs is counted."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from culm.coordinator.crossing import StepBytes, crossing, in_words
from culm.coordinator.placement import place, promote, settle
from culm.coordinator.standbys import repair
from culm.coordinator.zones import Zones, apart, several
from culm.pipeline.plan import Stages
from culm.pipeline.text import natural_order

COSTS = (1e6,) * 24
SIZES = StepBytes(COSTS)


def pairs(stages: Stages) -> list[tuple[str, str]]:
    """(owner, standby) of every stage."""
    return [(stage.owner, b.node) for stage in stages for b in stage.standbys]


def zoned(*zones: str) -> dict[str, str]:
    """n0, n1, ... in these zones."""
    return {f"n{i}": zone for i, zone in enumerate(zones)}


def copies(stages: Stages, node: str) -> int:
    return sum(node in stage.holders() for stage in stages)


def test_the_ring_alternates_between_zones() -> None:
    stages = place(zoned(*"aabb"), COSTS, 4, copies=2, zones=zoned(*"aabb"))
    assert [stage.owner for stage in stages] == ["n0", "n2", "n1", "n3"]
    assert pairs(stages) == [("n0", "n3"), ("n2", "n0"), ("n1", "n2"), ("n3", "n1")]


def test_spares_are_left_where_there_are_more_nodes() -> None:
    stages = place(zoned(*"aaaaabb"), COSTS, 4, copies=2, zones=zoned(*"aaaaabb"))
    assert {stage.owner for stage in stages} == {"n0", "n1", "n5", "n6"}


def test_an_odd_ring_takes_a_spare_of_the_other_zone_for_the_pair_that_is_left() -> None:
    zones = zoned(*"aabb")
    stages = place(zones, COSTS, 3, copies=2, zones=zones)
    assert [stage.owner for stage in stages] == ["n0", "n2", "n1"]
    assert pairs(stages) == [("n0", "n3"), ("n2", "n0"), ("n1", "n2")]


def test_without_redundancy_the_zones_follow_one_another() -> None:
    zones = zoned(*"abab")
    stages = place(zones, COSTS, 4, copies=1, zones=zones)
    assert [stage.owner for stage in stages] == ["n0", "n2", "n1", "n3"]
    assert crossing(stages, zones, SIZES).boundaries == 1
    assert in_words(stages, zones, SIZES) == (
        "stages of one zone follow one another; between zones a step sends 0.0 MB of parameter gradients, "
        "and activations at 1 of 3 boundaries"
    )


def test_the_reason_counts_what_crosses() -> None:
    zones = zoned(*"aabb")
    assert in_words(place(zones, COSTS, 4, copies=2, zones=zones), zones, SIZES) == (
        "every standby is in another zone than its stage's owner; "
        "between zones a step sends 96.0 MB of parameter gradients, and activations at 3 of 3 boundaries"
    )
    together = place(zones, COSTS, 4, copies=2)
    assert crossing(together, zones, SIZES).together == (1, 3)
    assert "owner and standby may be in one zone at these stages: 1, 3" in in_words(together, zones, SIZES)
    assert in_words(together, zoned(*"aaaa"), SIZES) == ""


def test_repair_takes_a_spare_first_and_then_another_zone() -> None:
    zones = zoned(*"ababab")
    placed = place(list(zones)[:4], COSTS, 4, copies=2, zones=zones)
    left, _ = promote(placed, ["n1"])
    assert left is not None
    nodes = ["n0", "n2", "n3", "n4", "n5"]
    _, reasons = repair(left, nodes, zones=zones)
    assert reasons == [
        "n5, a spare in another zone than the owner, is seeded as standby of stage 1",
        "n4, a spare though not known to be in another zone than the owner, is seeded as standby of stage 2",
    ]
    _, reasons = repair(left, ["n0", "n2", "n3"], zones=zones)
    assert reasons == [
        "n3, which holds the fewest copies of those in another zone than the owner, is seeded as standby of stage 1",
        "n3, which holds the fewest copies of those in another zone than the owner, is seeded as standby of stage 2",
    ]


def seeded(stages: Stages) -> set[tuple[int, str]]:
    return {(s, node) for s, stage in enumerate(stages) for node in stage.holders()}


def test_standbys_move_apart_when_there_is_another_zone_again() -> None:
    zones = zoned(*"aabb")
    stages = place(["n0", "n1"], COSTS, 4, copies=2, zones=zones)
    said: list[str] = []
    for _ in range(12):
        stages, reasons = settle(stages, list(zones), seeded(stages), zones=zones)
        said.extend(reasons)
    assert all(apart(zones, *pair) for pair in pairs(stages)), pairs(stages)
    assert {stage.owner for stage in stages} == set(zones)
    assert any("which is not known to be in another one" in reason for reason in said)
    assert settle(stages, list(zones), seeded(stages), zones=zones) == (stages, ())


zone_lists = st.lists(st.sampled_from(["", "a", "b", "c", "d"]), min_size=2, max_size=12)


@given(zone_lists, st.integers(2, 12))
def test_with_two_zones_of_enough_nodes_every_stage_is_apart_from_its_standby(names: list[str], stages: int) -> None:
    zones = {n: z for n, z in zoned(*names).items() if z}
    counts = sorted(([*zones.values()].count(z) for z in set(zones.values())), reverse=True)
    if len(counts) < 2 or counts[1] < (min(stages, len(zones)) + 1) // 2:
        zones = zoned(*("ab" * ((stages + 1) // 2)))
    placed = place(zones, COSTS, stages, copies=2, zones=zones)
    assert all(stage.hot_standby() for stage in placed)
    assert all(apart(zones, *pair) for pair in pairs(placed)), pairs(placed)
    if len(zones) >= stages:
        assert max(copies(placed, n) for n in zones) <= 3, "one more than its own stage and its successor's"


@given(zone_lists, st.integers(1, 12), st.integers(1, 4))
def test_any_zones_make_a_whole_placement_and_settle_to_rest(names: list[str], stages: int, copies: int) -> None:
    zones = zoned(*names)
    placed = place(zones, COSTS, stages, copies=copies, zones=zones)
    assert [x for stage in placed for x in stage.layers] == list(range(len(COSTS)))
    assert len({stage.owner for stage in placed}) == min(len(zones), stages)
    for _ in range(4 * stages + 4):
        placed, _ = settle(placed, list(zones), seeded(placed), copies=copies, zones=zones)
    assert settle(placed, list(zones), seeded(placed), copies=copies, zones=zones) == (placed, ())


@given(st.integers(1, 12), st.integers(1, 12), st.sampled_from(["", "a"]))
def test_one_zone_or_none_changes_nothing(nodes: int, stages: int, zone: str) -> None:
    zones = zoned(*[zone] * nodes)
    assert not several(zones)
    assert place(zones, COSTS, stages, copies=2, zones=zones) == place(zones, COSTS, stages, copies=2)
    order = natural_order(zones)
    owners = order[:stages] if nodes >= stages else [order[s * nodes // stages] for s in range(stages)]
    assert [stage.owner for stage in place(zones, COSTS, stages, copies=2, zones=zones)] == owners


@given(zone_lists, st.integers(2, 8), st.data())
def test_from_any_losses_placements_settle_apart_again(names: list[str], stages: int, data: st.DataObject) -> None:
    zones = zoned(*names)
    placed = place(zones, COSTS, stages, copies=2, zones=zones)
    lost = data.draw(st.sets(st.sampled_from(sorted(zones)), max_size=len(zones) - 1))
    left, _ = promote(placed, lost)
    if left is None:
        return
    stay = [n for n in zones if n not in lost]
    left, _ = repair(left, stay, zones=zones)
    for nodes in (stay, list(zones)):
        for _ in range(6 * stages + 6):
            left, _ = settle(left, nodes, seeded(left), zones=zones)
        assert settle(left, nodes, seeded(left), zones=zones) == (left, ()), "it does not come to rest"
    if even(list(zones.values()), stages):
        assert all(apart(zones, *pair) for pair in pairs(left)), pairs(left)


def even(names: Sequence[str], stages: int) -> bool:
    """Whether two zones have as many nodes as half of the stages, and nobody is elsewhere."""
    return len(set(names)) == 2 and "" not in names and all(names.count(z) * 2 >= stages for z in set(names))


def test_zones_are_a_mapping_from_nodes() -> None:
    zones: Zones = {"n0": "a", "n1": "b", "n2": ""}
    assert apart(zones, "n0", "n1")
    assert not apart(zones, "n0", "n2")
    assert not apart(zones, "n2", "n3")
