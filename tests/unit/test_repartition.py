"""When cutting the model anew pays, and into what."""

from dataclasses import replace

import pytest

from culm.coordinator.gradient_bytes import most_sent
from culm.coordinator.moving import given
from culm.coordinator.placement import place
from culm.coordinator.repartition import propose
from culm.coordinator.standbys import repair
from culm.coordinator.step_cost import Situation, step_cost

CALM = Situation(
    layer_costs=(1e6,) * 12,
    layer_parameters=(1e6,) * 12,
    microbatches=8,
    pipelines=1,
    most_stages=4,
    nodes=("n0", "n1", "n2", "n3"),
    copies=2,
    seed_bytes_per_second=1e8,
    seconds_to_next_lost=3600.0,
    slowness={},
)
FOUR = place(CALM.nodes, CALM.layer_costs, 4, copies=2)


def test_what_is_balanced_stays() -> None:
    assert propose(FOUR, CALM) is None


def test_layers_that_cost_nothing_stay_where_they_are() -> None:
    """A model without parameters, whose layers nobody has timed."""
    nothing = replace(CALM, layer_costs=(0.0,) * 12, layer_parameters=(0.0,) * 12)
    assert propose(FOUR, nothing) is None
    assert propose(FOUR, replace(nothing, nodes=CALM.nodes[:3], step_seconds=1.0, bytes_per_second=1e9)) is None
    several = place(CALM.nodes, nothing.layer_costs, 2, copies=2, pipelines=4)
    assert propose(several, replace(nothing, pipelines=4, nodes=CALM.nodes[:3])) is None


def test_three_nodes_share_what_four_had() -> None:
    three = place(("n0", "n1", "n2"), CALM.layer_costs, 4, copies=2)
    proposal = propose(three, replace(CALM, nodes=("n0", "n1", "n2")))
    assert proposal is not None
    stages, reason = proposal
    assert [(len(s.layers), s.owner) for s in stages] == [(4, "n0"), (4, "n1"), (4, "n2")]
    assert reason.startswith("3 stages in place of 4 stages: a step takes ")


def test_where_losses_come_too_often_moving_does_not_pay() -> None:
    three = place(("n0", "n1", "n2"), CALM.layer_costs, 4, copies=2)
    often = replace(CALM, nodes=("n0", "n1", "n2"), seconds_to_next_lost=0.05)
    assert propose(three, often) is None


def test_a_slow_node_gets_fewer_layers_and_is_not_given_up() -> None:
    proposal = propose(FOUR, replace(CALM, slowness={"n1": 3.0}))
    assert proposal is not None
    stages, _ = proposal
    assert [s.owner for s in stages] == ["n0", "n1", "n2", "n3"]
    assert len(stages[1].layers) == 1
    situation = replace(CALM, slowness={"n1": 3.0})
    assert step_cost(stages, situation) < step_cost(FOUR, situation)


def test_a_node_that_is_to_go_owns_nothing_afterwards() -> None:
    proposal = propose(FOUR, replace(CALM, nodes=("n0", "n2", "n3")))
    assert proposal is None or all("n1" not in s.holders() for s in proposal[0])


def test_more_nodes_make_more_stages_where_the_job_allows_it() -> None:
    nodes = (*CALM.nodes, "n4", "n5")
    assert propose(FOUR, replace(CALM, nodes=nodes)) is None
    proposal = propose(FOUR, replace(CALM, nodes=nodes, most_stages=6))
    assert proposal is not None
    assert [len(s.layers) for s in proposal[0]] == [2] * 6


def test_gradients_that_a_slow_link_holds_up_ask_for_more_stages() -> None:
    """Eight nodes and pipelines: on fast links replicas of one stage are best, on slow ones the bytes decide."""
    names = tuple(f"n{i}" for i in range(8))
    situation = replace(CALM, nodes=names, pipelines=8, microbatches=16, most_stages=8, seconds_to_next_lost=1e6)
    one_row = place(names, CALM.layer_costs, 8, copies=2, pipelines=8)
    proposed = propose(one_row, situation)
    assert proposed is not None
    assert len(proposed[0]) == 1
    fast = propose(one_row, replace(situation, step_seconds=1.0, bytes_per_second=1e10))
    assert fast is not None
    assert fast[0] == proposed[0]
    assert propose(one_row, replace(situation, step_seconds=1.0, bytes_per_second=1e6)) is None
    all_replicas = place(names, CALM.layer_costs, 1, copies=2, pipelines=8)
    back = propose(all_replicas, replace(situation, step_seconds=100.0, bytes_per_second=1e6))
    assert back is not None
    assert len(back[0]) > 1


@pytest.mark.parametrize(
    ("stages", "nodes", "copies", "pipelines"), [(1, 2, 2, 1), (1, 3, 2, 1), (2, 3, 3, 1), (1, 3, 3, 2), (2, 5, 3, 2)]
)
def test_no_shape_is_better_for_lack_of_its_standbys(stages: int, nodes: int, copies: int, pipelines: int) -> None:
    """Laid out without them one seemed to send less: the standby went, was seeded again, and so on for ever."""
    names = tuple(f"n{i}" for i in range(nodes))
    situation = replace(CALM, nodes=names, copies=copies, pipelines=pipelines, most_stages=stages)
    situation = replace(situation, step_seconds=1.0, bytes_per_second=1e7, seconds_to_next_lost=1e6)
    present = place(names, CALM.layer_costs, stages, copies=copies, pipelines=pipelines)
    while (asked := repair(present, names, copies=copies)[0]) is not present:
        present = tuple(replace(s, standbys=tuple(replace(b, hot=True) for b in s.standbys)) for s in asked)
    proposal = propose(present, situation)
    if proposal is not None:
        assert all(len(stage.required()) >= copies for stage in proposal[0])
        assert [(s.layers, s.owners) for s in proposal[0]] != [(s.layers, s.owners) for s in present]


def test_what_each_node_sends_of_gradients() -> None:
    """Of 12 layers of 4 MB: a stage to its standby; half a model's partials and its sums, twice, of two replicas."""
    assert most_sent(FOUR, CALM.layer_parameters) == 3 * 4e6
    assert most_sent(place(CALM.nodes, CALM.layer_costs, 1, copies=2, pipelines=4), CALM.layer_parameters) == 1.5 * 48e6
    two = place(CALM.nodes, CALM.layer_costs, 2, copies=2, pipelines=4)
    assert most_sent(two, CALM.layer_parameters) == 24e6
    three_copies = place(CALM.nodes, CALM.layer_costs, 2, copies=3, pipelines=4)
    assert most_sent(three_copies, CALM.layer_parameters) == 1.5 * 24e6


MANY = replace(
    CALM,
    pipelines=8,
    microbatches=64,
    nodes=tuple(f"n{i}" for i in range(32)),
    seed_bytes_per_second=1e6,
    copies=2,
    step_seconds=10.0,
    bytes_per_second=1e7,
)


def test_holders_give_side_by_side() -> None:
    """Each of four owners gives its 36 MB to one newcomer."""
    eight = place(MANY.nodes[:8], MANY.layer_costs, 4, copies=2, pipelines=8)
    before = place(MANY.nodes[:4], MANY.layer_costs, 4, copies=1, pipelines=8)
    assert given(eight, before, MANY.layer_parameters) == {f"n{i}": 36e6 for i in range(4)}
    proposal = propose(before, replace(MANY, nodes=MANY.nodes[:8], copies=1, seconds_to_next_lost=40.0))
    assert proposal is not None
    assert "moving 144 MB costs 3.6 s" in proposal[1]


def test_a_run_grows_in_parts_where_nodes_are_lost_before_all_could_be_seeded() -> None:
    """The four owners would need 252 s for 28 others, and can seed four before the next node is lost."""
    stages = place(MANY.nodes[:4], MANY.layer_costs, 4, copies=1, pipelines=8)
    calm = propose(stages, replace(MANY, copies=1))
    assert calm is not None
    assert len({owner for stage in calm[0] for owner in stage.distinct_owners}) == 32
    hasty = replace(MANY, copies=1, seconds_to_next_lost=40.0)
    sizes = []
    while (proposal := propose(stages, hasty)) is not None:
        before, stages = stages, proposal[0]
        assert max(given(stages, before, MANY.layer_parameters).values()) / MANY.seed_bytes_per_second <= 40.0
        sizes.append(len({owner for stage in stages for owner in stage.distinct_owners}))
    assert sizes == sorted(sizes)
    assert sizes[0] > 4
    assert len(sizes) > 1


def test_where_some_newcomers_alone_can_be_seeded_in_time_every_zone_gives_some() -> None:
    """The first 14 are in the zone of the owners: one outage would take all copies, though others are there."""
    zones = {name: "a" if i < 18 else "b" for i, name in enumerate(MANY.nodes)}
    stages = place(MANY.nodes[:4], MANY.layer_costs, 4, copies=1, pipelines=8)
    proposal = propose(stages, replace(MANY, copies=1, seconds_to_next_lost=40.0, zones=zones))
    assert proposal is not None
    owners = {owner for stage in proposal[0] for owner in stage.distinct_owners}
    assert len(owners) < 18
    assert {zones[owner] for owner in owners} == {"a", "b"}
