"""The time of a paced pipeline's step, with and without redundancy, against the ideal and against torch's own 1F1B.

``python -m benchmarks.pipelining`` runs them in turn, round by round. Paced layers (``benchmarks.paced``) take 10 ms
forward and 20 ms backward off the CPU; the ideal step of 1F1B takes (M + P - 1) (f + b).
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.awake import awake_cores
from benchmarks.paced import BACKWARD, FORWARD, job_file
from benchmarks.priorities import allowed, later_first
from benchmarks.programs import told_by
from culm.local.cluster import LocalCluster
from culm.local.training import train
from culm.pipeline.job import load_job
from culm.protos import coordinator_pb2 as pb

WARM = 4  # steps that do not count
ROOT = Path(__file__).parents[1]


def ideal(stages: int, microbatches: int) -> float:
    return (microbatches + stages - 1) * (FORWARD + BACKWARD)


def culm_step(
    stages: int,
    microbatches: int,
    redundancy: str,
    steps: int,
    apart: bool = False,
    changes: Sequence[str] = (),
    priorities: bool = False,
) -> float:
    """Median seconds from commit to commit of a calm run on local processes.

    ``apart``: as nodes of different machines, which share no memory: an address of loopback for each.
    ``priorities``: later stages first (``benchmarks.priorities``), from the first commit on.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = {"steps": steps, "stages": stages, "microbatches": microbatches, "redundancy": redundancy}
        path = job_file(folder, forward=FORWARD, backward=BACKWARD, **settings)
        job = load_job(path, changes)
        commits: list[float] = []

        def note(status: pb.GetStatusResponse, events: list[pb.ListEventsResponse], outcome: object) -> None:
            begun = bool(commits)
            commits.extend(event.time for event in events if event.kind == "commit")
            if priorities and commits and not begun:
                for node in status.nodes:
                    later_first(node.pid, max(node.stages))

        hosts = {f"n{i}": {"CULM_LISTEN": f"127.0.0.{i + 2}:0"} for i in range(stages if apart else 0)}
        run = folder / "run"
        with LocalCluster(job, ROOT, stages, folder=run, patience=20.0, environments=hosts) as cluster:
            train(cluster, note)
    times = [b - a for a, b in zip(commits[WARM:], commits[WARM + 1 :], strict=False)]
    return statistics.median(times)


def torch_step(stages: int, microbatches: int, steps: int) -> float:
    """The same of torch.distributed.pipelining's 1F1B on gloo, a process a stage."""
    return told("benchmarks.torch_pipelining", stages, microbatches, steps)


def bare_step(stages: int, microbatches: int, steps: int, priorities: bool = False) -> float:
    """The same of processes and pipes without any runtime."""
    return told("benchmarks.bare_pipeline", stages, microbatches, steps, more=["later-first"] if priorities else [])


def told(module: str, *shape: int, more: Sequence[str] = ()) -> float:
    words = [sys.executable, "-m", module, *map(str, shape), str(WARM), *more]
    return float(told_by(words))


@awake_cores()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--stages", type=int, nargs="+", default=[4, 8])
    first = ["first"] if allowed() else []
    ways = ["off", *first, "apart", "lazy", "audited", "eager", "torch", "bare"]
    parser.add_argument("--ways", nargs="+", choices=ways, default=ways)
    arguments = parser.parse_args()
    if "first" in arguments.ways and not first:
        parser.error("'first' gives real-time priorities: run it as root, or with CAP_SYS_NICE")
    for stages in arguments.stages:
        microbatches = 2 * stages
        best = ideal(stages, microbatches)
        found: dict[str, list[float]] = {way: [] for way in arguments.ways}
        for number in range(arguments.rounds):
            for way in arguments.ways:
                if way == "torch":
                    seconds = torch_step(stages, microbatches, arguments.steps)
                elif way == "bare":
                    seconds = bare_step(stages, microbatches, arguments.steps)
                elif way == "first":
                    seconds = culm_step(stages, microbatches, "off", arguments.steps, priorities=True)
                elif way == "audited":
                    audit = ["resilience.audit=0.05"]
                    seconds = culm_step(stages, microbatches, "lazy", arguments.steps, changes=audit)
                elif way == "apart":
                    seconds = culm_step(stages, microbatches, "off", arguments.steps, apart=True)
                else:
                    seconds = culm_step(stages, microbatches, way, arguments.steps)
                found[way].append(seconds)
            told = ", ".join(f"{way} {times[-1] * 1e3:.1f} ms" for way, times in found.items())
            print(f"P={stages} M={microbatches} round {number}: ideal {best * 1e3:.0f} ms, {told}", flush=True)
        for way, times in found.items():
            middle = statistics.median(times)
            spread = f"{min(times) * 1e3:.1f} to {max(times) * 1e3:.1f}"
            print(f"P={stages} {way}: {middle * 1e3:.1f} ms ({spread}), {middle / best:.3f} of the ideal", flush=True)


if __name__ == "__main__":
    main()
