"""Random histories in which coordinators lead beside each other, Redis forgets, and the shape follows the nodes.

Nodes then come to a leader with plans of several others. Which of them holds is one decision, and a cut of the model
changes with a commit alone.
"""

import os
import random

import pytest

from culm.coordinator import state as co
from culm.simulator.histories.simulated_cluster import Cluster

SOAK = os.environ.get("CULM_SOAK") == "1"
EACH = 50 if SOAK else 20  # histories of a block


def history_of_two_leaders(seed: int) -> Cluster:
    draw = random.Random(f"two {seed}")
    stages = draw.choice([1, 2, 3])
    return Cluster(
        seed,
        stages=stages,
        layers=stages + draw.choice([2, 4]),
        microbatches=draw.choice([1, 2]),
        pipelines=draw.choice([1, 1, 2, 4]),
        steps=draw.choice([8, 15]),
        spares=draw.choice([1, 2, 3]),
        disturb=draw.choice([0, 1, 2]),
        outages=draw.choice([2, 3, 5]),
        forgets=draw.choice([1, 2, 3]),
        changes=draw.choice([0, 1, 2]),
        stops=draw.choice([0, 1]),
        checkpoint_every=draw.choice([0, 3]),
        settle_seconds=draw.choice([0.1, 0.3]),
        most_stages=draw.choice([0, stages + 1]),
        measured=draw.random() < 0.5,
    )


@pytest.mark.parametrize("fifty", range(200 if SOAK else 1))
def test_whoever_led_beside_whom_the_history_ends_exact(fifty: int) -> None:
    for seed in range(fifty * 50, fifty * 50 + EACH):
        cluster = history_of_two_leaders(seed).run()
        assert cluster.state.phase is co.Phase.DONE, f"seed {seed}"


@pytest.mark.parametrize(
    ("seed", "why"),
    [
        (
            681,
            "a spare brought the plan of another leader after the takeover: its cut was obeyed in the middle of a step",
        ),
        (734, "the same, with more stages than the plan that the nodes had obeyed"),
        (2307, "a spare's version was that of its plan, and counted as applied: nobody had the commit"),
        (2746, "a commit that was queued already, told again by a higher term, did not raise the node's own"),
        (5372, "a commit with a plan waited for a gradient of the sender that waited for an answer under that plan"),
    ],
)
def test_histories_of_two_leaders_that_failed_once(seed: int, why: str) -> None:
    history_of_two_leaders(seed).run()
