"""Replicas in zones, in the simulated cluster: an outage of a zone takes no stage's only copies."""

import random
from dataclasses import replace
from typing import Any

import pytest

from culm.coordinator import commands as cmd
from culm.coordinator import reports
from culm.coordinator import state as co
from culm.coordinator.decide import advance
from culm.coordinator.zones import in_several_zones
from culm.simulator.histories.simulated_cluster import Cluster
from tests.simulation.test_everything import SOAK
from tests.simulation.test_grid import history_of_the_grid
from tests.simulation.zone_losses import lose_one_zone_and_then_the_other, rolled_back


def history_in_zones(seed: int, **rule: Any) -> Cluster:
    """Shapes that change often, on nodes of three zones. ``check_zones`` looks at each new one."""
    draw = random.Random(f"zones {seed}")
    nodes = draw.randint(4, 9)
    names = [*(f"n{i}" for i in range(nodes)), *(f"late{i}" for i in range(1, 9))]
    settings: dict[str, Any] = {
        "stages": draw.choice([1, 2, 3]),
        "layers": 6,
        "parameters": (),
        "pipelines": draw.choice([2, 3]),
        "nodes": nodes,
        "most_stages": 4,
        "steps": 10,
        "disturb": draw.choice([1, 2, 3]),
        "changes": draw.choice([0, 2, 4]),
        "settle_seconds": 0.1,
        "zones": {name: draw.choice(["a", "b", "c", draw.choice(["", "a"])]) for name in names},
    }
    return history_of_the_grid(seed, **(settings | rule))


@pytest.mark.parametrize("block", range(100 if SOAK else 2))
def test_every_new_shape_keeps_owners_apart(block: int) -> None:
    for seed in range(block * 10, block * 10 + 10):
        history_in_zones(seed).run()


def blind(state: co.State, report: reports.Report, now: float) -> tuple[co.State, tuple[cmd.Command, ...]]:
    """A coordinator that is told no zones."""
    return advance(state, replace(report, zone="") if isinstance(report, reports.Joined) else report, now)


def test_who_knows_no_zones_leaves_owners_together() -> None:
    cluster = history_in_zones(0, decide=blind)
    with pytest.raises(AssertionError, match="have owners in two zones"):
        cluster.run()


def two_zones(seed: int, steps: int) -> Cluster:
    """As many nodes in each as two replicas have, which are all that there are pipelines for."""
    draw = random.Random(seed)
    stages = draw.choice([1, 2, 3])
    each = 2 * stages + draw.choice([0, 1])
    zones = {f"n{i}": "a" if i < each else "b" for i in range(2 * each)}
    return Cluster(
        seed, stages, stages + 1, 2, steps, nodes=2 * each, pipelines=2, disturb=0, zones=zones, settle_seconds=0.5
    )


def safe(cluster: Cluster) -> bool:
    """Whether every stage has owners in two zones."""
    plan = cluster.state.plan
    if plan is None:
        return False
    return all(in_several_zones(stage.distinct_owners, cluster.zones) for stage in plan.stages)


def test_a_zone_may_go_and_when_it_is_back_the_other_one() -> None:
    """What is left makes both replicas in one zone. They move apart again, though that makes no step shorter."""
    for seed in range(6 if SOAK else 3):
        cluster = two_zones(seed, steps=120)
        killed = lose_one_zone_and_then_the_other(cluster, safe)
        assert rolled_back(cluster) == [], f"seed {seed}"
        assert killed == ["a", "b"], f"seed {seed}: owners did not move apart in time"
