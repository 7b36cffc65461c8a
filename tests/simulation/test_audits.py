"""Histories in which machines compute wrongly: the weights at the end are the plain loop's all the same (rule 25)."""

import os
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from culm.coordinator import checkpoints, checks, doubting, takeover
from culm.coordinator import state as co
from culm.coordinator.decisions import Decision
from culm.coordinator.edges import persistence
from culm.coordinator.edges.persistence import _checks_to as checks_to
from culm.pipeline.money.kinds import Differed, RolledBack
from culm.simulator.histories.simulated_cluster import Broken, Cluster
from culm.simulator.histories.wrong_machines import WrongMachines

SOAK = os.environ.get("CULM_SOAK") == "1"


def history_of_audits(
    seed: int, flips: bool = True, forwards: bool = True, **asked: Any
) -> tuple[Cluster, WrongMachines]:
    """Any shape; every forward is audited. A bit or two flip, and forwards go wrong, as far as asked for."""
    draw = random.Random(f"audited {seed}")
    stages, pipelines = draw.choice([(1, 2), (2, 1), (3, 1), (4, 1), (2, 2), (2, 3), (3, 2)])
    wrong = draw.choice([0, 1, 2]) * flips, draw.choice([0, 1, 2]) * forwards
    machines: list[WrongMachines] = []
    cluster = Cluster(
        seed,
        stages=stages,
        pipelines=pipelines,
        nodes=max(2, stages * draw.choice([1, 1, 2])) if pipelines > 1 else stages + draw.choice([0, 1]),
        layers=4,
        microbatches=draw.choice([1, 2, 4]),
        steps=draw.choice([4, 8]),
        checkpoint_every=draw.choice([0, 1, 2, 3]),
        eager=draw.choice([False, False, True]),
        lead=draw.choice([1, 2]),
        splits=draw.choice([False, True]),
        ship_every=draw.choice([0, 0, 2]),
        copies=draw.choice([2, 2, 3]),
        hostile=lambda world: machines.append(WrongMachines(world, *wrong)),
        **{"audit": 1.0, "disturb": 0, **asked},
    )
    return cluster, machines[0]


def differed(cluster: Cluster) -> list[Differed]:
    return [record.event for _, record in cluster.records if isinstance(record.event, Differed)]


@pytest.mark.parametrize("fifty", range(40 if SOAK else 1))
def test_whatever_goes_wrong_in_a_forward_or_a_state_no_bit_of_it_stays(fifty: int) -> None:
    found = 0
    for seed in range(fifty * 50, fifty * 50 + (50 if SOAK else 12)):
        cluster, machines = history_of_audits(seed)
        cluster.run()
        assert cluster.state.phase is co.Phase.DONE, f"seed {seed}: {cluster.state.detail}"
        assert machines.done or not differed(cluster), f"seed {seed}: nothing went wrong, and {differed(cluster)}"
        found += bool(differed(cluster))
    assert found > 5, "in most of them something is found"


@pytest.mark.parametrize("fifty", range(40 if SOAK else 1))
def test_lost_nodes_are_not_taken_for_wrong_ones(fifty: int) -> None:
    for seed in range(fifty * 50, fifty * 50 + (50 if SOAK else 15)):
        cluster, _ = history_of_audits(seed, flips=False, forwards=False, disturb=3)
        cluster.run()
        assert cluster.state.phase is co.Phase.DONE, f"seed {seed}: {cluster.state.detail}"
        assert not differed(cluster), f"seed {seed}"


# Few forwards are audited, so that flips show by nothing but the state.
AMONG: tuple[dict[str, Any], ...] = (
    {"disturb": 2},
    {"disturb": 1, "outages": 3},
    {"disturb": 1, "outages": 1, "changes": 2, "spares": 1, "forgets": 1},
    {"disturb": 0, "outages": 2, "pauses": 1},
)


@pytest.mark.parametrize("fifty", range(40 if SOAK else 1))
def test_a_flip_is_found_at_the_gate_whatever_else_happens(fifty: int) -> None:
    """Unless nobody is left to compare with. ``invariants.check_gate`` looks at each commit."""
    found = 0
    for seed in range(fifty * 50, fifty * 50 + (50 if SOAK else 16)):
        asked: dict[str, Any] = {"forwards": False, "audit": 0.01, **AMONG[seed % len(AMONG)]}
        cluster, machines = history_of_audits(seed, **asked)
        cluster.run()
        assert cluster.state.phase is co.Phase.DONE, f"seed {seed}: {cluster.state.detail}"
        assert machines.done or not differed(cluster), f"seed {seed}: nothing went wrong, and {differed(cluster)}"
        found += bool(differed(cluster))
    assert found > 2, "in many of them something is found"


@pytest.mark.parametrize("fifty", range(40 if SOAK else 1))
def test_a_wrong_forward_is_found_before_the_commit_whatever_else_happens(fifty: int) -> None:
    """Unless a stage has one copy left: nobody is there to compare with. Pauses are left out: what flips in one before
    its checkpoint is written is in that checkpoint.
    """
    found = 0
    for seed in range(fifty * 50, fifty * 50 + (50 if SOAK else 16)):
        cluster, machines = history_of_audits(seed, **AMONG[seed % 3])
        cluster.run()
        assert cluster.state.phase is co.Phase.DONE, f"seed {seed}: {cluster.state.detail}"
        assert machines.done or not differed(cluster), f"seed {seed}: nothing went wrong, and {differed(cluster)}"
        found += bool(differed(cluster))
    assert found > 5, "in many of them something is found"


def without_auditors_anew(without: pytest.MonkeyPatch) -> None:
    """An auditor is lost, and a node that was ready before is the next one: nobody waits for what that finds."""
    without.setattr(doubting, "is_to_audit", lambda *_: False)


def test_a_step_waits_for_the_auditor_that_takes_a_lost_ones_place(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as without:
        without_auditors_anew(without)
        with pytest.raises(Broken):
            history_of_audits(2027, **AMONG[2])[0].run()
    history_of_audits(2027, **AMONG[2])[0].run()


def test_a_new_leader_knows_how_far_back_a_doubt_reaches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the run begins anew: no node is known to have been right at any time."""

    def steps_back() -> list[int]:
        cluster = history_of_audits(291, flips=False, outages=2)[0].run()
        events = [record.event for _, record in cluster.records]
        pairs = pairwise(events)
        return [a.step - b.step for a, b in pairs if isinstance(a, Differed) and isinstance(b, RolledBack)]

    with monkeypatch.context() as without:
        without.setattr(persistence, "_checks_to", lambda told: checks_to(replace(told, good={})))
        forgetful = steps_back()
    assert sum(steps_back()) < sum(forgetful)


def mixing_steps(without: pytest.MonkeyPatch) -> None:
    """A leader that hears of a later commit keeps what nodes have told it of the step before."""

    def kept(state: Any, **parts: Any) -> Any:
        parts.pop("checks", None)
        return replace(state, **parts)

    without.setattr(takeover, "replace", kept)


@pytest.mark.parametrize("seed", [14, 182, 325])
def test_a_new_leader_does_not_compare_the_states_of_two_steps(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {"flips": False, "forwards": False, "outages": 3, "changes": 1, "disturb": 2}
    with monkeypatch.context() as without:
        mixing_steps(without)
        assert differed(history_of_audits(seed, **asked)[0].run()), "of states that are right"
    assert not differed(history_of_audits(seed, **asked)[0].run())


def leaving_out(without: pytest.MonkeyPatch, **parts: Any) -> None:
    differing = checks.differing

    def of_the_rest(told: checks.Checks, *others: Any) -> checks.Doubt | None:
        return differing(replace(told, **parts), *others)

    without.setattr(checks, "differing", of_the_rest)


def without_states(without: pytest.MonkeyPatch) -> None:
    """Nobody compares what holders tell of their state."""
    leaving_out(without, states={})


def without_forwards(without: pytest.MonkeyPatch) -> None:
    """Nobody compares what auditors have found."""
    leaving_out(without, audited={})


def without_waiting(without: pytest.MonkeyPatch) -> None:
    """A checkpoint is whole before the gate after it has passed."""
    due = checkpoints.manifests_due

    def at_once(state: co.State) -> Decision:
        settings = state.settings
        state, orders = due(replace(state, settings=replace(settings, audit=0.0)))
        return replace(state, settings=settings), orders

    without.setattr(checkpoints, "manifests_due", at_once)


def without_the_gate_between(without: pytest.MonkeyPatch) -> None:
    """Where states differ, the run goes back to the newest checkpoint, also to one that was written in a pause."""
    good_until = doubting._good_until

    def newest(state: co.State, doubt: checks.Doubt) -> int:
        return state.committed if doubt.of_state else good_until(state, doubt)

    without.setattr(doubting, "_good_until", newest)


# Where every forward is audited a state that has changed shows by these, too.
FEW = {"audit": 0.01, "forwards": False}
PAUSED = {"forwards": False, "outages": 2, "pauses": 1}


@pytest.mark.parametrize(
    ("part", "seed", "asked"),
    [
        (without_states, 28, FEW),
        (without_forwards, 0, {}),
        (without_the_gate_between, 4, PAUSED),
        (without_the_gate_between, 124, PAUSED),
        (without_the_gate_between, 135, PAUSED),
    ],
)
def test_without_a_part_of_it_a_wrong_number_stays(
    part: Callable[[pytest.MonkeyPatch], None], seed: int, asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as without:
        part(without)
        with pytest.raises(Broken):
            history_of_audits(seed, **asked)[0].run()
    history_of_audits(seed, **asked)[0].run()


def test_without_waiting_lost_nodes_lead_back_to_a_wrong_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every copy of a stage is lost before the gate that would have struck the checkpoint off."""

    def history() -> Cluster:
        flips = partial(WrongMachines, flips=3)
        return Cluster(1089, stages=2, microbatches=2, steps=8, checkpoint_every=1, disturb=4, audit=1.0, hostile=flips)

    with monkeypatch.context() as without:
        without_waiting(without)
        with pytest.raises(Broken):
            history().run()
    history().run()


def history_of_a_faulty_machine(seed: int) -> Cluster:
    """Half of one machine's forwards are wrong, whatever process runs there; one forward in twenty is audited."""
    stages, copies = random.Random(f"faulty {seed}").choice([(3, 2), (4, 2), (4, 3)])
    return Cluster(
        seed,
        stages=stages,
        layers=stages,
        microbatches=8,
        steps=100,
        checkpoint_every=10,
        copies=copies,
        spares=1,
        disturb=0,
        audit=0.05,
        hostile=lambda world: WrongMachines(world, faulty="n1", share=0.5),
    )


def test_a_machine_that_computes_wrongly_again_and_again_is_found() -> None:
    trials = 200 if SOAK else 2
    found = 0
    for seed in range(trials):
        cluster = history_of_a_faulty_machine(seed).run()
        assert cluster.state.phase is co.Phase.DONE, f"seed {seed}: {cluster.state.detail}"
        blamed = {name for event in differed(cluster) for name in event.found.split(", ") if name}
        assert blamed <= {"n1"}, f"seed {seed}: {blamed}"
        found += "n1" in blamed
    assert found >= 0.95 * trials
