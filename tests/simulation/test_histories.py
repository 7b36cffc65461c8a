"""Random histories in the simulated cluster: none gets stuck, none changes a number. A failing seed replays."""

import os
import random
from typing import Any

import pytest

from culm.coordinator import reports
from culm.pipeline.instruction import Instruction
from culm.pipeline.money.kinds import Hot
from culm.simulator.histories.random_faults import Kill
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


@pytest.mark.parametrize("hundred", range(200 if SOAK else 5))
def test_random_histories_end_exact(hundred: int) -> None:
    for seed in range(hundred * 100, hundred * 100 + 100):
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


@pytest.mark.parametrize("hundred", range(150 if SOAK else 2))
def test_random_outages_end_exact(hundred: int) -> None:
    for seed in range(hundred * 100, hundred * 100 + 100):
        history_with_outages(seed).run()


def history_of_forgetting(seed: int, **options: Any) -> Cluster:
    """Redis comes back empty, older, without its last second or with another term; coordinators start over it."""
    draw = random.Random(seed)
    stages = draw.choice([1, 2, 2, 3, 3, 4])
    return Cluster(
        seed,
        stages=stages,
        microbatches=draw.choice([1, 2, 3]),
        steps=draw.choice([8, 15, 30]),
        spares=draw.choice([0, 0, 1]),
        disturb=draw.choice([0, 0, 1, 2]),
        outages=draw.choice([0, 0, 1, 2]),
        changes=draw.choice([0, 0, 1]),
        checkpoint_every=draw.choice([0, 0, 3]),
        forgets=draw.choice([1, 1, 2, 3]),
        layers=stages + draw.choice([0, 1, 3]),
        **options,
    )


@pytest.mark.parametrize("hundred", range(200 if SOAK else 2))
def test_a_redis_that_forgets_costs_no_step_and_no_bit(hundred: int) -> None:
    for seed in range(hundred * 100, hundred * 100 + 100):
        history_of_forgetting(seed).run()


@pytest.mark.parametrize(
    ("seed", "why"),
    [
        (0, "nodes obeyed two leaders of the same term"),
        (2, "the leader's term was below that of the plan which its nodes obeyed, so they refused every other one"),
        (12, "a run that waited for nodes was begun again under a term that had been used"),
        (36, "a new node was taken for a holder by a plan that had another one's number"),
        (1148, "a node that was lost came back to a leader that a forgetful Redis had not told of it"),
        (47, "a rollback went to a checkpoint that an emptied Redis did not know"),
    ],
)
def test_forgetting_that_failed_once(seed: int, why: str) -> None:
    history_of_forgetting(seed).run()


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


@pytest.mark.parametrize("hundred", range(150 if SOAK else 2))
def test_random_histories_with_redundant_forwards_end_exact(hundred: int) -> None:
    for seed in range(hundred * 100, hundred * 100 + 100):
        eager_history(seed).run()


@pytest.mark.parametrize("hundred", range(150 if SOAK else 2))
def test_random_histories_with_shipped_gradients_end_exact(hundred: int) -> None:
    for seed in range(hundred * 100, hundred * 100 + 100):
        eager_history(seed, eager=seed % 3 == 0, splits=seed % 4 == 0, ships=True).run()


@pytest.mark.parametrize("hundred", range(150 if SOAK else 2))
def test_random_histories_of_backwards_in_two_halves_end_exact(hundred: int) -> None:
    for seed in range(hundred * 100, hundred * 100 + 100):
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


@pytest.mark.parametrize("seed", range(40))
def test_redundancy_is_repaired_after_every_loss(seed: int) -> None:
    """Some steps after the last lost node every stage has a hot standby, and no node runs two for want of one."""
    cluster = Cluster(seed, stages=3, layers=6, steps=60, spares=seed % 2, disturb=2).run()
    plan = cluster.state.plan
    assert plan is not None
    assert plan.exposed() == ()
    if len(cluster.state.nodes) >= 3:
        assert all(len(plan.owned_by(name)) <= 1 for name in cluster.state.nodes)


@pytest.mark.parametrize("seed", range(20))
def test_a_standby_whose_gradients_come_after_their_commits_becomes_hot_all_the_same(seed: int) -> None:
    """Also on a node that owns a stage as well, and so applies commits at once."""
    kills = (Kill("n1", 5, unit(1, "F", 0)),)
    cluster = Cluster(seed, stages=2, layers=6, steps=60, spares=1, disturb=0, kills=kills, bulk_seconds=0.02).run()
    hot = [r.event for _, r in cluster.records if isinstance(r.event, Hot)]
    (lost,) = [at for at, r in cluster.records if r.kind == "lost"]
    assert {report.stage for report in hot} == {0, 1}
    commits = [at for at, r in cluster.records if r.kind == "commit" and at > lost]
    assert max(report.exposure_ms for report in hot) < 1e3 * (commits[6] - lost), "within a few steps"


def history_of_changes(seed: int, disturb: int = 0) -> Cluster:
    """Nodes are drained and join; with ``disturb`` they are lost as well."""
    draw = random.Random(seed)
    stages = draw.choice([1, 2, 2, 3, 3, 4])
    return Cluster(
        seed,
        stages=stages,
        microbatches=draw.choice([1, 2, 3]),
        steps=draw.choice([8, 15]),
        spares=draw.choice([0, 0, 1]),
        disturb=disturb,
        changes=draw.choice([1, 2, 4]),
        layers=stages + draw.choice([0, 1, 3]),
    )


@pytest.mark.parametrize("hundred", range(50 if SOAK else 1))
def test_drains_and_joins_redo_nothing(hundred: int) -> None:
    for seed in range(hundred * 100, hundred * 100 + 100):
        cluster = history_of_changes(seed).run()
        executed = [x for node in cluster.every for x in node.executed]
        assert cluster.state.era == 0, f"seed {seed}: a drain rolled the run back"
        assert len(executed) == len(set(executed)), f"seed {seed}: work was done twice"


@pytest.mark.parametrize("hundred", range(50 if SOAK else 1))
def test_drains_joins_and_losses_end_exact(hundred: int) -> None:
    for seed in range(hundred * 100, hundred * 100 + 100):
        history_of_changes(seed, disturb=2).run()


def history_of_warnings(seed: int, disturb: int) -> Cluster:
    """Machines that may have to go, some of which do."""
    draw = random.Random(seed)
    stages = draw.choice([2, 3, 4])
    return Cluster(
        seed,
        stages=stages,
        steps=draw.choice([8, 15]),
        spares=draw.choice([0, 1, 2]),
        disturb=disturb,
        changes=draw.choice([0, 1, 2]),
        warnings=draw.choice([1, 2, 5]),
        layers=stages + draw.choice([0, 1, 3]),
    )


@pytest.mark.parametrize("hundred", range(20 if SOAK else 1))
def test_warnings_redo_nothing_and_end_exact(hundred: int) -> None:
    for seed in range(hundred * 100, hundred * 100 + 100):
        cluster = history_of_warnings(seed, disturb=seed % 3).run()
        executed = [x for node in cluster.every for x in node.executed]
        if seed % 3 == 0:
            assert len(executed) == len(set(executed)), f"seed {seed}: work was done twice"


def test_a_warned_node_hands_over_once_the_others_are_enough() -> None:
    cluster = Cluster(1, stages=3, steps=30, spares=1, disturb=0)
    cluster.clock.at(0.3, lambda: cluster.nodes["n1"].tell(reports.Warned("n1", "its cloud recommends a rebalance")))
    plan = cluster.run().state.plan
    assert plan is not None
    assert plan.held_by("n1") == ()
    assert plan.exposed() == ()
    assert "n1" in cluster.state.nodes, "it stays as a spare"


def history_with_checkpoints(seed: int) -> Cluster:
    """All of it at once; what has no copy left goes on from a checkpoint."""
    draw = random.Random(seed)
    stages = draw.choice([1, 2, 2, 3, 3, 4])
    return Cluster(
        seed,
        stages=stages,
        microbatches=draw.choice([1, 2, 3]),
        steps=draw.choice([3, 8, 15]),
        spares=draw.choice([0, 0, 1]),
        disturb=draw.choice([0, 1, 1, 2, 3]),
        outages=draw.choice([0, 0, 1, 2]),
        checkpoint_every=draw.choice([1, 2, 3]),
        changes=draw.choice([0, 0, 2]),
        layers=stages + draw.choice([0, 1, 3]),
    )


@pytest.mark.parametrize("hundred", range(100 if SOAK else 2))
def test_rollbacks_to_a_checkpoint_end_exact(hundred: int) -> None:
    for seed in range(hundred * 100, hundred * 100 + 100):
        history_with_checkpoints(seed).run()


@pytest.mark.parametrize(
    ("seed", "why"),
    [
        (606, "a layer that was fetched in the era before came in place of the checkpoint's"),
        (990, "a node that this leader had let go was in the plan of the leader before"),
        (1233, "an answer under the plan of an earlier leader, of the same generation, counted"),
        (1856, "an answer spoke of the steps of another era"),
        (8032, "a node being seeded missed commits, and commits waited for it"),
    ],
)
def test_rollbacks_that_failed_once(seed: int, why: str) -> None:
    history_with_checkpoints(seed).run()


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


@pytest.mark.parametrize("hundred", range(50 if SOAK else 1))
def test_cutting_anew_ends_exact(hundred: int) -> None:
    cut = 0
    for seed in range(hundred * 100, hundred * 100 + 100):
        cluster = history_of_cutting_anew(seed).run()
        cut += any("take the place of" in record.text for _, record in cluster.records)
    assert cut > 5, "the model was hardly ever cut anew"


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


@pytest.mark.parametrize("hundred", range(50 if SOAK else 1))
def test_broken_links_end_exact(hundred: int) -> None:
    for seed in range(hundred * 100, hundred * 100 + 100):
        history_of_links(seed, disturb=seed % 3).run()


def test_links_that_failed_once() -> None:
    """A later gradient shows that an earlier one will not come, also while it waits for the plan within the commit."""
    history_of_links(17, disturb=2).run()


@pytest.mark.parametrize("hundred", range(20 if SOAK else 1))
def test_a_link_that_is_broken_for_good_costs_no_step(hundred: int) -> None:
    """One of its ends goes; the run goes on, and begins no new era."""
    for seed in range(hundred * 100, hundred * 100 + 100):
        cluster = history_of_links(seed, for_good=True).run()
        assert cluster.state.era == 0, f"seed {seed}: a broken link rolled the run back"
