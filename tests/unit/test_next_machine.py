"""What the next machine would change: by the decisions of the coordinator itself, in runs of equal layers."""

from dataclasses import replace

import pytest

from culm.coordinator import next_machine
from culm.coordinator.decide import begin
from culm.coordinator.edges.outlook import told
from culm.coordinator.next_machine import Change
from culm.coordinator.node_prices import NodePrice
from culm.coordinator.placement import place
from culm.coordinator.repartition import propose
from culm.coordinator.situations import situation_of
from culm.coordinator.slowness import Pace
from culm.coordinator.state import Node, Phase, Settings, State, Watch
from culm.pipeline.plan import Plan
from culm.protos import coordinator_pb2 as pb

PRICE = NodePrice(per_hour=0.36)
LAYERS = 12


def run(nodes: int, stages: int, pipelines: int = 1, most_stages: int = 0, spares: int = 1) -> State:
    """A run of twelve equal layers whose steps take a second; its links are too fast to count."""
    settings = Settings(
        stages=stages,
        microbatches=16 // pipelines,
        steps=100,
        pipelines=pipelines,
        most_stages=most_stages,
        spares=spares,
        seed_bytes_per_second=1e12,
    )
    names = [f"n{i}" for i in range(nodes)]
    there = {n: Node(node=n, incarnation=1, address=f"{n}:1", available=True, price=PRICE) for n in names}
    costs = (1e6,) * LAYERS
    placed = place(names[:stages] if pipelines == 1 else names, costs, stages, copies=2, pipelines=pipelines)
    plan = Plan(term=1, generation=1, era=1, step=0, stages=placed, members={}, reason="by hand")
    return replace(
        begin(settings),
        phase=Phase.RUNNING,
        plan=plan,
        nodes=there,
        layer_costs=costs,
        watch=Watch(recent=(1.0, 1.0, 1.0)),
    )


def test_the_eighth_node_halves_a_step_of_eight_pipelines_and_the_seventh_changes_nothing() -> None:
    """Of eight pipelines on seven nodes one node runs two, and all wait for it; so it is on six, and on five."""
    more, less = next_machine.changes(run(nodes=7, stages=1, pipelines=8), 1e4)
    assert more is not None
    assert less is not None
    # A pipeline's two microbatches: the busiest node's four, or two.
    assert (more.node, more.dollars_per_hour) == ("n0", 0.36)
    assert more.after / more.before == pytest.approx(0.5)
    assert (less.node, less.dollars_per_hour) == ("n6", -0.36)
    assert less.after / less.before == pytest.approx(1.0)


def test_what_it_says_is_what_the_coordinator_proposes() -> None:
    state = run(nodes=5, stages=5, most_stages=6, spares=0)
    more, _ = next_machine.changes(state, 1e4)
    six = replace(state, nodes={**state.nodes, "n5": replace(state.nodes["n0"], node="n5")})
    assert state.plan is not None
    proposal = propose(state.plan.stages, situation_of(six, 1e4))
    assert more is not None
    assert proposal is not None
    assert more.why == "6 stages in place of 5 stages", "what it saves is told for now, not for then"
    assert proposal[1].startswith(f"{more.why}: a step takes 26 % less")
    # The busiest node has 3 of 12 layers, then 2: 16 microbatches pass, of which one passes all layers.
    assert more.before == 1.0
    assert more.after == pytest.approx((2 * 15 + 12) / (3 * 15 + 12))


def test_where_no_shape_pays_the_next_node_changes_nothing() -> None:
    more, _ = next_machine.changes(run(nodes=4, stages=4, most_stages=5, spares=0), 1e4)
    assert more is not None
    assert (more.before, more.after) == (1.0, 1.0), "of 12 layers one of 5 nodes has 3 still"
    assert more.why == "no other shape of 5 nodes pays: 4 stages on 4 of them, and one node would run none"


def test_a_spare_is_worth_nothing_to_the_step_and_goes_first() -> None:
    state = run(nodes=5, stages=4)
    more, less = next_machine.changes(state, 1e4)
    assert more is not None
    assert less is not None
    assert (less.node, less.after, less.before) == ("n4", 1.0, 1.0)
    assert less.why == "n4 runs no stage: 4 stages stay on 4 nodes"
    assert more.after == 1.0
    assert "2 nodes would run none" in more.why


def test_without_a_spare_the_others_share_the_stages_of_the_one_that_goes() -> None:
    state = run(nodes=4, stages=4, spares=0)
    _, less = next_machine.changes(state, 1e4)
    assert less is not None
    # (3 * 15 + 12) units with three layers each, (4 * 15 + 12) with four each.
    assert less.after / less.before == pytest.approx(72 / 57)
    assert "3 stages in place of 4 stages" in less.why


def test_the_node_that_gives_least_for_its_price_goes() -> None:
    state = run(nodes=4, stages=4)
    dear = replace(state.nodes["n1"], price=NodePrice(per_hour=0.72))
    slow = replace(state.nodes["n2"], pace=Pace(known=3.0))
    for node, expected in ((dear, "n1"), (slow, "n2")):
        _, less = next_machine.changes(replace(state, nodes={**state.nodes, node.node: node}), 1e4)
        assert less is not None
        assert less.node == expected


def test_of_one_node_there_is_none_less() -> None:
    more, less = next_machine.changes(run(nodes=1, stages=1), 1e4)
    assert more is not None
    assert less is None


def test_where_no_step_runs_nobody_can_tell() -> None:
    assert next_machine.changes(replace(run(nodes=4, stages=4), phase=Phase.WAITING, plan=None), 1e4) == (None, None)


def foreseen(seconds: float = 3600.0, dollars: float | None = 2.0) -> pb.GetCostResponse:
    """An hour is left, at two dollars an hour."""
    cost = pb.GetCostResponse(dollars_per_hour=2.0)
    cost.forecast.seconds.expected = seconds
    if dollars is not None:
        cost.forecast.dollars.expected = dollars
    return cost


def test_what_a_change_comes_to_until_the_end() -> None:
    half = Change("n0", before=1.0, after=0.5, dollars_per_hour=0.5, why="by hand")
    found = told(half, foreseen(), priced=True)
    assert (found.step_ratio, found.seconds) == (0.5, -1800.0)
    assert found.dollars == pytest.approx(0.5 * 2.5 - 2.0)
    # It is to be 0.8 anyhow: that is not to the node's credit.
    soon = told(replace(half, before=0.8, after=0.4), foreseen(), priced=True)
    assert soon.step_ratio == 0.5
    assert soon.seconds == pytest.approx(-1440.0)
    assert soon.dollars == pytest.approx(0.4 * 2.5 - 0.8 * 2.0)


def test_what_is_not_known_of_a_change_is_left_out() -> None:
    change = Change("n0", before=1.0, after=1.2, dollars_per_hour=-0.5, why="by hand")
    assert not told(change, foreseen(), priced=False).HasField("dollars")
    assert not told(change, foreseen(dollars=None), priced=True).HasField("dollars")
    assert not told(change, pb.GetCostResponse(), priced=True).HasField("seconds")
    assert told(change, pb.GetCostResponse(), priced=True).step_ratio == 1.2
