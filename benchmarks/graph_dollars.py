"""What a dollar buys on two graphs, measured: a graph server alone, and the same with a tensor worker beside it.

``python -m benchmarks.graph_dollars`` runs the ways in turn, round by round. Each process has a processor of its own.
Prices are the shipped table's: a server costs what a processor of AWS's c5.xlarge costs on demand, a worker what a
function of AWS Lambda with one processor costs for all of its time. A worker is the only one here: with several, a
machine of more processors tells what the next one brings.
"""

import argparse
import os
import statistics
import tempfile
from itertools import pairwise
from pathlib import Path

from culm.local.cluster import WORKER_MEMORY, LocalCluster
from culm.local.training import train
from culm.pipeline.job import Job, job_of
from culm.pipeline.machine import Machine
from culm.pipeline.money.prices import load_prices
from culm.protos import coordinator_pb2 as pb

ROOT = Path(__file__).parents[1]
GRAPHS = {
    "blocks": ("culm.graphs.datasets:blocks", {"vertices": 20_000, "features": 128}, [128, 256, 4]),
    "calls": ("culm.graphs.stdlib:calls", {"packages": 16, "features": 128}, [128, 256, 16]),
}
WAYS = {"server alone": (0, 0), "server alone, S = 1": (0, 1), "with a worker, S = 1": (1, 1)}  # workers, staleness


def job(graph: str, workers: int, staleness: int, steps: int) -> Job:
    data, args, sizes = GRAPHS[graph]
    return job_of(
        {
            "job": {"name": graph, "steps": steps},
            "graph": {
                "data": data,
                "args": args,
                "layers": 2,
                "chunks": 8,
                "partitioner": "hash",
                "servers": 1,
                "workers": workers,
                "staleness": staleness,
                "refresh": 1000,
            },
            "model": {"layers": "culm.graphs:gcn", "args": {"sizes": sizes}},
            "train": {
                "loss": "culm.graphs:cross_entropy",
                "optimizer": "torch.optim:AdamW",
                "optimizer_args": {"lr": 0.01},
            },
        },
        "the benchmark's job",
    )


def epoch(asked: Job, warm: int) -> float:
    """Median seconds from commit to commit, once the worker is there."""
    commits: list[float] = []
    processors = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as name:

        def note(status: pb.GetStatusResponse, events: list[pb.ListEventsResponse], outcome: object) -> None:
            commits.extend(event.time for event in events if event.kind == "commit")
            for process, pid in cluster.pids().items():
                _pin(pid, processors[0] if process == "n0" else processors[-1])

        with LocalCluster(asked, ROOT, 1, folder=Path(name) / "run", patience=20.0) as cluster:
            train(cluster, note)
    return statistics.median(b - a for a, b in pairwise(commits[warm:]))


def _pin(pid: int, processor: int) -> None:
    """All threads of a process."""
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            os.sched_setaffinity(int(thread), {processor})
    except OSError:  # it has just ended
        pass


def per_hour(workers: int) -> float:
    """Dollars of a server and so many workers."""
    prices = load_prices()
    machine = prices.machine(Machine("aws", "c5.xlarge", "us-east-1", "", "on-demand"))
    function = prices.function("aws")
    assert machine is not None
    assert machine.on_demand is not None
    assert function is not None
    processors = 4
    gigabytes = int(WORKER_MEMORY) / (1 << 30)
    return machine.on_demand / processors + workers * gigabytes * function.per_gb_second * 3600.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--warm", type=int, default=60, help="epochs that do not count: the worker comes meanwhile")
    arguments = parser.parse_args()
    for graph in GRAPHS:
        times: dict[str, list[float]] = {way: [] for way in WAYS}
        for _ in range(arguments.rounds):
            for way, (workers, staleness) in WAYS.items():
                times[way].append(epoch(job(graph, workers, staleness, arguments.steps), arguments.warm))
        base = None
        for way, (workers, _) in WAYS.items():
            median, dollars = statistics.median(times[way]), per_hour(workers)
            epochs = 3600.0 / median / dollars
            base = base or epochs
            spread = f"{min(times[way]) * 1e3:.0f} to {max(times[way]) * 1e3:.0f}"
            print(
                f"{graph:8} {way:22} {median * 1e3:6.0f} ms an epoch ({spread}), {dollars:.4f} $ an hour, "
                f"{epochs:,.0f} epochs for a dollar, {epochs / base:.2f} of the server alone",
                flush=True,
            )


if __name__ == "__main__":
    main()
