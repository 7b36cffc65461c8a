"""Random histories on nodes of little memory: no placement, no other shape and no new copy asks a node for more than it
has. Where there is no room the run goes on all the same.
"""

import os
import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from culm.coordinator import commands as cmd
from culm.coordinator import draining, reports
from culm.coordinator import state as co
from culm.coordinator.decide import advance
from culm.coordinator.decisions import budget_of
from culm.pipeline.plan import Plan, StagePlan, Stages
from culm.simulator.histories.simulated_cluster import Cluster

SOAK = os.environ.get("CULM_SOAK") == "1"
CHOSEN: list[Stages] = []
COPIED: list[str] = []  # who was seeded


def chosen(plan: Plan | None, before: Plan | None) -> tuple[Stages, Stages]:
    """The stages that were chosen freely just now, beside which others are held; none where the plan only went on."""
    if plan is None or plan is before:
        return (), ()
    if before is None or plan.era != before.era:
        return plan.stages, ()
    return (plan.target, plan.stages) if plan.target != before.target else ((), ())


Decided = tuple[co.State, tuple[cmd.Command, ...]]
Decide = Callable[[co.State, reports.Report, float], Decided]


def decide(state: co.State, report: reports.Report, now: float, by: Decide = advance) -> Decided:
    """As ``advance``, held against the memory of the nodes. A plan of another leader was looked at when it was made."""
    after, commands = by(state, report, now)
    adopted = isinstance(report, reports.Available) and report.plan is not None
    stages, held = chosen(after.plan, state.plan)
    if stages and not adopted:
        assert budget_of(after).too_small(stages, held) == ()
        CHOSEN.append(stages)
    elif not adopted:
        check_copies(state, after)
    return after, commands


def copies_to_be(plan: Plan | None) -> dict[tuple[int, str], StagePlan]:
    """By stage and node, what is being seeded."""
    stages = plan.stages if plan is not None else ()
    return {(s, b.node): stage for s, stage in enumerate(stages) for b in stage.standbys if not b.hot}


def check_copies(before: co.State, after: co.State) -> None:
    """A copy that is asked for fits, unless all others of its stage are to leave."""
    if before.plan is None or after.plan is None or before.plan.ranges != after.plan.ranges:
        return
    budget, leaving = budget_of(after), draining.leaving(after)
    already = {(s, node) for s, stage in enumerate(before.plan.stages) for node in stage.holders()}
    for (s, node), stage in copies_to_be(after.plan).items():
        if (s, node) not in already and not set(stage.required()) <= set(leaving):
            COPIED.append(node)
            assert budget.lacks(node, after.plan.stages) == 0, f"{node} has no room for stage {s}"


def history_of_little_memory(seed: int, **other: Any) -> Cluster:
    """Nodes hold two or three stages each, some a stage more; they come and go, and come back."""
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
    given["memory_of"] = {f"n{i}": given["memory_bytes"] * draw.choice([1, 1, 1, 2]) for i in range(8)}
    return Cluster(seed, **({"decide": decide} | given | other))


def without_budget(state: co.State, report: reports.Report, now: float) -> Decided:
    """Copies go wherever there are few: nobody looks at memory once the run has begun."""
    begun = state.plan is not None
    bare = replace(state, layer_bytes=()) if begun else state
    after, commands = advance(bare, report, now)
    return (replace(after, layer_bytes=state.layer_bytes) if begun else after), commands


@pytest.mark.parametrize("hundred", range(50 if SOAK else 1))
def test_no_node_is_asked_for_more_than_it_has(hundred: int) -> None:
    CHOSEN.clear()
    COPIED.clear()
    bound = tight = 0
    for seed in range(hundred * 100, hundred * 100 + 100):
        cluster = history_of_little_memory(seed).run()
        told = [record.text for _, record in cluster.records]
        bound += any("more memory" in text or "does not fit" in text for text in told)
        tight += any("no node has memory" in text or "no copy has room" in text for text in told)
        assert cluster.state.phase is co.Phase.DONE, f"seed {seed}"
    if hundred == 0:  # the same histories each time: in others it may be fewer by chance
        assert len(CHOSEN) > 110, "hardly any shape was chosen"
        assert len(COPIED) > 100, "hardly any copy was made"
        assert bound > 0, "memory was never short"
        assert tight > 0, "there was room for every copy"


def test_without_a_look_at_memory_copies_go_where_they_do_not_fit() -> None:
    def play(seeds: Iterable[int]) -> None:
        for seed in seeds:
            history_of_little_memory(seed, decide=partial(decide, by=without_budget)).run()

    with pytest.raises(AssertionError, match="has no room for stage"):
        play(range(40))
