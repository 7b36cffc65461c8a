"""Epochs on a graph whose tensor work is paced off the CPU: what staleness and chunks hide of the workers' time.

``python -m benchmarks.graph_paced`` runs the ways in turn, round by round. Each call of a layer's function takes a
worker SECONDS, forward and backward alike, and no processor: as a worker far away that computes on its own. Printed is
the median time from commit to commit, beside what the workers need at the least: tasks / workers * SECONDS.
"""

import argparse
import statistics
import tempfile
import time
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from culm.graphs.layers import GCN
from culm.local.cluster import LocalCluster
from culm.local.training import train
from culm.pipeline.job import Job, job_of
from culm.protos import coordinator_pb2 as pb

SECONDS = 0.02
ROOT = Path(__file__).parents[1]
LAYERS = 2


class _Slow(torch.autograd.Function):
    """The identity, but slow in both directions."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, seconds: float) -> torch.Tensor:
        context.seconds = seconds
        time.sleep(seconds)
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        # The forward that a backward runs again has taken its time already.
        return gradients[0], None


class Paced(GCN):
    """A worker takes so long for it, whatever it computes."""

    seconds = SECONDS

    def apply_vertex(self, *values: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = _Slow.apply(super().apply_vertex(*values), self.seconds)  # type: ignore[no-untyped-call]
        return found


def layers(sizes: list[int]) -> list[Any]:
    return [partial(Paced, a, b, i == len(sizes) - 2) for i, (a, b) in enumerate(pairwise(sizes))]


def job(chunks: int, workers: int, staleness: int, steps: int, vertices: int) -> Job:
    return job_of(
        {
            "job": {"name": "paced", "steps": steps},
            "graph": {
                "data": "culm.graphs.datasets:blocks",
                "args": {"vertices": vertices, "features": 16},
                "layers": LAYERS,
                "chunks": chunks,
                "partitioner": "hash",
                "servers": 1,
                "workers": workers,
                "staleness": staleness,
                "refresh": 1000,
            },
            "model": {"layers": "benchmarks.graph_paced:layers", "args": {"sizes": [16, 16, 4]}},
            "train": {
                "loss": "culm.graphs:cross_entropy",
                "optimizer": "torch.optim:SGD",
                "optimizer_args": {"lr": 0.01},
            },
        },
        "the benchmark's job",
    )


def epoch(asked: Job, warm: int) -> float:
    """Median seconds from commit to commit, once all workers are there."""
    commits: list[float] = []
    with tempfile.TemporaryDirectory() as name:

        def note(status: pb.GetStatusResponse, events: list[pb.ListEventsResponse], outcome: object) -> None:
            commits.extend(event.time for event in events if event.kind == "commit")

        servers = asked.graph.servers if asked.graph is not None else 1
        with LocalCluster(asked, ROOT, servers, folder=Path(name) / "run", patience=20.0) as cluster:
            train(cluster, note)
    times = [b - a for a, b in zip(commits[warm:], commits[warm + 1 :], strict=False)]
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=160)
    parser.add_argument("--warm", type=int, default=100, help="epochs that do not count: workers come meanwhile")
    parser.add_argument("--chunks", type=int, default=8)
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--vertices", type=int, default=2000)
    parser.add_argument("--staleness", type=int, nargs="+", default=[0, 1])
    arguments = parser.parse_args()
    tasks = 2 * LAYERS * arguments.chunks
    least = tasks / arguments.workers * SECONDS
    print(f"{tasks} tasks of {SECONDS * 1e3:.0f} ms on {arguments.workers} workers: {least * 1e3:.0f} ms at the least")
    found: dict[int, list[float]] = {each: [] for each in arguments.staleness}
    for number in range(arguments.rounds):
        for each, times in found.items():
            asked = job(arguments.chunks, arguments.workers, each, arguments.steps, arguments.vertices)
            times.append(epoch(asked, arguments.warm))
        told = ", ".join(f"staleness {each} {times[-1] * 1e3:.1f} ms" for each, times in found.items())
        print(f"round {number}: {told}", flush=True)
    for each, times in found.items():
        middle = statistics.median(times)
        spread = f"{min(times) * 1e3:.1f} to {max(times) * 1e3:.1f}"
        print(f"staleness {each}: {middle * 1e3:.1f} ms ({spread}), {middle / least:.3f} of the workers' time")


if __name__ == "__main__":
    main()
