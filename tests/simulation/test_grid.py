"""Many pipelines on any number of nodes: whatever goes wrong, the weights are the plain loop's."""

import random
from typing import Any

import pytest

from culm.coordinator import state as co
from culm.pipeline.buckets import LEAST
from culm.simulator.histories.after_the_end import Afterlife
from culm.simulator.histories.hostile_peer import speaking
from culm.simulator.histories.simulated_cluster import Cluster
from tests.simulation.test_everything import SOAK, what_is_wrong


def history_of_the_grid(seed: int, cluster: type[Cluster] = Cluster, **rule: Any) -> Cluster:
    """Shapes from one node with all duties to one node a duty, and all that goes wrong elsewhere."""
    draw = random.Random(f"grid {seed}")
    stages, pipelines = draw.choice([1, 1, 2, 2, 3, 4]), draw.choice([2, 2, 3, 4, 5, 8])
    nodes = draw.randint(1, min(12, stages * pipelines))
    layers, steps = stages + draw.choice([0, 1, 3]), draw.choice([3, 5, 8])
    rough = draw.random() < 0.6  # beside lost nodes: coordinators, Redis, links, storage
    in_zones = draw.random() < 0.3
    names = [*(f"n{i}" for i in range(nodes)), *(f"late{i}" for i in range(1, 9))]
    settings: dict[str, Any] = {
        "stages": stages,
        "layers": layers,
        "pipelines": pipelines,
        "microbatches": draw.choice([1, 2, 3]),
        "steps": steps,
        "nodes": nodes,
        "disturb": draw.choice([0, 1, 2, 4]),
        "reducers": draw.choice([0, 0, 1, 2]),
        "outages": draw.choice([0, 0, 1, 2]) if rough else 0,
        "changes": draw.choice([0, 0, 1, 3]),
        "warnings": draw.choice([0, 0, 1]),
        "links": draw.choice([0, 0, 1, 2]) if rough else 0,
        "storage": draw.choice([0, 0, 1]) if rough else 0,
        "forgets": draw.choice([0, 0, 1]) if rough else 0,
        "stops": draw.choice([0, 0, 1]) if rough else 0,
        "hostile": speaking(draw.choice([0, 0, 4])) if rough else None,
        "checkpoint_every": draw.choice([0, 1, 2]),
        "settle_seconds": draw.choice([0.1, 0.3, 30.0]),
        "most_stages": stages + draw.choice([0, 1, 2]),
        "zones": {name: draw.choice("ab") for name in names} if in_zones else {},
        "bulk_seconds": draw.choice([0.0, 0.0, 0.02]),
        "eager": draw.random() < 0.2,
        "lead": draw.choice([1, 1, 2]),
        "splits": draw.random() < 0.2,
        "ship_every": draw.choice([0, 0, 1]),
        "wrong": what_is_wrong(draw, nodes, layers, steps),
        "afterlife": Afterlife(draw.choice([1, 2])) if draw.random() < 0.2 else None,
        "has_buffers": draw.random() < 0.5,
        "copies": draw.choice([2, 2, 3, 4]),
        # Layers that are cut into as many buckets as there are pipelines, into two, or not at all.
        "parameters": tuple(draw.choice([1.0, 2.0 * LEAST, 9.0 * LEAST]) for _ in range(layers))
        if draw.random() < 0.5
        else (),
        "metrics": draw.choice([0, 0, 1, 2]),
    }
    return cluster(seed, **(settings | rule))


@pytest.mark.parametrize("fifty", range(400 if SOAK else 2))
def test_on_whatever_nodes_the_pipelines_run_the_history_ends_exact(fifty: int) -> None:
    for seed in range(fifty * 50, fifty * 50 + (50 if SOAK else 12)):
        cluster = history_of_the_grid(seed).run()
        assert cluster.state.phase is co.Phase.DONE, f"seed {seed}"


@pytest.mark.parametrize(
    ("seed", "why"),
    [
        (205063, "a copy being seeded waited for a gradient that its sender, gone with a later commit, could not send"),
        (58399, "who was to write a whole checkpoint anew was lost before that, and the next era began further back"),
        (40580, "a sum was begun in the era before, at the step from whose checkpoint the next one began, and counted"),
    ],
)
def test_histories_of_the_grid_that_failed_once(seed: int, why: str) -> None:
    history_of_the_grid(seed).run()


def test_a_new_run_finds_the_checkpoint_that_it_has_ordered_itself() -> None:
    """It began from the initial state, since whoever begins with --new-run was to look for no checkpoint."""
    history_of_the_grid(1258, storage=2, checkpoint_every=1).run()


def test_a_target_of_some_newcomers_alone_is_as_far_apart_as_these_can_be() -> None:
    """State would not have moved to all three in time; of the one in another zone more was asked than it could do."""
    history_of_the_grid(1759, storage=2, checkpoint_every=1).run()


@pytest.mark.parametrize("fifty", range(40 if SOAK else 1))
def test_on_cards_whose_results_come_home_later_the_history_ends_exact(fifty: int) -> None:
    """A plan may take the duty away in between, or a commit end the step."""
    for seed in range(fifty * 50, fifty * 50 + (50 if SOAK else 12)):
        cluster = history_of_the_grid(seed, home_seconds=(0.002, 0.02, 0.2)[seed % 3]).run()
        assert cluster.state.phase is co.Phase.DONE, f"seed {seed}"
