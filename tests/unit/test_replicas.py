"""Stages with several owners: who runs which pipelines, who adds up what, and what a lost owner changes."""

import pytest

from culm.coordinator import replicas
from culm.coordinator.placement import hand_over, place, promote, settle
from culm.coordinator.repartition import propose
from culm.coordinator.standbys import repair
from culm.coordinator.step_cost import Situation
from culm.pipeline.plan import StagePlan

COSTS = (4.0, 1.0, 1.0, 2.0)
EIGHT = [f"n{i}" for i in range(8)]


def shape_of(stages: tuple[StagePlan, ...]) -> list[int]:
    """Owners of each stage."""
    return [len(stage.distinct_owners) for stage in stages]


@pytest.mark.parametrize(
    ("nodes", "stages", "pipelines", "expected"), [(1, 2, 8, 1), (8, 2, 8, 4), (7, 2, 8, 3), (8, 2, 3, 3), (8, 8, 8, 1)]
)
def test_as_many_replicas_as_nodes_and_pipelines_make(nodes: int, stages: int, pipelines: int, expected: int) -> None:
    assert replicas.count(nodes, stages, pipelines) == expected


def test_every_stage_has_as_many_owners_and_no_standby() -> None:
    stages = place(EIGHT, COSTS, 2, copies=2, pipelines=8)
    assert shape_of(stages) == [4, 4]
    assert not any(stage.standbys for stage in stages)
    assert all(owner == stages[1].owners[p - p % 2] for p, owner in enumerate(stages[1].owners)), "in aligned blocks"


def test_the_largest_layers_are_given_out_first_and_evenly() -> None:
    assert replicas.reducers(("a", "b", "a"), (4.0, 1.0, 1.0, 2.0)) == ("a", "b", "b", "b")
    assert replicas.reducers(("a", "a"), COSTS) == ()


def test_a_lost_node_refills_its_own_slots_alone() -> None:
    before = ("a", "b", "c", "b")
    assert replicas.reducers(("a", "c"), COSTS, before) == ("a", "c", "c", "c")


def test_the_pipelines_of_a_lost_owner_go_to_the_least_loaded_one_at_a_time() -> None:
    stages = place(EIGHT, COSTS, 2, copies=2, pipelines=8)
    (lost,) = {stages[0].owners[0]}
    left, reasons = promote(stages, [lost], COSTS)
    assert left is not None
    first, second = left[0].owners[:2]
    assert lost not in left[0].holders()
    assert first != second, "one owner would have twice the work of the others"
    assert left[1] == stages[1]
    assert all("in place of n0" in reason for reason in reasons)


def test_the_last_copy_of_a_stage_is_the_last() -> None:
    stages = place(EIGHT, COSTS, 2, copies=2, pipelines=8)
    assert promote(stages, list(stages[1].distinct_owners))[0] is None


def test_with_one_owner_left_a_standby_is_seeded() -> None:
    stages = place(EIGHT[:4], COSTS, 2, copies=2, pipelines=2)
    left, _ = promote(stages, [stages[0].owners[0]], COSTS)
    assert left is not None
    repaired, _ = repair(left, [stages[1].owners[0], "n9"])
    assert [b.node for b in repaired[0].standbys] == ["n9"]
    assert not repaired[1].standbys, "its peers are its copies"


def test_who_is_to_go_hands_its_pipelines_to_its_peers_and_stays_no_standby() -> None:
    stages = place(EIGHT, COSTS, 2, copies=2, pipelines=8)
    leaving = stages[0].owners[0]
    handed, _ = hand_over(stages, [leaving], COSTS)
    assert leaving not in handed[0].holders()
    settled, _ = settle(stages, [n for n in EIGHT if n != leaving], (), [leaving], costs=COSTS)
    assert leaving not in settled[0].holders()


def test_the_shape_follows_the_nodes_that_are_left() -> None:
    stages = place(EIGHT, (1.0,) * 12, 2, copies=2, pipelines=8)
    left, _ = promote(stages, ["n0"], (1.0,) * 12)
    assert left is not None
    situation = Situation(
        layer_costs=(1.0,) * 12,
        layer_parameters=(1.0,) * 12,
        microbatches=32,
        pipelines=8,
        most_stages=12,
        nodes=tuple(EIGHT[1:]),
        copies=2,
        seed_bytes_per_second=1e12,
        seconds_to_next_lost=3600.0,
        slowness={},
    )
    proposal = propose(left, situation)
    assert proposal is not None
    better, reason = proposal
    assert len(set(shape_of(better))) == 1, "every stage has as many owners"
    assert len(better) * shape_of(better)[0] <= 7
    assert "in place of" in reason
    assert propose(better, situation) is None, "nothing moves without a gain"


def test_one_more_node_is_taken_where_it_halves_the_step() -> None:
    """Of sixteen pipelines on fifteen nodes one node runs two, and all wait for it."""
    names = tuple(f"n{i}" for i in range(16))
    situation = Situation(
        layer_costs=(1.0,),
        layer_parameters=(1.0,),
        microbatches=16,
        pipelines=16,
        most_stages=1,
        nodes=names,
        copies=2,
        seed_bytes_per_second=1e12,
        seconds_to_next_lost=3600.0,
        slowness={},
    )
    proposal = propose(place(names[:15], (1.0,), 1, copies=2, pipelines=16), situation)
    assert proposal is not None
    assert shape_of(proposal[0]) == [16]
