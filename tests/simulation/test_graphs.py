"""Chunks of a graph on any number of nodes: whatever goes wrong, the weights are the plain loop's."""

import random
from dataclasses import replace
from typing import Any

import pytest

from culm.coordinator import state as co
from culm.pipeline.neighbours import Neighbours, Staleness
from culm.simulator.histories.after_the_end import Afterlife
from culm.simulator.histories.hostile_peer import speaking
from culm.simulator.histories.simulated_cluster import Cluster
from tests.simulation.test_everything import SOAK, what_is_wrong


def drawn(draw: random.Random, chunks: int) -> Neighbours:
    """Which chunks have edges into which: from none at all to all of them."""
    share = draw.choice([0.0, 0.2, 0.5, 1.0])
    return Neighbours(tuple(tuple(q for q in range(chunks) if q == p or draw.random() < share) for p in range(chunks)))


def history_on_a_graph(seed: int, cluster: type[Cluster] = Cluster, **rule: Any) -> Cluster:
    draw = random.Random(f"graph {seed}")
    layers, chunks = draw.choice([1, 2, 2, 3]), draw.choice([2, 3, 4, 5, 8])
    nodes, steps = draw.randint(1, min(6, chunks)), draw.choice([3, 5, 8])
    rough = draw.random() < 0.6  # beside lost nodes: coordinators, Redis, links, storage
    in_zones = draw.random() < 0.3
    names = [*(f"n{i}" for i in range(nodes)), *(f"late{i}" for i in range(1, 9))]
    most = draw.choice([0, 0, 1, 1, 2])
    staleness = Staleness(most, most + draw.choice([1, 1, 2]), max(steps - draw.choice([0, 1]), 0))
    settings: dict[str, Any] = {
        "stages": layers,
        "layers": layers,
        "pipelines": chunks,
        "microbatches": 1,
        "neighbours": replace(drawn(draw, chunks), staleness=staleness),
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
        "checkpoint_every": draw.choice([0, staleness.refresh, 2 * staleness.refresh]),
        "settle_seconds": draw.choice([0.1, 0.3, 30.0]),
        "zones": {name: draw.choice("ab") for name in names} if in_zones else {},
        "lead": chunks,
        "wrong": what_is_wrong(draw, nodes, layers, steps),
        "has_buffers": draw.random() < 0.3,
        "copies": draw.choice([2, 2, 3]),
        "metrics": draw.choice([0, 0, 1, 2]),
    }
    return cluster(seed, **(settings | rule))


@pytest.mark.parametrize("seed", range(3))
def test_a_node_that_is_lost_after_the_end_costs_no_epoch_though_values_were_old(seed: int) -> None:
    near = Neighbours(((0, 1), (0, 1, 2), (1, 2, 3), (2, 3)), Staleness(most=1, refresh=3, fresh_from=5))
    settings: dict[str, Any] = {"stages": 2, "layers": 2, "pipelines": 4, "microbatches": 1, "lead": 4, "nodes": 3}
    afterlife = Afterlife(1, apart=True, coordinators=False)
    cluster = Cluster(seed, **settings, steps=6, neighbours=near, afterlife=afterlife).run()
    assert not cluster.ending.rolled_back, f"seed {seed}"


@pytest.mark.parametrize("fifty", range(200 if SOAK else 2))
def test_on_whatever_nodes_the_chunks_lie_the_history_ends_exact(fifty: int) -> None:
    for seed in range(fifty * 50, fifty * 50 + (50 if SOAK else 12)):
        cluster = history_on_a_graph(seed).run()
        assert cluster.state.phase is co.Phase.DONE, f"seed {seed}"
