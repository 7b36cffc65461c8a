"""``culm up --on slurm`` on a real Slurm: it takes a machine with a notice and loses another; the bits stay."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.example import JOB, Run, calm_weights, changed, culm
from tests.engines.slurm_cluster import SlurmCluster, missing, slurm_cluster

pytestmark = pytest.mark.skipif(bool(missing()), reason=f"not here: {missing()}; Debian's slurmctld slurmd munge")
NODES = 4
OPTIONS = {
    "partition": "spot",
    "coordinator_partition": "main",
    "coordinator_host": "127.0.0.1",
    "sbatch": "--cpus-per-task=2",
}


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[SlurmCluster]:
    folder = tmp_path / "slurm"
    folder.mkdir()
    folder.chmod(0o755)
    with slurm_cluster(folder) as cluster:
        yield cluster


def test_machines_are_taken_and_lost_and_come_back(slurm: SlurmCluster, tmp_path: Path) -> None:
    environment = {**slurm.environment, "CULM_HOME": str(tmp_path / "home")}
    options = [word for key, value in OPTIONS.items() for word in ("--with", f"{key}={value}")]
    culm("up", JOB, *changed(), "--on", "slurm", "--nodes", str(NODES), *options, environment=environment)
    run = Run("stdlib-gpt", environment)
    run.until("it trains", lambda: run.status()["step"] > 5)
    first = run.names()
    assert first == {f"node{i + 2}-{i}" for i in range(NODES)}

    slurm.run(
        "sbatch",
        "--partition=urgent",
        "--nodelist=node3",
        "--cpus-per-task=2",
        "--output=/dev/null",
        "--wrap",
        "sleep 5",
    )
    run.until("node3 hands over", lambda: "node3-1" not in run.names())
    assert [event["node"] for event in run.events("left")] == ["node3-1"]
    assert "s are left" in run.events("draining")[0]["text"]
    run.until("it comes back", lambda: run.names() == first)

    slurm.lose_machine("node4")
    run.until("node4 is lost", lambda: [event["node"] for event in run.events("lost")] == ["node4-2"])
    slurm.start_machine("node4")
    run.until("it comes back too", lambda: run.names() == first)

    # The coordinator's machine: its job is queued again, on the same Redis, and the nodes wait for it.
    term = run.status()["term"]
    slurm.lose_machine("node1")
    slurm.start_machine("node1")
    run.until("the next coordinator leads", lambda: run.status()["term"] > term)

    run.until("it is done", lambda: run.status()["phase"] == "done")
    assert run.weights() == calm_weights(environment)
    assert "ended" in culm("down", environment=environment)
    assert slurm.run("squeue", "--noheader", "--name", "culm-stdlib-gpt-coordinator,culm-stdlib-gpt-stages") == ""


def test_a_task_that_hears_a_signal_comes_back_unless_it_is_cancelled(slurm: SlurmCluster, tmp_path: Path) -> None:
    environment = {**slurm.environment, "CULM_HOME": str(tmp_path / "home")}
    options = [word for key, value in OPTIONS.items() for word in ("--with", f"{key}={value}")]
    long = [*changed(), "--set", "job.steps=100000"]
    culm("up", JOB, *long, "--on", "slurm", "--nodes", str(NODES), *options, environment=environment)
    run = Run("stdlib-gpt", environment)
    run.until("it trains", lambda: run.status()["step"] > 5)
    first = run.names()
    (listed,) = set(slurm.run("squeue", "--noheader", "--name=culm-stdlib-gpt-stages", "--format=%F").split())

    def left() -> list[str]:
        return [event["node"] for event in run.events("left")]

    slurm.run("scancel", "--batch", "--signal=TERM", f"{listed}_0")
    run.until("it hands over", lambda: left() == ["node2-0"])
    run.until("it comes back", lambda: run.names() == first)

    slurm.run("scontrol", "requeue", f"{listed}_1")
    run.until("it hands over as well", lambda: left() == ["node2-0", "node3-1"])
    run.until("Slurm brings it back", lambda: run.names() == first)

    slurm.run("scancel", f"{listed}_2")
    run.until("it hands over for good", lambda: left() == ["node2-0", "node3-1", "node4-2"])
    run.until("Slurm has ended it", lambda: slurm.run("squeue", "--noheader", f"--jobs={listed}_2") == "")
    assert run.names() == first - {"node4-2"}
    assert run.events("lost") == []
    assert "ended" in culm("down", "--now", environment=environment)


def test_a_partition_that_is_not_there_is_told_before_anything_is_submitted(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    environment = {**slurm.environment, "CULM_HOME": str(tmp_path / "home")}
    words = ("up", JOB, "--on", "slurm", "--dry-run", "--with")
    assert "#!/bin/sh" in culm(*words, "partition=spot", environment=environment)
    with pytest.raises(AssertionError, match="stages: sbatch refuses: allocation failure: Invalid partition name"):
        culm(*words, "partition=nosuch", environment=environment)
    assert slurm.run("squeue", "--noheader") == ""
    assert not (tmp_path / "home").exists()
