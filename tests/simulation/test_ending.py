"""Histories that go on after the last commit, and coordinators that are told to stop (rule 17)."""

import os
import random
from typing import Any

import pytest

from culm.coordinator import commands as cmd
from culm.coordinator import reports
from culm.coordinator import state as co
from culm.coordinator.decide import advance
from culm.simulator.histories.after_the_end import Afterlife
from culm.simulator.histories.simulated_cluster import Broken, Cluster
from culm.stage_server.worker.worker import Worker

SOAK = os.environ.get("CULM_SOAK") == "1"


def history_with_an_afterlife(seed: int, **rule: Any) -> Cluster:
    """Nodes, coordinators and Redis fail before the last commit; nodes and coordinators after it; then comes a user."""
    draw = random.Random(seed)
    stages = draw.choice([1, 2, 2, 3, 3, 4])
    return Cluster(
        seed,
        stages=stages,
        microbatches=draw.choice([1, 2, 3]),
        steps=draw.choice([2, 3, 5]),
        spares=draw.choice([0, 0, 1]),
        disturb=draw.choice([0, 1, 2]),
        outages=draw.choice([0, 0, 0, 1]),
        stops=draw.choice([0, 1, 2]),
        checkpoint_every=draw.choice([0, 0, 2]),
        layers=stages + draw.choice([0, 1, 3]),
        afterlife=Afterlife(draw.choice([1, 2, 4])),
        **rule,
    )


@pytest.mark.parametrize("fifty", range(400 if SOAK else 1))
def test_the_weights_of_a_run_that_is_done_are_fetched_whatever_happens_before(fifty: int) -> None:
    for seed in range(fifty * 50, fifty * 50 + (50 if SOAK else 12)):
        history_with_an_afterlife(seed).run()


@pytest.mark.parametrize(
    ("seed", "why"),
    [
        (7, "a fetch failed after the last commit, and nothing happened that would ask again"),
        (24, "a source that was still arranging its layers was asked once only"),
        (58, "the last commit overtook its gradient, and no later one showed that this was lost with its owner"),
        (110, "a gradient came while the last commit was being applied: it was lost, and its report counted"),
        (20, "its share of the last checkpoint went with a node, and nobody saved it again"),
        (161, "the nodes were let go with the checkpoint of the last step before anybody fetched"),
        (205, "an older leader, cut off from Redis, came to the end with all nodes and let them go"),
        (15928, "a process that had started again took a plan that counted on the one before it, and held nothing"),
        (50150, "of two coordinators one had lost its only node and was cut off from Redis: the user asks the other"),
        (50280, "an era ended while a node was to go: it never went, and the run waited beside it"),
    ],
)
def test_afterlives_that_failed_once(seed: int, why: str) -> None:
    history_with_an_afterlife(seed).run()


def history_of_nodes_lost_one_by_one(seed: int, **rule: Any) -> Cluster:
    """After the last commit nodes are lost one after the other, each time with a while for repair."""
    draw = random.Random(seed)
    stages = draw.choice([2, 3, 4])
    return Cluster(
        seed,
        stages=stages,
        steps=2,
        spares=draw.choice([0, 1]),
        disturb=draw.choice([0, 1]),
        layers=stages + draw.choice([0, 1, 3]),
        afterlife=Afterlife(draw.choice([2, 3]), apart=True, coordinators=draw.random() < 0.3),
        **rule,
    )


def play_one_by_one(seed: int, **rule: Any) -> None:
    """Raises Broken if a run that was done trained again."""
    cluster = history_of_nodes_lost_one_by_one(seed, **rule).run()
    if cluster.ending.rolled_back:
        raise Broken(f"seed {seed}: lost nodes one by one rolled a run that was done back")


@pytest.mark.parametrize("ten", range(400 if SOAK else 1))
def test_losses_one_by_one_after_the_last_commit_cost_no_step(ten: int) -> None:
    for seed in range(ten * 10, ten * 10 + 10):
        play_one_by_one(seed)


@pytest.mark.parametrize("ten", range(200 if SOAK else 1))
def test_a_coordinator_that_is_told_to_stop_costs_no_node_and_no_work(ten: int) -> None:
    for seed in range(ten * 10, ten * 10 + 10):
        stages = random.Random(seed).choice([1, 2, 3])
        cluster = Cluster(seed, stages=stages, layers=stages + 1, steps=15, disturb=0, stops=2).run()
        executed = [x for node in cluster.every for x in node.executed]
        assert len(executed) == len(set(executed)), f"seed {seed}: work was done twice"
        assert len(cluster.every) == len(cluster.nodes) == stages, f"seed {seed}: a node ended with its coordinator"


def without_repair(state: co.State, report: reports.Report, now: float) -> tuple[co.State, tuple[cmd.Command, ...]]:
    """Rule 17 off: after the last commit no seeded copy becomes hot, since no commit makes it so."""
    if state.phase is co.Phase.DONE and isinstance(report, reports.CaughtUp):
        return state, ()
    return advance(state, report, now)


def without_release(state: co.State, report: reports.Report, now: float) -> tuple[co.State, tuple[cmd.Command, ...]]:
    """Rule 17 off: nodes are kept though their weights were fetched."""
    return (state, ()) if isinstance(report, reports.Fetched) else advance(state, report, now)


class WaitsForTheNext(Worker[Any]):
    """Rule 17 off: what is seeded waits for a later gradient after the last commit, too."""

    def fetch_failed(self, era: int, peer: str, layers: Any) -> None:
        if era == self.era:
            self.holdings.failed(peer, layers)


@pytest.mark.parametrize("rule", [without_repair, without_release, WaitsForTheNext], ids=lambda rule: rule.__name__)
def test_without_the_rule_a_history_breaks(rule: Any) -> None:
    switched_off = {"make_worker": rule} if isinstance(rule, type) else {"decide": rule}
    play = (
        play_one_by_one if rule is without_repair else lambda seed, **off: history_with_an_afterlife(seed, **off).run()
    )
    for seed in range(200):
        try:
            play(seed, **switched_off)
        except (AssertionError, KeyError):
            break
    else:
        pytest.fail("the simulation does not see what this rule prevents")
    play(seed)  # and with the rule that very history is exact
