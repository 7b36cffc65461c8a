"""Histories in which machines compute wrongly: the weights at the end are the plain loop's all the same (rule 25)."""

import os
import random
from typing import Any

import pytest

from culm.coordinator import state as co
from culm.pipeline.money.kinds import Differed
from culm.simulator.histories.simulated_cluster import Cluster
from culm.simulator.histories.wrong_machines import WrongMachines

SOAK = os.environ.get("CULM_SOAK") == "1"


def history_of_audits(seed: int, right: bool = False, **asked: Any) -> tuple[Cluster, WrongMachines]:
    """Any shape; every forward is audited. A bit or two flip, and forwards go wrong, unless all machines are right."""
    draw = random.Random(f"audited {seed}")
    stages, pipelines = draw.choice([(1, 2), (2, 1), (3, 1), (4, 1), (2, 2), (2, 3), (3, 2)])
    flips, forwards = draw.choice([0, 1, 2]), draw.choice([0, 1, 2])
    machines: list[WrongMachines] = []
    wrong = (0, 0) if right else (flips, forwards)
    cluster = Cluster(
        seed,
        stages=stages,
        pipelines=pipelines,
        nodes=max(2, stages * draw.choice([1, 1, 2])) if pipelines > 1 else stages + draw.choice([0, 1]),
        layers=4,
        microbatches=draw.choice([1, 2, 4]),
        steps=draw.choice([4, 8]),
        checkpoint_every=draw.choice([0, 1, 2, 3]),
        eager=draw.choice([False, False, True]),
        lead=draw.choice([1, 2]),
        splits=draw.choice([False, True]),
        ship_every=draw.choice([0, 0, 2]),
        copies=draw.choice([2, 2, 3]),
        audit=1.0,
        hostile=lambda world: machines.append(WrongMachines(world, *wrong)),
        **{"disturb": 0, **asked},
    )
    return cluster, machines[0]


def differed(cluster: Cluster) -> list[Differed]:
    return [record.event for _, record in cluster.records if isinstance(record.event, Differed)]


@pytest.mark.parametrize("fifty", range(40 if SOAK else 1))
def test_whatever_goes_wrong_in_a_forward_or_a_state_no_bit_of_it_stays(fifty: int) -> None:
    found = 0
    for seed in range(fifty * 50, fifty * 50 + (50 if SOAK else 20)):
        cluster, machines = history_of_audits(seed)
        cluster.run()
        assert cluster.state.phase is co.Phase.DONE, f"seed {seed}: {cluster.state.detail}"
        assert machines.done or not differed(cluster), f"seed {seed}: nothing went wrong, and {differed(cluster)}"
        found += bool(differed(cluster))
    assert found > 5, "in most of them something is found"


@pytest.mark.parametrize("fifty", range(40 if SOAK else 1))
def test_lost_nodes_are_not_taken_for_wrong_ones(fifty: int) -> None:
    for seed in range(fifty * 50, fifty * 50 + (50 if SOAK else 15)):
        cluster, _ = history_of_audits(seed, right=True, disturb=3)
        cluster.run()
        assert cluster.state.phase is co.Phase.DONE, f"seed {seed}: {cluster.state.detail}"
        assert not differed(cluster), f"seed {seed}"
