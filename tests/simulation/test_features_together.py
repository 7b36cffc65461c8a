"""Everything that a job may ask for, drawn at random on grids where everything goes wrong: the promise holds.

Other histories have one or two of these at a time. What breaks where two meet is found here alone.
"""

import random
from typing import Any

import pytest

from culm.coordinator import state as co
from culm.simulator.histories.after_the_end import Afterlife
from culm.simulator.histories.simulated_cluster import Cluster
from tests.simulation.test_everything import SOAK, history_of_everything
from tests.simulation.test_graphs import history_on_a_graph
from tests.simulation.test_grid import history_of_the_grid


def seldom(draw: random.Random, *choices: Any, otherwise: Any) -> Any:
    """In a third of the histories."""
    return draw.choice(choices) if draw.random() < 0.35 else otherwise


def of_any_job(draw: random.Random) -> dict[str, Any]:
    """What a job on a graph may ask for, too, and what befalls any."""
    return {
        "spills": seldom(draw, True, otherwise=False),
        "home_seconds": seldom(draw, 0.002, 0.02, 0.2, otherwise=0.0),
        "copies": seldom(draw, 3, 4, co.NOTHING_BEFORE, otherwise=2),
        "left_steps": seldom(draw, (2,), (4,), otherwise=()),
        "pauses": seldom(draw, 1, 2, otherwise=0),
        "saves": seldom(draw, 1, 2, otherwise=0),
        "leaves": seldom(draw, 1, 2, otherwise=0),
        "disks": seldom(draw, 1, otherwise=0),
        "power_cuts": seldom(draw, 1, otherwise=0),
    }


def history_of_features(seed: int) -> Cluster:
    draw = random.Random(f"features {seed}")
    history = history_of_the_grid if draw.random() < 0.7 else history_of_everything
    layers = history(seed).layers
    pairs = [(first, layer) for layer in range(layers) for first in range(layer)]
    evaluate = seldom(draw, *((every, parts) for every in (1, 2, 3) for parts in (1, 4, 9)), otherwise=(0, 0))
    asked: dict[str, Any] = {
        "audit": seldom(draw, 0.05, 0.3, 1.0, otherwise=0.0),
        "evaluate": evaluate,
        "worse_allowed": seldom(draw, 1, 2, otherwise=0) if evaluate[0] else 0,
        "tied": tuple(sorted(draw.sample(pairs, min(len(pairs), seldom(draw, 1, 2, 3, otherwise=0))))),
        "iterable": seldom(draw, True, otherwise=False),
        "measured": seldom(draw, True, otherwise=False),
    }
    return history(seed, **asked, **of_any_job(draw))


def history_of_features_on_a_graph(seed: int) -> Cluster:
    draw = random.Random(f"features on a graph {seed}")
    asked: dict[str, Any] = {
        "eager": seldom(draw, True, otherwise=False),
        "afterlife": seldom(draw, Afterlife(1), Afterlife(2), otherwise=None),
    }
    return history_on_a_graph(seed, **asked, **of_any_job(draw))


def test_owners_that_a_power_cut_took_at_once_are_no_evidence_against_the_job() -> None:
    """Eight of one stage: the run failed."""
    history_of_features(2470).run()


def test_of_a_graphs_servers_one_was_in_another_zone_than_the_others_and_was_left_out() -> None:
    history_of_features_on_a_graph(1379).run()


def test_a_node_that_breaks_before_it_takes_part_is_no_evidence_against_the_job() -> None:
    """The first of its run, with a disk that was full: one start that raises is enough there, and none had."""
    history_of_features_on_a_graph(2892).run()


@pytest.mark.parametrize("history", [history_of_features, history_of_features_on_a_graph])
@pytest.mark.parametrize("fifty", range(60 if SOAK else 1))
def test_whatever_a_job_asks_for_together_the_history_ends_exact(fifty: int, history: Any) -> None:
    for seed in range(fifty * 50, fifty * 50 + (50 if SOAK else 12)):
        cluster = history(seed).run()
        assert cluster.state.phase is co.Phase.DONE, f"seed {seed}"
