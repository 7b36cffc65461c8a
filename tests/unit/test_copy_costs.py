"""What copies and rollbacks cost a run, by what its state knows."""

from dataclasses import replace

import pytest

from culm.coordinator import state as co
from culm.coordinator.copies import after_losses, bulks
from culm.coordinator.copy_costs import costs_of, most_copies
from culm.coordinator.gradient_bytes import most_sent
from culm.coordinator.placement import place
from culm.pipeline.layer_bytes import LayerBytes
from culm.pipeline.plan import Plan, Stages

LAYERS = (1e6, 1e6, 1e6, 1e6)
NAMES = [f"n{i}" for i in range(8)]
RUN = co.State(
    settings=co.Settings(stages=4, microbatches=4, steps=1000, checkpoint_every=100, chooses_copies=True),
    layer_costs=LAYERS,
    nodes={
        name: co.Node(node=name, incarnation=1, address=name, available=True, bytes_per_second=1e9) for name in NAMES
    },
    watch=co.Watch(recent=(2.0,)),
)


def cut(nodes: int, pipelines: int = 1, stages: int = 4) -> Stages:
    return place(NAMES[:nodes], LAYERS, stages, copies=2, pipelines=pipelines)


def test_a_copy_more_costs_its_gradients_on_the_slowest_link() -> None:
    costs = costs_of(RUN, cut(4), 1.0)
    assert [costs.of_step(copies) for copies in (2, 3, 6)] == pytest.approx([0.0, 0.004, 0.016])
    slow = replace(RUN, nodes={**RUN.nodes, "n3": replace(RUN.nodes["n3"], bytes_per_second=1e8)})
    assert costs_of(slow, cut(4), 1.0).of_step(3) == pytest.approx(0.04)
    assert costs.taken == ""


def test_copies_that_are_owners_cost_nothing() -> None:
    costs = costs_of(RUN, cut(6, pipelines=3, stages=2), 1.0)
    assert [costs.of_step(copies) for copies in (2, 3)] == [0.0, 0.0]
    assert costs.of_step(4) == pytest.approx(0.004), "of two layers an owner adds up one"


def test_so_many_copies_send_what_they_send_once_they_are_there() -> None:
    for copies in (2, 3, 4):
        there = place(NAMES, LAYERS, 4, copies=copies, pipelines=2)
        assert most_sent(cut(8, pipelines=2), LAYERS, copies) == most_sent(there, LAYERS)


def test_a_rollback_costs_half_of_what_lies_between_two_checkpoints_and_the_restart() -> None:
    restart = 12e6 / 1e8
    assert costs_of(RUN, cut(4), 1.0).rollback == pytest.approx(50 * 2.0 + restart)
    unsaved = replace(RUN, committed=400, settings=replace(RUN.settings, checkpoint_every=0))
    costs = costs_of(unsaved, cut(4), 1.0)
    assert costs.rollback == pytest.approx((400 + 300) * 2.0 + restart)
    assert costs.taken == "no checkpoints are saved, so a rollback takes all steps again that were taken until then"


def test_a_stage_is_exposed_for_two_steps_and_while_its_state_moves_on_the_slowest_link() -> None:
    assert costs_of(RUN, cut(4), 1.0).exposed == pytest.approx(2 * 2.0 + 12e6 / 1e9)
    assert costs_of(replace(RUN, watch=co.Watch()), cut(4), 1.0).exposed == pytest.approx(12e6 / 1e9), (
        "no step is known"
    )


def test_nodes_that_are_lost_before_a_copy_is_whole_count_as_lost_at_once() -> None:
    """A bulk of one every hour asks for no third copy. Two losses three seconds apart do, where steps take two."""
    hourly = tuple(3600.0 * hour for hour in range(20))
    for apart, copies in ((0.0, 3), (3.0, 3), (600.0, 2)):
        lost_at = tuple(sorted((*hourly, *(at + apart for at in hourly))))
        state = replace(RUN, settings=replace(RUN.settings, steps=1_000_000), lost_at=lost_at)
        after, why = after_losses(state, cut(8), len(NAMES) + 1, lost_at[-1])
        assert (after.copies_wanted, "within 4 s" in why) == (copies, copies == 3), f"{apart:g} s apart"


def test_losses_that_follow_each_other_closely_for_long_are_no_bulk_of_all() -> None:
    """Of a thousand nodes one goes every few seconds. Only those that go before a copy is whole are lost together."""
    every_3_seconds = tuple(3.0 * i for i in range(8))
    assert bulks(every_3_seconds, 1.0, exposed=4.0) == (2, 2, 2, 2)
    assert bulks((0.0, 0.9, 1.8, 2.7), 1.0) == (4,), "these went at once"


def test_what_nobody_has_measured_is_taken_from_the_job_and_told_of() -> None:
    unmeasured = {name: replace(node, bytes_per_second=0.0) for name, node in RUN.nodes.items()}
    costs = costs_of(replace(RUN, nodes=unmeasured, watch=co.Watch()), cut(4), 5.0)
    assert costs.step == pytest.approx(18.0)
    assert costs.of_step(3) == pytest.approx(0.04)
    assert costs.taken == (
        "no step has been timed, so the rest of the run is taken to last 5.0 h; no link has been measured, so each is "
        "taken to carry 100 MB/s, as seeding may"
    )


def test_memory_bounds_how_many_copies_there_may_be() -> None:
    assert most_copies(RUN) == 0
    layers = (LayerBytes(12_000_000, 4_000_000, 0),) * 4
    bound = {name: replace(node, memory_bytes=20_000_000) for name, node in RUN.nodes.items()}
    told = replace(RUN, layer_bytes=layers, nodes=bound)
    assert most_copies(told) == 8 * 20 // 48
    assert most_copies(replace(told, nodes={**bound, "n0": RUN.nodes["n0"]})) == 0
    assert most_copies(replace(told, settings=replace(RUN.settings, hosts_standbys=True))) == 0


def chosen(seen_for: float, lost: int, copies: int) -> int:
    """After a loss of so many nodes at once, in a run whose copies are dear and which lost one node so long ago."""
    state = replace(
        RUN,
        copies=copies,
        lost_at=(0.0, *(seen_for for _ in range(lost))),
        plan=Plan(term=1, generation=1, era=1, step=0, stages=cut(8, 2), members={}),
        layer_costs=tuple(1e3 * x for x in LAYERS),
    )
    state, _ = after_losses(state, cut(8, 2), len(NAMES) + 1, seen_for)
    return state.copies_wanted


def test_copies_become_fewer_once_a_leader_has_watched_for_an_hour() -> None:
    assert chosen(600.0, 1, copies=4) == 4
    assert chosen(4000.0, 1, copies=4) == 2
    assert chosen(4000.0, 3, copies=4) == 4, "nor within a bulk"
