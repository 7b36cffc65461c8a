"""Bulk losses in the simulated cluster: fewer nodes than there are copies go at once without a rollback."""

import random

import pytest

from culm.simulator.histories.simulated_cluster import Cluster
from tests.simulation.test_zones import rolled_back


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
    for seed in range(30):
        assert rolled_back(after_a_bulk_loss(seed, copies, copies - 1)) == [], f"seed {seed}"


@pytest.mark.parametrize("copies", [2, 3])
def test_as_many_lost_nodes_as_copies_may_roll_back(copies: int) -> None:
    assert any(rolled_back(after_a_bulk_loss(seed, copies, copies)) for seed in range(30))
