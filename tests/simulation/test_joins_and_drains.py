"""Random histories in which nodes join, are drained and are warned: nothing is done twice, and none gets stuck."""

import os
import random

import pytest

from culm.coordinator import reports
from culm.simulator.histories.simulated_cluster import Cluster

SOAK = os.environ.get("CULM_SOAK") == "1"


def history_of_changes(seed: int, disturb: int = 0) -> Cluster:
    """Nodes are drained and join; with ``disturb`` they are lost as well."""
    draw = random.Random(seed)
    stages = draw.choice([1, 2, 2, 3, 3, 4])
    return Cluster(
        seed,
        stages=stages,
        microbatches=draw.choice([1, 2, 3]),
        steps=draw.choice([8, 15]),
        spares=draw.choice([0, 0, 1]),
        disturb=disturb,
        changes=draw.choice([1, 2, 4]),
        layers=stages + draw.choice([0, 1, 3]),
    )


@pytest.mark.parametrize("fifty", range(100 if SOAK else 1))
def test_drains_and_joins_redo_nothing(fifty: int) -> None:
    for seed in range(fifty * 50, fifty * 50 + (50 if SOAK else 12)):
        cluster = history_of_changes(seed).run()
        executed = [x for node in cluster.every for x in node.executed]
        assert cluster.state.era == 0, f"seed {seed}: a drain rolled the run back"
        assert len(executed) == len(set(executed)), f"seed {seed}: work was done twice"


@pytest.mark.parametrize("fifty", range(100 if SOAK else 1))
def test_drains_joins_and_losses_end_exact(fifty: int) -> None:
    for seed in range(fifty * 50, fifty * 50 + (50 if SOAK else 12)):
        history_of_changes(seed, disturb=2).run()


def history_of_warnings(seed: int, disturb: int) -> Cluster:
    """Machines that may have to go, some of which do."""
    draw = random.Random(seed)
    stages = draw.choice([2, 3, 4])
    return Cluster(
        seed,
        stages=stages,
        steps=draw.choice([8, 15]),
        spares=draw.choice([0, 1, 2]),
        disturb=disturb,
        changes=draw.choice([0, 1, 2]),
        warnings=draw.choice([1, 2, 5]),
        layers=stages + draw.choice([0, 1, 3]),
    )


@pytest.mark.parametrize("fifty", range(40 if SOAK else 1))
def test_warnings_redo_nothing_and_end_exact(fifty: int) -> None:
    for seed in range(fifty * 50, fifty * 50 + (50 if SOAK else 12)):
        cluster = history_of_warnings(seed, disturb=seed % 3).run()
        executed = [x for node in cluster.every for x in node.executed]
        if seed % 3 == 0:
            assert len(executed) == len(set(executed)), f"seed {seed}: work was done twice"


def test_a_warned_node_hands_over_once_the_others_are_enough() -> None:
    cluster = Cluster(1, stages=3, steps=30, spares=1, disturb=0)
    cluster.clock.at(0.3, lambda: cluster.nodes["n1"].tell(reports.Warned("n1", "its cloud recommends a rebalance")))
    plan = cluster.run().state.plan
    assert plan is not None
    assert plan.held_by("n1") == ()
    assert plan.exposed() == ()
    assert "n1" in cluster.state.nodes, "it stays as a spare"
