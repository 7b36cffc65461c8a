"""Random histories of what is wrong with one machine, or with the job: only the job fails a run (rule 16)."""

import os
import random
from typing import Any

import pytest

from culm.coordinator import state as co
from culm.pipeline.money.kinds import Dismissed, Joined
from culm.simulator.histories.simulated_cluster import Cluster
from culm.simulator.histories.start_up import Fault, Wrong

SOAK = os.environ.get("CULM_SOAK") == "1"
KINDS = ("never starts", "starts late", "raises once", "dies once", "one bad machine", "stalls", "cannot die", "late")


def one_machine(seed: int, **rule: Any) -> Cluster:
    """Something is wrong with one machine, and another one may be lost: the run ends exact."""
    draw = random.Random(f"one machine {seed}")
    stages = draw.choice([2, 3])
    nodes, layers, steps = stages + draw.choice([1, 2]), stages + draw.choice([0, 2]), draw.choice([4, 8])
    machine, kind = f"n{draw.randrange(nodes)}", draw.choice(KINDS)
    fault = Fault(draw.randrange(steps), draw.randrange(layers), kind == "dies once", machine)
    wrong = Wrong(
        never_starts=frozenset([machine]) if kind == "never starts" else frozenset(),
        starts_late=frozenset([machine]) if kind == "starts late" else frozenset(),
        fault=fault if kind in ("raises once", "dies once", "one bad machine") else None,
        for_ever=kind == "one bad machine",
        stalls=machine if kind == "stalls" else "",
        stall_seconds=draw.choice([3.0, 20.0, 50.0]),
        cannot_die=machine if kind == "cannot die" else "",
        late_beats=1.0 if kind == "late" else 0.0,
    )
    disturb = draw.choice([0, 0, 1])
    return Cluster(seed, stages, layers, steps=steps, nodes=nodes, disturb=disturb, wrong=wrong, **rule)


def job_at_fault(seed: int, **rule: Any) -> Cluster:
    """The job goes wrong wherever it runs: the run fails."""
    draw = random.Random(f"job at fault {seed}")
    stages = draw.choice([1, 2, 3])
    nodes, layers, steps = stages + draw.choice([0, 1]), stages + draw.choice([0, 2]), draw.choice([2, 4])
    kind = draw.choice(["start", "raises", "dies"])
    wrong = Wrong(
        never_starts=frozenset(f"n{i}" for i in range(nodes)) if kind == "start" else frozenset(),
        fault=Fault(draw.randrange(steps), draw.randrange(layers), kind == "dies") if kind != "start" else None,
    )
    return Cluster(seed, stages, layers, steps=steps, nodes=nodes, disturb=draw.choice([0, 1]), wrong=wrong, **rule)


@pytest.mark.parametrize("fifty", range(200 if SOAK else 1))
def test_one_machine_fails_no_run(fifty: int) -> None:
    for seed in range(fifty * 50, fifty * 50 + (50 if SOAK else 12)):
        cluster = one_machine(seed).run()
        assert cluster.state.phase is co.Phase.DONE, f"seed {seed}"


@pytest.mark.parametrize("fifty", range(200 if SOAK else 1))
def test_a_job_at_fault_fails_the_run(fifty: int) -> None:
    for seed in range(fifty * 50, fifty * 50 + (50 if SOAK else 12)):
        cluster = job_at_fault(seed).run()
        assert cluster.state.phase is co.Phase.FAILED, f"seed {seed}"


@pytest.mark.parametrize("fifty", range(20 if SOAK else 1))
def test_threads_that_break_before_their_nodes_take_part_fail_no_run(fifty: int) -> None:
    """The first process of every node breaks. Counted as starts that raised, they would have failed the run."""
    for seed in range(fifty * 50, fifty * 50 + (50 if SOAK else 12)):
        draw = random.Random(f"threads {seed}")
        stages, nodes, disturb = draw.choice([1, 2, 3]), draw.choice([1, 2, 3]), draw.choice([0, 1])
        wrong = Wrong(breaks_first=frozenset(f"n{i}" for i in range(nodes)))
        cluster = Cluster(seed, stages, stages + 1, steps=4, nodes=nodes, disturb=disturb, wrong=wrong).run()
        assert cluster.state.phase is co.Phase.DONE, f"seed {seed}"


@pytest.mark.parametrize("seconds", [3.0, 20.0, 50.0])
def test_a_stall_of_storage_loses_nobody(seconds: float) -> None:
    for seed in range(9):
        wrong = Wrong(stalls=f"n{seed % 3}", stall_seconds=seconds)
        cluster = Cluster(seed, 3, steps=6, disturb=0, wrong=wrong).run()
        assert [r.text for _, r in cluster.records if r.kind == "lost"] == [], f"seed {seed}"


@pytest.mark.parametrize("work", ["Run", "Apply", "Reduce"])
def test_a_node_that_never_ends_a_piece_of_work_is_lost(work: str) -> None:
    """Its heart beats, and its streams stand. Only forwards and backwards of its own were looked at."""
    stuck = 0
    for seed in range(200 if SOAK else 10):
        wrong = Wrong(hangs=f"n{seed % 3}", hangs_at=work)
        cluster = Cluster(seed, 3, steps=20, disturb=seed % 2, eager=seed % 4 > 1, wrong=wrong).run()
        assert cluster.state.phase is co.Phase.DONE, f"seed {seed}"
        stuck += any("it is stuck" in r.text for _, r in cluster.records if r.kind == "lost")
    assert stuck >= 8


def test_late_heartbeats_within_the_patience_lose_nobody() -> None:
    for seed in range(4):
        late = Wrong(late_beats=8.0)
        cluster = Cluster(seed, 2, steps=120, disturb=0, wrong=late, patience=10.0).run()
        assert [r.text for _, r in cluster.records if r.kind == "lost"] == [], f"seed {seed}"


def test_a_machine_that_never_starts_the_job_is_told_of_ever_more_seldom() -> None:
    wrong = Wrong(never_starts=frozenset(["n3"]))
    cluster = Cluster(3, 3, steps=150, nodes=4, disturb=0, wrong=wrong).run()
    told = [r.event for _, r in cluster.records if isinstance(r.event, Dismissed | Joined) and r.event.node == "n3"]
    counts = [report.count for report in told if isinstance(report, Dismissed)]
    assert counts == [2**i for i in range(len(counts))]
    assert len(counts) >= 3
    assert len([report for report in told if isinstance(report, Joined)]) <= len(counts) + 1
