"""What a calm pipeline costs: two nodes with one thread each against the plain loop with two threads.

``python -m benchmarks.idle_cost`` runs both in turn, round by round, on the example job and prints the medians.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.awake import awake_cores
from benchmarks.programs import told_by
from culm.local.cluster import LocalCluster
from culm.local.training import train
from culm.pipeline.job import load_job

JOB = Path("examples/stdlib_gpt.toml")
PLAIN = """
import sys
from culm.oracle.plain_loop import run_plain
from culm.pipeline.job import load_job
print(run_plain(load_job(sys.argv[1], sys.argv[2:])).seconds)
"""


def plain_seconds(overrides: list[str]) -> float:
    """The plain loop in a process of its own, its steps alone."""
    words = [sys.executable, "-c", PLAIN, str(JOB), *overrides, "job.threads=2"]
    return float(told_by(words))


def pipeline_seconds(overrides: list[str]) -> float:
    """Two nodes, lazy redundancy: from the first plan to the last commit."""
    job = load_job(JOB, [*overrides, "job.threads=1", "pipeline.stages=2", "resilience.redundancy=lazy"])
    with tempfile.TemporaryDirectory() as folder, LocalCluster(job, JOB.parent, 2, folder=Path(folder) / "run") as c:
        return train(c, lambda status, events, outcome: None).seconds


@awake_cores()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12)
    arguments = parser.parse_args()
    overrides = [f"job.steps={arguments.steps}"]
    ratios = []
    for number in range(arguments.rounds):
        plain, pipeline = plain_seconds(overrides), pipeline_seconds(overrides)
        ratios.append(pipeline / plain)
        print(f"round {number}: plain {plain:.2f} s, pipeline {pipeline:.2f} s, ratio {ratios[-1]:.3f}", flush=True)
    print(f"median ratio {statistics.median(ratios):.3f}, from {min(ratios):.3f} to {max(ratios):.3f}")


if __name__ == "__main__":
    main()
