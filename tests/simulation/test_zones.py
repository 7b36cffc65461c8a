"""A zone that vanishes at once, in the simulated cluster: its stages go on elsewhere, and nothing rolls back."""

import os
import random

import pytest

from culm.coordinator.zones import apart
from culm.simulator.histories.simulated_cluster import Cluster
from tests.simulation.zone_losses import lose_one_zone_and_then_the_other, rolled_back

SOAK = os.environ.get("CULM_SOAK") == "1"


def two_zones(seed: int, steps: int) -> Cluster:
    """Nodes in blocks, as they come from a cloud: natural order alone would keep them together."""
    draw = random.Random(seed)
    stages = draw.choice([2, 4, 6])
    each = stages // 2 + draw.choice([0, 1])
    zones = {f"n{i}": "a" if i < each else "b" for i in range(2 * each)}
    layers, microbatches = stages + draw.choice([0, 3]), draw.choice([1, 2, 3])
    return Cluster(
        seed, stages, layers, microbatches, steps, nodes=2 * each, disturb=0, zones=zones, settle_seconds=2.0
    )


def safe(cluster: Cluster) -> bool:
    """Whether every stage has a hot standby in another zone."""
    plan = cluster.state.plan
    if plan is None:
        return False
    standbys = [(stage.owner, stage.hot_standby() or "") for stage in plan.stages]
    return all(apart(cluster.zones, *pair) for pair in standbys)


@pytest.mark.parametrize("block", range(4 if SOAK else 2))
def test_losing_a_whole_zone_rolls_nothing_back(block: int) -> None:
    for seed in range(block * 20, block * 20 + 20):
        cluster = two_zones(seed, steps=15)
        draw = random.Random(f"moment {seed}")
        zone = draw.choice("ab")
        cluster.clock.at(draw.uniform(0.1, 2.0), lambda c=cluster, z=zone: c.faults.kill_zone(z))  # type: ignore[misc]
        cluster.run()
        assert rolled_back(cluster) == [], f"seed {seed}"
        assert cluster.state.era == 0, f"seed {seed}"


def test_when_a_zone_is_back_the_other_one_may_go() -> None:
    """Standbys move apart again by themselves, after which the second zone can be lost as well."""
    for seed in range(6 if SOAK else 3):
        cluster = two_zones(seed, steps=200)
        killed = lose_one_zone_and_then_the_other(cluster, safe)
        assert rolled_back(cluster) == [], f"seed {seed}"
        assert killed == ["a", "b"], f"seed {seed}: standbys did not move apart in time"


@pytest.mark.parametrize("block", range(4 if SOAK else 2))
def test_histories_of_any_zones_end_alike(block: int) -> None:
    """Standbys that move apart, repairs, relief and new cuts of the model get on with each other."""
    for seed in range(block * 10, block * 10 + 10):
        draw = random.Random(f"zones {seed}")
        stages = draw.choice([2, 3, 4])
        nodes = stages + draw.choice([-1, 0, 1, 2])
        names = [*(f"n{i}" for i in range(nodes)), "late1", "late2"]
        zones = {name: draw.choice(["a", "b", draw.choice(["", "c"])]) for name in names}
        Cluster(
            seed,
            stages,
            layers=stages + draw.choice([0, 3]),
            steps=draw.choice([8, 30]),
            nodes=nodes,
            disturb=draw.choice([1, 3]),
            changes=draw.choice([0, 2]),
            links=draw.choice([0, 1]),
            settle_seconds=draw.choice([0.5, 30.0]),
            most_stages=draw.choice([0, stages + 1]),
            zones=zones,
        ).run()
