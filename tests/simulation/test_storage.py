"""Random histories in which the storage of checkpoints is late, away, full, torn or unseen: the promise holds.

No era begins from a checkpoint but the one that it names, and none passes a whole checkpoint over (rule 14).
"""

import os
import random
from collections.abc import Callable

import pytest

from culm.coordinator import commands as cmd
from culm.coordinator import reports
from culm.coordinator import state as co
from culm.coordinator.decide import advance
from culm.simulator.histories.after_the_end import Afterlife
from culm.simulator.histories.simulated_cluster import Cluster

Decide = Callable[[co.State, reports.Report, float], tuple[co.State, tuple[cmd.Command, ...]]]
SOAK = os.environ.get("CULM_SOAK") == "1"
EACH = 50 if SOAK else 20  # histories of a block


def history_of_storage(seed: int, decide: Decide = advance, disks: int = 0) -> Cluster:
    """Checkpoints are written and read while nodes, coordinators and the storage fail.

    ``disks``: of so many nodes other bytes are read.
    """
    draw = random.Random(seed)
    stages = draw.choice([1, 2, 2, 3, 3, 4])
    return Cluster(
        seed,
        stages=stages,
        microbatches=draw.choice([1, 2, 3]),
        steps=draw.choice([8, 15]),
        spares=draw.choice([0, 0, 1]),
        disturb=draw.choice([1, 2, 3, 4]),
        outages=draw.choice([0, 0, 0, 1]),
        checkpoint_every=draw.choice([1, 2, 3]),
        changes=draw.choice([0, 0, 1]),
        layers=stages + draw.choice([0, 1, 3]),
        storage=draw.choice([0, 1, 2, 3]),
        disks=disks,
        decide=decide,
    )


@pytest.mark.parametrize("fifty", range(300 if SOAK else 1))
def test_random_histories_of_the_storage_end_exact(fifty: int) -> None:
    for seed in range(fifty * 50, fifty * 50 + EACH):
        history_of_storage(seed).run()


def history_of_a_last_checkpoint(seed: int) -> Cluster:
    """A short run, so that the storage fails while the last step's shares are written, or soon after."""
    draw = random.Random(seed)
    stages = draw.choice([1, 2, 3])
    return Cluster(
        seed,
        stages=stages,
        layers=stages + draw.choice([0, 2]),
        microbatches=1,
        steps=draw.choice([2, 3, 5]),
        spares=1,
        disturb=draw.choice([0, 1]),
        storage=draw.choice([1, 2]),
        checkpoint_every=draw.choice([1, 2, 3]),
        afterlife=Afterlife(draw.choice([0, 1])),
    )


@pytest.mark.parametrize("fifty", range(100 if SOAK else 1))
def test_the_last_checkpoint_becomes_whole_once_the_storage_is_well(fifty: int) -> None:
    """Every eighth did not: a share that was written below a mount that was gone was never written again (rule 17)."""
    for seed in range(fifty * 50, fifty * 50 + EACH):
        history_of_a_last_checkpoint(seed).run()


@pytest.mark.parametrize("fifty", range(100 if SOAK else 1))
def test_a_node_that_reads_other_bytes_costs_no_checkpoint(fifty: int) -> None:
    for seed in range(fifty * 50, fifty * 50 + EACH):
        history_of_storage(seed, disks=1 + seed % 2).run()


@pytest.mark.parametrize(
    ("seed", "why"),
    [
        (138, "an era began with the step of one checkpoint and the folder of another"),
        (300, "the same, with other nodes"),
        (57, "a storage that was away made a whole checkpoint bad"),
        (249, "the same, with other nodes"),
        (461, "the origin was looked up when no checkpoint was left: the coordinator ended"),
        (518, "the same, with the checkpoint of step 3"),
        (362, "nodes and coordinator wrote a checkpoint into the folder of a mount that was gone"),
        (12402, "a slow storage had the manifest, its answer was on its way, and the era began at step 0 beside it"),
    ],
)
def test_histories_of_the_storage_that_failed_once(seed: int, why: str) -> None:
    history_of_storage(seed).run()
