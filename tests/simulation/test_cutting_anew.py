"""Random histories in which the model is cut anew for the nodes that there are."""

import os
import random

import pytest

from culm.simulator.histories.fault_counts import Kill
from culm.simulator.histories.simulated_cluster import Cluster
from tests.short import unit

SOAK = os.environ.get("CULM_SOAK") == "1"


def history_of_cutting_anew(seed: int) -> Cluster:
    """Nodes come, and go for good or not; the model is cut anew for those there are."""
    draw = random.Random(seed)
    stages = draw.choice([2, 3, 4])
    return Cluster(
        seed,
        stages=stages,
        microbatches=draw.choice([2, 3]),
        steps=draw.choice([15, 30]),
        spares=draw.choice([0, 1, 2]),
        disturb=draw.choice([0, 1, 2, 3]),
        outages=draw.choice([0, 0, 1]),
        changes=draw.choice([0, 1, 3]),
        checkpoint_every=draw.choice([0, 3]),
        settle_seconds=0.3,
        most_stages=draw.choice([0, stages + 1, stages + 2]),
        layers=stages + draw.choice([2, 4, 6]),
    )


@pytest.mark.parametrize(
    ("seed", "why"),
    [
        (2426, "commits waited for a node that was drained while it was seeded with stages to be"),
        (3715, "a layer that was being installed when a new era began counted in it"),
    ],
)
def test_cutting_anew_that_failed_once(seed: int, why: str) -> None:
    history_of_cutting_anew(seed).run()


@pytest.mark.parametrize("fifty", range(100 if SOAK else 1))
def test_cutting_anew_ends_exact(fifty: int) -> None:
    cut = 0
    for seed in range(fifty * 50, fifty * 50 + (50 if SOAK else 12)):
        cluster = history_of_cutting_anew(seed).run()
        cut += any("take the place of" in record.text for _, record in cluster.records)
    # Of what the same histories find each time: in others it may be fewer by chance.
    assert fifty > 0 or cut > 2, "the model was hardly ever cut anew"


def test_with_nodes_gone_for_good_the_model_is_cut_anew_for_the_others() -> None:
    kills = (Kill("n3", 2, unit(3, "F", 0)),)
    cluster = Cluster(
        1, stages=4, layers=12, microbatches=3, steps=40, disturb=0, kills=kills, respawn=False, settle_seconds=0.5
    ).run()
    plan = cluster.state.plan
    assert plan is not None
    assert [len(stage.layers) for stage in plan.stages] == [4, 4, 4]
    assert len({stage.owner for stage in plan.stages}) == 3
    assert plan.exposed() == ()


def test_a_run_that_shrank_grows_back_soon_after_a_node_has_come() -> None:
    """Also where two nodes were lost at once: that is no sign that the next lost node comes in a second."""
    settle = 4.0
    kills = (Kill("n2", 2, unit(2, "F", 0)), Kill("n0", 2, unit(0, "B", 1)))
    cluster = Cluster(
        1,
        stages=4,
        layers=12,
        steps=300,
        disturb=0,
        kills=kills,
        respawn=False,
        settle_seconds=settle,
        checkpoint_every=1,
    )
    for i, moment in enumerate((1.0, 20.0)):
        cluster.clock.at(moment, lambda i=i: cluster.boot(f"late{i}"))  # type: ignore[misc]
    plan = cluster.run().state.plan
    cuts = [at for at, r in cluster.records if "take the place of" in r.text]
    assert len(cuts) == 2, "cut for three nodes, then for four"
    assert cuts[0] < 20.0 < cuts[1] < 20.0 + settle
    assert plan is not None
    assert [len(stage.layers) for stage in plan.stages] == [3, 3, 3, 3]


def test_a_node_too_many_makes_a_stage_more() -> None:
    cluster = Cluster(1, stages=2, layers=12, steps=40, spares=2, disturb=0, settle_seconds=0.1, most_stages=3).run()
    plan = cluster.state.plan
    assert plan is not None
    assert [len(stage.layers) for stage in plan.stages] == [4, 4, 4]
    assert [n for n in cluster.state.nodes if not plan.held_by(n)] == ["n3"], "one stays spare"
