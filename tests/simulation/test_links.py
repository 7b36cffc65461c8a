"""Random histories in which two nodes do not reach each other, though everybody else reaches both."""

import os
import random

import pytest

from culm.simulator.histories.simulated_cluster import Cluster

SOAK = os.environ.get("CULM_SOAK") == "1"


def history_of_links(seed: int, disturb: int = 0, for_good: bool = False) -> Cluster:
    """Two nodes do not reach each other, though everybody else reaches both; with ``disturb`` some are lost as well."""
    draw = random.Random(seed)
    stages = draw.choice([2, 2, 3, 3, 4])
    return Cluster(
        seed,
        stages=stages,
        microbatches=draw.choice([1, 2, 3]),
        steps=draw.choice([8, 15]),
        spares=draw.choice([0, 0, 1]),
        disturb=disturb,
        links=1 if for_good else draw.choice([1, 2, 4]),
        for_good=for_good,
        layers=stages + draw.choice([0, 1, 3]),
    )


@pytest.mark.parametrize("fifty", range(100 if SOAK else 1))
def test_broken_links_end_exact(fifty: int) -> None:
    for seed in range(fifty * 50, fifty * 50 + (50 if SOAK else 12)):
        history_of_links(seed, disturb=seed % 3).run()


def test_links_that_failed_once() -> None:
    """A later gradient shows that an earlier one will not come, also while it waits for the plan within the commit."""
    history_of_links(17, disturb=2).run()


@pytest.mark.parametrize("fifty", range(40 if SOAK else 1))
def test_a_link_that_is_broken_for_good_costs_no_step(fifty: int) -> None:
    """One of its ends goes; the run goes on, and begins no new era."""
    for seed in range(fifty * 50, fifty * 50 + (50 if SOAK else 12)):
        cluster = history_of_links(seed, for_good=True).run()
        assert cluster.state.era == 0, f"seed {seed}: a broken link rolled the run back"
