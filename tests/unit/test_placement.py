"""Where standbys go: after losses and returns every node carries its part, and placements come to rest."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from culm.coordinator.placement import Burdens, place, promote, repair, settle
from culm.pipeline.plan import StagePlan, Stages, Standby

COSTS = (1.0,) * 12


def seeded(stages: Stages) -> set[tuple[int, str]]:
    return {(s, node) for s, stage in enumerate(stages) for node in stage.holders()}


def rest(stages: Stages, nodes: list[str]) -> Stages:
    """The placement that nothing changes any more."""
    for _ in range(100):
        settled, reasons = settle(stages, nodes, seeded(stages))
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
    stages = place(nodes, COSTS, 4, True)
    assert settle(stages, [*nodes, "n4"], seeded(stages)) == (stages, [])


@given(st.integers(2, 8), st.integers(2, 8), st.data())
def test_from_any_losses_nobody_stands_by_for_several_beside_a_node_that_holds_two_less(
    count: int, cut: int, data: st.DataObject
) -> None:
    nodes = [f"n{i}" for i in range(count)]
    stages = place(nodes, COSTS, cut, True)
    lost = data.draw(st.sets(st.sampled_from(nodes), max_size=count - 1))
    left, _ = promote(stages, lost)
    if left is None:
        return
    stay = [n for n in nodes if n not in lost]
    left, _ = repair(left, stay)
    for there in (stay, nodes):
        left = rest(left, there)
        carried = Burdens(left)
        for node, several in duties(left).items():
            free = [n for n in there if carried.copies[n] <= carried.copies[node] - 2]
            possible = [s for s in left if node in {b.node for b in s.standbys} and set(free) - set(s.holders())]
            assert several < 2 or not possible, (node, left)
