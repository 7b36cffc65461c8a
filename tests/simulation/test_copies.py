"""Bulk losses in the simulated cluster: fewer nodes than there are copies go at once without a rollback."""

import os
import random
from dataclasses import replace

import pytest

from culm.coordinator import reports
from culm.coordinator import state as co
from culm.coordinator.decide import advance
from culm.coordinator.decisions import Decision
from culm.simulator.histories.simulated_cluster import Cluster
from culm.simulator.markets.virtual_coordinator import Decide
from tests.simulation.zone_losses import rolled_back

SOAK = os.environ.get("CULM_SOAK") == "1"


def after_a_bulk_loss(seed: int, copies: int, gone: int) -> Cluster:
    """So many neighbours of the ring, or any nodes, vanish at one moment, and come back."""
    draw = random.Random(f"bulk {seed}")
    stages, pipelines = draw.choice([4, 5, 6]), draw.choice([1, 1, 2, 3])
    nodes = stages * draw.choice([1, pipelines]) + draw.choice([0, 1])
    cluster = Cluster(
        seed, stages, stages + 2, 2, 12, nodes=nodes, disturb=0, pipelines=pipelines, settle_seconds=2.0, copies=copies
    )
    names = [f"n{i}" for i in range(nodes)]
    first = draw.randrange(nodes)
    chosen = [names[(first + i) % nodes] for i in range(gone)] if draw.random() < 0.7 else draw.sample(names, gone)

    def take() -> None:
        for name in chosen:
            cluster.faults.kill(cluster.nodes[name])

    cluster.clock.at(draw.uniform(0.3, 2.0), take)
    return cluster.run()


@pytest.mark.parametrize("copies", [2, 3, 4])
def test_fewer_lost_nodes_than_copies_roll_nothing_back(copies: int) -> None:
    for seed in range(10 if SOAK else 4):
        assert rolled_back(after_a_bulk_loss(seed, copies, copies - 1)) == [], f"seed {seed}"


@pytest.mark.parametrize("copies", [2, 3])
def test_as_many_lost_nodes_as_copies_may_roll_back(copies: int) -> None:
    assert any(rolled_back(after_a_bulk_loss(seed, copies, copies)) for seed in range(30))


def long_steps(state: co.State, report: reports.Report, now: float) -> Decision:
    """As a run decides whose steps take hours: what has taken two nodes at once will come again before it ends."""
    return advance(replace(state, watch=replace(state.watch, recent=(1e4,))), report, now)


def long_steps_on_slow_links(state: co.State, report: reports.Report, now: float) -> Decision:
    """The same where to send a layer's gradient takes far longer than the step."""
    slow = {name: replace(node, bytes_per_second=1e-6) for name, node in state.nodes.items()}
    return long_steps(replace(state, nodes=slow), report, now)


def copies_after_a_bulk(seed: int, decide: Decide) -> tuple[set[int], list[str]]:
    """Two of six nodes go at once, twice: the first time no neighbours, the second time any.

    How many copies stages had before the second time, and the rollbacks.
    """
    draw = random.Random(f"auto {seed}")
    cluster = Cluster(
        seed,
        6,
        8,
        2,
        80,
        nodes=6,
        disturb=0,
        settle_seconds=0.3,
        copies=co.NOTHING_BEFORE,
        respawn=False,
        decide=decide,
    )
    first = draw.randrange(6)
    copies: set[int] = set()

    def take() -> None:
        for name in (f"n{first}", f"n{(first + 2) % 6}"):
            cluster.faults.kill(cluster.nodes[name])

    def again() -> None:
        plan = cluster.state.plan
        assert plan is not None
        copies.update(len(stage.required()) for stage in plan.stages)
        for node in draw.sample([n for n in cluster.nodes.values() if n.alive], 2):
            cluster.faults.kill(node)

    cluster.clock.at(0.5, take)
    cluster.clock.at(6.0, again)
    cluster.run()
    return copies, rolled_back(cluster)


def test_a_bulk_loss_asks_for_more_copies_and_the_next_one_rolls_nothing_back() -> None:
    for seed in range(4 if SOAK else 2):
        copies, rollbacks = copies_after_a_bulk(seed, long_steps)
        assert min(copies) >= 3, f"seed {seed}"
        assert rollbacks == [], f"seed {seed}"


def test_copies_that_cost_more_than_rollbacks_are_not_made() -> None:
    for seed in range(4 if SOAK else 2):
        copies, _ = copies_after_a_bulk(seed, long_steps_on_slow_links)
        assert copies == {2}, f"seed {seed}"


def test_with_a_trace_of_bulks_the_first_bulk_rolls_nothing_back() -> None:
    """The trace took a third of the machines each hour. Two neighbours of six nodes go: without it a rollback."""
    rolled = 0
    for seed in range(4):
        for before in (co.NOTHING_BEFORE, co.BulksBefore((1 / 3,) * 4, 4.0)):
            cluster = Cluster(seed, 6, 8, 2, 30, nodes=6, disturb=0, settle_seconds=0.3, copies=before, respawn=False)
            first = random.Random(f"told {seed}").randrange(6)

            def take(cluster: Cluster = cluster, first: int = first) -> None:
                for name in (f"n{first}", f"n{(first + 1) % 6}"):
                    cluster.faults.kill(cluster.nodes[name])

            cluster.clock.at(0.5, take)
            cluster.run()
            if before.shares:
                assert rolled_back(cluster) == [], f"seed {seed}"
            else:
                rolled += bool(rolled_back(cluster))
    assert rolled == 4
