"""Random histories on nodes of little memory: no placement and no other shape asks a node for more than it has."""

import os
import random
from typing import Any

import pytest

from culm.coordinator import commands as cmd
from culm.coordinator import reports
from culm.coordinator import state as co
from culm.coordinator.decide import advance
from culm.coordinator.decisions import budget_of
from culm.pipeline.plan import Plan, Stages
from culm.simulator.histories.simulated_cluster import Cluster

SOAK = os.environ.get("CULM_SOAK") == "1"
CHOSEN: list[Stages] = []


def chosen(plan: Plan | None, before: Plan | None) -> tuple[Stages, Stages]:
    """The stages that were chosen freely just now, beside which others are held; none where the plan only went on."""
    if plan is None or plan is before:
        return (), ()
    if before is None or plan.era != before.era:
        return plan.stages, ()
    return (plan.target, plan.stages) if plan.target != before.target else ((), ())


def decide(state: co.State, report: reports.Report, now: float) -> tuple[co.State, tuple[cmd.Command, ...]]:
    """As ``advance``, held against the memory of the nodes. A plan of another leader was looked at when it was made."""
    after, commands = advance(state, report, now)
    adopted = isinstance(report, reports.Available) and report.plan is not None
    stages, held = chosen(after.plan, state.plan)
    if stages and not adopted:
        assert budget_of(after).too_small(stages, held) == ()
        CHOSEN.append(stages)
    return after, commands


def history_of_little_memory(seed: int, **other: Any) -> Cluster:
    """Nodes hold two or three stages each; they come and go, and come back."""
    draw = random.Random(f"memory {seed}")
    stages, pipelines = draw.choice([2, 3, 4]), draw.choice([1, 1, 2, 4])
    layers = 2 * stages
    given: dict[str, Any] = {
        "stages": stages,
        "layers": layers,
        "pipelines": pipelines,
        "microbatches": draw.choice([1, 2]),
        "steps": draw.choice([8, 15]),
        "spares": draw.choice([0, 0, 1, stages]),
        "disturb": draw.choice([1, 2, 3, 4, 5]),
        "outages": draw.choice([0, 0, 1]),
        "checkpoint_every": draw.choice([0, 3]),
        "settle_seconds": 0.3,
        "most_stages": draw.choice([0, stages + 1]),
        # Of two layers each: twelve bytes of state, and as many gradients as all pipelines on one node make. Beside
        # them the boundary tensors of at most two microbatches in each pipeline, of two boundaries.
        "memory_bytes": draw.choice([2, 2, 3]) * 2 * (12 + 4 * (1 + (pipelines - 1).bit_length())) + 4 * pipelines,
    }
    return Cluster(seed, decide=decide, **(given | other))


@pytest.mark.parametrize("hundred", range(50 if SOAK else 1))
def test_no_node_is_asked_for_more_than_it_has(hundred: int) -> None:
    CHOSEN.clear()
    bound = 0
    for seed in range(hundred * 100, hundred * 100 + 100):
        cluster = history_of_little_memory(seed).run()
        told = [record.text for _, record in cluster.records]
        bound += any("more memory" in text or "does not fit" in text for text in told)
    assert len(CHOSEN) > 110, "hardly any shape was chosen"
    assert bound > 0, "memory was never short"
