"""Random histories in which Redis loses what it was given: nothing is lost with it (rules 8, 13, 14 and 15)."""

import os
import random
from typing import Any

import pytest

from culm.simulator.histories.simulated_cluster import Cluster

SOAK = os.environ.get("CULM_SOAK") == "1"
EACH = 50 if SOAK else 20  # histories of a block


def history_of_forgetting(seed: int, **options: Any) -> Cluster:
    """Redis comes back empty, older, without its last second or with another term; coordinators start over it."""
    draw = random.Random(seed)
    stages = draw.choice([1, 2, 2, 3, 3, 4])
    return Cluster(
        seed,
        stages=stages,
        microbatches=draw.choice([1, 2, 3]),
        steps=draw.choice([8, 15, 30]),
        spares=draw.choice([0, 0, 1]),
        disturb=draw.choice([0, 0, 1, 2]),
        outages=draw.choice([0, 0, 1, 2]),
        changes=draw.choice([0, 0, 1]),
        checkpoint_every=draw.choice([0, 0, 3]),
        forgets=draw.choice([1, 1, 2, 3]),
        layers=stages + draw.choice([0, 1, 3]),
        **options,
    )


@pytest.mark.parametrize("fifty", range(400 if SOAK else 1))
def test_a_redis_that_forgets_costs_no_step_and_no_bit(fifty: int) -> None:
    for seed in range(fifty * 50, fifty * 50 + EACH):
        history_of_forgetting(seed).run()


def history_of_power_cuts(seed: int, **options: Any) -> Cluster:
    """Every process ends at once, and Redis comes back older or empty: the storage alone knows what was trained."""
    draw = random.Random(seed)
    stages = draw.choice([1, 2, 2, 3])
    return Cluster(
        seed,
        stages=stages,
        microbatches=draw.choice([1, 2]),
        steps=draw.choice([15, 30, 60]),
        spares=draw.choice([0, 0, 1]),
        disturb=draw.choice([0, 0, 1, 2]),
        outages=draw.choice([0, 0, 0, 1]),
        checkpoint_every=draw.choice([1, 2, 3]),
        storage=draw.choice([0, 0, 1, 2]),
        power_cuts=draw.choice([1, 1, 2]),
        layers=stages + draw.choice([0, 1]),
        left_steps=draw.choice([(), (), (4,), (6, 15)]),
        **options,
    )


@pytest.mark.parametrize("fifty", range(100 if SOAK else 1))
def test_no_era_begins_beside_a_newer_checkpoint(fifty: int) -> None:
    """What Redis named had been deleted since, and the run went to step 0 beside whole checkpoints."""
    for seed in range(fifty * 50, fifty * 50 + EACH + 10):
        history_of_power_cuts(seed).run()


@pytest.mark.parametrize(
    ("seed", "why"),
    [
        (0, "nodes obeyed two leaders of the same term"),
        (2, "the leader's term was below that of the plan which its nodes obeyed, so they refused every other one"),
        (12, "a run that waited for nodes was begun again under a term that had been used"),
        (36, "a new node was taken for a holder by a plan that had another one's number"),
        (1148, "a node that was lost came back to a leader that a forgetful Redis had not told of it"),
        (47, "a rollback went to a checkpoint that an emptied Redis did not know"),
    ],
)
def test_forgetting_that_failed_once(seed: int, why: str) -> None:
    history_of_forgetting(seed).run()
