"""Random histories of lost nodes and outages: none gets stuck, none changes a number. A failing seed replays."""

import os
import random
from typing import Any

import pytest

from culm.pipeline.instruction import Instruction
from culm.pipeline.money.kinds import Hot
from culm.simulator.histories.fault_counts import Kill
from culm.simulator.histories.simulated_cluster import Cluster
from tests.short import unit

SOAK = os.environ.get("CULM_SOAK") == "1"


def history(seed: int) -> Cluster:
    """The cluster of one random history; the seed decides its shape and all that happens."""
    draw = random.Random(seed)
    stages = draw.choice([1, 2, 2, 3, 3, 4])
    microbatches = draw.choice([1, 2, 3])
    steps = draw.choice([2, 3, 5])
    spares = draw.choice([0, 0, 1])
    disturb = draw.choice([0, 1, 1, 2, 3])
    return Cluster(
        seed,
        stages=stages,
        layers=stages + draw.choice([0, 1, 3]),
        microbatches=microbatches,
        steps=steps,
        spares=spares,
        disturb=disturb,
    )


@pytest.mark.parametrize("fifty", range(400 if SOAK else 2))
def test_random_histories_end_exact(fifty: int) -> None:
    for seed in range(fifty * 50, fifty * 50 + (50 if SOAK else 12)):
        history(seed).run()


def history_with_outages(seed: int) -> Cluster:
    """As ``history``, and coordinators, Redis and the network fail as well."""
    draw = random.Random(seed)
    stages = draw.choice([1, 2, 2, 3, 3, 4])
    return Cluster(
        seed,
        stages=stages,
        microbatches=draw.choice([1, 2, 3]),
        steps=draw.choice([3, 8, 15]),
        spares=draw.choice([0, 0, 1]),
        disturb=draw.choice([0, 1, 1, 2, 3]),
        outages=draw.choice([1, 1, 2, 3]),
        layers=stages + draw.choice([0, 1, 3]),
    )


@pytest.mark.parametrize("fifty", range(300 if SOAK else 1))
def test_random_outages_end_exact(fifty: int) -> None:
    for seed in range(fifty * 50, fifty * 50 + (50 if SOAK else 12)):
        history_with_outages(seed).run()


def eager_history(seed: int, eager: bool = True, splits: bool = False, ships: bool = False) -> Cluster:
    """Nodes run forwards ahead for the stages that they stand by for; coordinators, Redis and the network fail too."""
    draw = random.Random(seed)
    stages = draw.choice([1, 2, 2, 3, 3, 4])
    return Cluster(
        seed,
        stages=stages,
        microbatches=draw.choice([1, 2, 3, 5]),
        steps=draw.choice([2, 3, 8]),
        spares=draw.choice([0, 0, 1]),
        disturb=draw.choice([1, 1, 2, 3]),
        outages=draw.choice([0, 0, 0, 1]),
        layers=stages + draw.choice([0, 1, 3]),
        eager=eager,
        lead=draw.choice([1, 2]),
        splits=splits,
        ship_every=draw.choice([1, 2, 3]) if ships else 0,
    )


@pytest.mark.parametrize("fifty", range(300 if SOAK else 1))
def test_random_histories_with_redundant_forwards_end_exact(fifty: int) -> None:
    for seed in range(fifty * 50, fifty * 50 + (50 if SOAK else 12)):
        eager_history(seed).run()


@pytest.mark.parametrize("fifty", range(300 if SOAK else 1))
def test_random_histories_with_shipped_gradients_end_exact(fifty: int) -> None:
    for seed in range(fifty * 50, fifty * 50 + (50 if SOAK else 12)):
        eager_history(seed, eager=seed % 3 == 0, splits=seed % 4 == 0, ships=True).run()


@pytest.mark.parametrize("fifty", range(300 if SOAK else 1))
def test_random_histories_of_backwards_in_two_halves_end_exact(fifty: int) -> None:
    for seed in range(fifty * 50, fifty * 50 + (50 if SOAK else 12)):
        eager_history(seed, eager=seed % 3 == 0, splits=True).run()


@pytest.mark.parametrize(
    ("seed", "why"),
    [
        (14, "after a takeover a node that has not reported yet is a member all the same"),
        (232, "the same plan under a later term is no newer plan, and facts stay facts"),
        (296, "a plan that is a switch came before the commit that it follows; a spare had missed a commit"),
        (2679, "a node of the adopted plan had joined as another incarnation already"),
        (2851, "a node came back with a commit that another one, who was back before, had missed"),
        (6560, "this leader's own plan, reported back after it had adopted another, is not newer"),
        (6715, "of two leaders one committed without a node that the other one's plan requires"),
        (11712, "after an adoption nodes that were a commit behind were told the plan without the commit"),
        (12206, "a node of the adopted plan had given up layers for another leader's plan"),
        (12771, "gradients of steps that a node was behind were dropped, and never came again"),
        (12986, "a node came back into an era that it had left, without what it had acknowledged there"),
    ],
)
def test_outages_that_failed_once(seed: int, why: str) -> None:
    history_with_outages(seed).run()


@pytest.mark.parametrize(
    ("seed", "why"),
    [(7294, "after a takeover a plan came to an owner before the commit of the other leader that it had refused")],
)
def test_histories_with_shipped_gradients_that_failed_once(seed: int, why: str) -> None:
    eager_history(seed, eager=False, ships=True).run()


@pytest.mark.parametrize(
    ("seed", "why"),
    [
        (171, "a new era begins every step anew, also one of the same number"),
        (225, "an answer to an earlier plan's Hello spoke of another era's version"),
        (1458, "a node that becomes an owner with the commit must not wait for gradients it has missed"),
        (3156, "a source that is still building its layers is asked for them"),
    ],
)
def test_histories_that_failed_once(seed: int, why: str) -> None:
    history(seed).run()


def instructions(stages: int, microbatches: int) -> list[Instruction]:
    return [unit(s, op, m) for s in range(stages) for op in ("F", "B") for m in range(microbatches)]


@pytest.mark.parametrize("freeze", [False, True])
def test_a_loss_at_every_instruction_redoes_work_on_the_heir_alone(freeze: bool) -> None:
    stages, microbatches = 4, 3
    for seed, instruction in enumerate(instructions(stages, microbatches)):
        node = f"n{instruction.stage}"
        kill = Kill(node, 1, instruction, freeze)
        options: dict[str, Any] = {"stages": stages, "layers": 5, "microbatches": microbatches, "steps": 3}
        cluster = Cluster(seed, kills=(kill,), disturb=0, respawn=False, **options).run()
        heir = f"n{(instruction.stage - 1) % stages}"
        lost = cluster.nodes[node].executed
        for name in {f"n{i}" for i in range(stages)} - {node}:
            executed = cluster.nodes[name].executed
            assert len(executed) == len(set(executed)), f"{name} ran something twice after {node}'s loss"
            again = set(executed) & set(lost)
            assert not again or name == heir, f"{name} redid {again} after {node} was lost at {instruction}"
            assert all(step == 1 and x.stage == instruction.stage for step, x in again)


@pytest.mark.parametrize("seed", range(40 if SOAK else 10))
def test_redundancy_is_repaired_after_every_loss(seed: int) -> None:
    """Some steps after the last lost node every stage has a hot standby, and no node runs two for want of one."""
    cluster = Cluster(seed, stages=3, layers=6, steps=60, spares=seed % 2, disturb=2).run()
    plan = cluster.state.plan
    assert plan is not None
    assert plan.exposed() == ()
    if len(cluster.state.nodes) >= 3:
        assert all(len(plan.owned_by(name)) <= 1 for name in cluster.state.nodes)


@pytest.mark.parametrize("seed", range(20 if SOAK else 5))
def test_a_standby_whose_gradients_come_after_their_commits_becomes_hot_all_the_same(seed: int) -> None:
    """Also on a node that owns a stage as well, and so applies commits at once."""
    kills = (Kill("n1", 5, unit(1, "F", 0)),)
    cluster = Cluster(seed, stages=2, layers=6, steps=60, spares=1, disturb=0, kills=kills, bulk_seconds=0.02).run()
    hot = [r.event for _, r in cluster.records if isinstance(r.event, Hot)]
    (lost,) = [at for at, r in cluster.records if r.kind == "lost"]
    assert {report.stage for report in hot} == {0, 1}
    commits = [at for at, r in cluster.records if r.kind == "commit" and at > lost]
    assert max(report.exposure_ms for report in hot) < 1e3 * (commits[6] - lost), "within a few steps"
