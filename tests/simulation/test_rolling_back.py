"""Random histories in which stages lose every copy: they go back to a checkpoint, and end exact."""

import os
import random
from typing import Any

import pytest

from culm.simulator.histories.simulated_cluster import Cluster

SOAK = os.environ.get("CULM_SOAK") == "1"


def history_with_checkpoints(seed: int, **rule: Any) -> Cluster:
    """All of it at once; what has no copy left goes on from a checkpoint."""
    draw = random.Random(seed)
    stages = draw.choice([1, 2, 2, 3, 3, 4])
    return Cluster(
        seed,
        stages=stages,
        microbatches=draw.choice([1, 2, 3]),
        steps=draw.choice([3, 8, 15]),
        spares=draw.choice([0, 0, 1]),
        disturb=draw.choice([0, 1, 1, 2, 3]),
        outages=draw.choice([0, 0, 1, 2]),
        checkpoint_every=draw.choice([1, 2, 3]),
        changes=draw.choice([0, 0, 2]),
        layers=stages + draw.choice([0, 1, 3]),
        **rule,
    )


@pytest.mark.parametrize("fifty", range(200 if SOAK else 1))
def test_rollbacks_to_a_checkpoint_end_exact(fifty: int) -> None:
    for seed in range(fifty * 50, fifty * 50 + (50 if SOAK else 12)):
        history_with_checkpoints(seed).run()


@pytest.mark.parametrize(
    ("seed", "why"),
    [
        (606, "a layer that was fetched in the era before came in place of the checkpoint's"),
        (990, "a node that this leader had let go was in the plan of the leader before"),
        (1233, "an answer under the plan of an earlier leader, of the same generation, counted"),
        (1856, "an answer spoke of the steps of another era"),
        (8032, "a node being seeded missed commits, and commits waited for it"),
    ],
)
def test_rollbacks_that_failed_once(seed: int, why: str) -> None:
    history_with_checkpoints(seed).run()
