"""Stages to be: they are given up when a node is lost and another in that step; a node misses the commit to them."""

import os
import random

import pytest

from culm.coordinator import commands as cmd
from culm.coordinator import reports
from culm.coordinator import state as co
from culm.coordinator.decide import advance
from culm.pipeline.plan import Plan
from culm.simulator.histories.arithmetic import Number
from culm.simulator.histories.simulated_cluster import Cluster
from culm.stage_server.worker.worker import Worker

SOAK = os.environ.get("CULM_SOAK") == "1"
EACH = 50 if SOAK else 20  # histories of a block


def ready_beside_the_plan(state: co.State, plan: Plan) -> list[tuple[str, int]]:
    """(node, stage): the node is on record with all layers of a stage that it does not hold."""
    return [
        (node, s)
        for node, layers in state.facts.items()
        for s, stage in enumerate(plan.stages)
        if node not in stage.holders() and layers >= set(stage.layers)
    ]


def history_of_two_lost_nodes(seed: int, make_worker: type[Worker[Number]] = Worker) -> Cluster:
    """The first lost node makes the coordinator give up the stages to be. The second one ran a stage that a node of
    them was ready for.
    """
    draw = random.Random(seed)
    stages = draw.choice([3, 4])
    struck: list[str] = []

    def decide(state: co.State, report: reports.Report, now: float) -> tuple[co.State, tuple[cmd.Command, ...]]:
        after, commands = advance(state, report, now)
        plan = after.plan
        if plan is None or after.phase is not co.Phase.RUNNING:
            return after, commands
        found = ready_beside_the_plan(after, plan)
        victims: list[str] = []
        if not struck and plan.target and found and draw.random() < 0.5:
            node, stage = draw.choice(found)
            preparing = [n for to_be in plan.target for n in to_be.holders() if n != node]
            victims = [n for n in preparing if n not in plan.stages[stage].holders()] or preparing
        elif len(struck) == 1 and not plan.target and found:
            node, stage = draw.choice(found)
            victims = list(plan.stages[stage].holders())
        if victims:
            victim = cluster.nodes[draw.choice(victims)]
            struck.append(victim.name)
            cluster.clock.after(draw.choice([0.0, 0.002]), lambda: cluster.faults.kill(victim))
        return after, commands

    cluster = Cluster(
        seed,
        stages=stages,
        microbatches=draw.choice([2, 3]),
        steps=draw.choice([8, 15]),
        spares=2,
        disturb=0,
        settle_seconds=0.02,
        most_stages=stages + draw.choice([1, 2]),
        layers=2 * stages + draw.choice([1, 2, 3, 4]),
        decide=decide,
        respawn=draw.random() < 0.5,
        make_worker=make_worker,
    )
    return cluster


@pytest.mark.parametrize("fifty", range(100 if SOAK else 1))
def test_two_losses_in_the_step_in_which_stages_to_be_are_given_up(fifty: int) -> None:
    for seed in range(fifty * 50, fifty * 50 + EACH):
        history_of_two_lost_nodes(seed).run()


@pytest.mark.parametrize(
    ("seed", "why"), [(171, "a node was taken for a standby of a stage whose layers the plan before had taken from it")]
)
def test_two_losses_that_failed_once(seed: int, why: str) -> None:
    history_of_two_lost_nodes(seed).run()


class SaysWhatItRuns(Worker[Number]):
    """A holder of the stages to be alone says that it holds nothing: it is told the plan, and not the commit before."""

    @property
    def holds_state(self) -> bool:
        return self.plan is not None and bool(self.plan.held_by(self.node))


def history_of_a_missed_switch(seed: int, make_worker: type[Worker[Number]] = Worker) -> Cluster:
    """The order streams of nodes break while a commit is on its way that puts the stages to be in their place."""
    draw = random.Random(seed)
    stages = draw.choice([2, 3])

    def decide(state: co.State, report: reports.Report, now: float) -> tuple[co.State, tuple[cmd.Command, ...]]:
        after, commands = advance(state, report, now)
        before, plan = state.plan, after.plan
        if before is not None and plan is not None and before.target and plan.stages == before.target:
            for name in {n for stage in plan.stages for n in stage.holders()}:
                if draw.random() < 0.5:
                    cluster.nodes[name].attendance.detach()
        return after, commands

    cluster = Cluster(
        seed,
        stages=stages,
        microbatches=2,
        steps=15,
        spares=2,
        disturb=0,
        settle_seconds=0.02,
        most_stages=stages + draw.choice([1, 2]),
        layers=2 * stages + draw.choice([1, 2, 3, 4]),
        decide=decide,
        make_worker=make_worker,
    )
    return cluster


@pytest.mark.parametrize("fifty", range(20 if SOAK else 1))
def test_nodes_that_miss_the_commit_to_the_stages_to_be(fifty: int) -> None:
    for seed in range(fifty * 50, fifty * 50 + EACH):
        history_of_a_missed_switch(seed).run()


def test_without_the_word_of_a_holder_of_the_stages_to_be_a_run_stands_still() -> None:
    for seed in range(100):
        try:
            history_of_a_missed_switch(seed, SaysWhatItRuns).run()
        except AssertionError:
            break
    else:
        pytest.fail("the simulation does not see what this prevents")
    history_of_a_missed_switch(seed).run()
