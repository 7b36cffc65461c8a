"""Nodes are lost at a steady pace: how long a stage is without a hot standby after each, and whether a bit changes.

``python -m benchmarks.exposure`` trains the example with a kill every so many steps, nodes coming back, and compares
the weights with a calm run's.
"""

import argparse
import os
import random
import signal
import statistics
import tempfile
from pathlib import Path

from culm.local.cluster import LocalCluster
from culm.local.training import train
from culm.pipeline.job import Job, load_job
from culm.protos import coordinator_pb2 as pb
from culm.protos.coordinator_pb2_grpc import CoordinatorStub
from culm.terminal.outcome import Outcome

JOB = Path("examples/stdlib_gpt.toml")


class Killer:
    """Kill -9 the owner of a random stage every ``every`` steps, if no stage is exposed at that moment."""

    def __init__(self, cluster: LocalCluster, every: int, seed: int) -> None:
        self._cluster = cluster
        self._every = every
        self._draw = random.Random(seed)
        self._due = every
        self.kills = 0

    def __call__(self, stub: CoordinatorStub, status: pb.GetStatusResponse, deaths: list[tuple[str, float]]) -> None:
        if status.phase != "running" or status.step < self._due or any(status.exposure.values()):
            return
        self._due = status.step + self._every
        victim = self._draw.choice(status.plan.stages).owners[0]
        pid = self._cluster.pids().get(victim)
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
            self.kills += 1


def run(job: Job, nodes: int, every: int, seed: int) -> tuple[Outcome, list[float], int]:
    """The outcome, the exposure windows in ms, and the number of kills; ``every`` 0: a calm run."""
    windows: list[float] = []

    def watch(status: pb.GetStatusResponse, events: list[pb.ListEventsResponse], outcome: Outcome) -> None:
        windows.extend(float(e.fields["exposure_ms"]) for e in events if e.kind == "hot")

    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(job, JOB.parent, nodes, folder=Path(folder) / "run") as cluster,
    ):
        killer = Killer(cluster, every, seed)
        return train(cluster, watch, killer if every else None), windows, killer.kills


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[])
    arguments = parser.parse_args()
    job = load_job(JOB, [f"job.steps={arguments.steps}", *arguments.set])
    killed, windows, kills = run(job, job.pipeline.stages + 1, arguments.every, arguments.seed)
    ordered = sorted(windows)
    p99 = ordered[min(len(ordered) - 1, round(0.99 * len(ordered)))]
    print(f"{kills} kills in {killed.seconds:.0f} s, {len(windows)} windows without a hot standby", flush=True)
    print(f"exposure: median {statistics.median(windows):.0f} ms, p99 {p99:.0f} ms, longest {ordered[-1]:.0f} ms")
    resumed = [x["resume_ms"] for x in killed.losses_of_nodes]
    print(f"resumed after: median {statistics.median(resumed):.0f} ms, longest {max(resumed):.0f} ms", flush=True)
    calm, _, _ = run(job, job.pipeline.stages, 0, 0)
    same = calm.sha256 == killed.sha256 and calm.losses == killed.losses
    print(f"calm: {calm.seconds:.0f} s; {'identical' if same else 'DIFFERENT'} {killed.sha256}")


if __name__ == "__main__":
    main()
