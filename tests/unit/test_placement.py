"""Where standbys go: after losses and returns every node carries its part, and placements come to rest."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from culm.coordinator.placement import place, promote, settle
from culm.coordinator.standbys import Burdens, repair
from culm.pipeline.plan import StagePlan, Stages, Standby

COSTS = (1.0,) * 12


def seeded(stages: Stages) -> set[tuple[int, str]]:
    return {(s, node) for s, stage in enumerate(stages) for node in stage.holders()}


def rest(stages: Stages, nodes: list[str], copies: int = 2) -> Stages:
    """The placement that nothing changes any more."""
    for _ in range(100):
        settled, reasons = settle(stages, nodes, seeded(stages), copies=copies)
        if not reasons:
            return settled
        stages = settled
    raise AssertionError("it does not come to rest")


def duties(stages: Stages) -> Counter[str]:
    """How many stages each node stands by for."""
    return Counter(b.node for stage in stages for b in stage.standbys)


def test_a_node_that_stands_by_for_several_shares_with_an_idle_one() -> None:
    """Two of four nodes held all standbys beside an idle spare."""
    owners, standbys = ["n0", "n1", "n2", "n3"], ["n1", "n2", "n1", "n2"]
    stages = tuple(
        StagePlan(s * 3, s * 3 + 3, (owner,), (Standby(standby, True),))
        for s, (owner, standby) in enumerate(zip(owners, standbys, strict=True))
    )
    settled = rest(stages, [*owners, "n4"])
    assert max(Burdens(settled).copies.values()) == 2, duties(settled)
    assert [stage.owner for stage in settled] == owners


def test_a_spare_stays_one_beside_a_ring() -> None:
    nodes = ["n0", "n1", "n2", "n3"]
    stages = place(nodes, COSTS, 4, copies=2)
    assert settle(stages, [*nodes, "n4"], seeded(stages)) == (stages, ())


@given(st.integers(2, 8), st.integers(2, 8), st.integers(2, 4), st.data())
def test_from_any_losses_nobody_stands_by_for_several_beside_a_node_that_holds_two_less(
    count: int, cut: int, copies: int, data: st.DataObject
) -> None:
    nodes = [f"n{i}" for i in range(count)]
    stages = place(nodes, COSTS, cut, copies=copies)
    lost = data.draw(st.sets(st.sampled_from(nodes), max_size=count - 1))
    left, _ = promote(stages, lost)
    if left is None:
        return
    stay = [n for n in nodes if n not in lost]
    left, _ = repair(left, stay, copies=copies)
    for there in (stay, nodes):
        left = rest(left, there, copies)
        assert all(len(stage.required()) == min(copies, len(there)) for stage in left), "every stage has its copies"
        carried = Burdens(left)
        for node, several in duties(left).items():
            free = [n for n in there if carried.copies[n] <= carried.copies[node] - 2]
            possible = [s for s in left if node in {b.node for b in s.standbys} and set(free) - set(s.holders())]
            assert several < 2 or not possible, (node, left)


def test_standbys_lie_in_a_chain() -> None:
    """Neighbours in the ring that all go at once lose no stage, as long as they are fewer than its copies."""
    nodes = [f"n{i}" for i in range(6)]
    stages = place(nodes, COSTS, 6, copies=3)
    assert [[b.node for b in stage.standbys] for stage in stages][:3] == [["n5", "n4"], ["n0", "n5"], ["n1", "n0"]]
    for first in range(6):
        left, _ = promote(stages, [nodes[first], nodes[(first + 1) % 6]])
        assert left is not None
    assert promote(stages, nodes[:3])[0] is None


def test_owners_count_as_copies() -> None:
    """Two replicas of two stages: the third copy of each is held by an owner of the other stage."""
    stages = place([f"n{i}" for i in range(4)], COSTS, 2, copies=3, pipelines=2)
    assert [stage.distinct_owners for stage in stages] == [("n0", "n2"), ("n1", "n3")]
    assert [stage.standbys for stage in stages] == [(Standby("n1", True),), (Standby("n0", True),)]
    assert settle(stages, [f"n{i}" for i in range(4)], seeded(stages), copies=3) == (stages, ())


def test_a_second_copy_goes_before_anybodys_third() -> None:
    nodes = [f"n{i}" for i in range(5)]
    stages = place(nodes, COSTS, 5, copies=3)
    left, _ = promote(stages, ["n0", "n1"])
    assert left is not None
    assert min(len(stage.required()) for stage in left) == 1
    left, _ = repair(left, nodes[2:], copies=3)
    assert {len(stage.holders()) for stage in left} == {2, 3}, "nobody is given a third one yet"
    assert all(len(stage.holders()) == 2 for stage in left if not all(b.hot for b in stage.standbys))
    settled = rest(left, nodes[2:], 3)
    assert all(len(stage.required()) == 3 for stage in settled)
