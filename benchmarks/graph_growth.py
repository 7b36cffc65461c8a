"""How an epoch's time and a graph server's memory grow with the edges: a GCN on R-MATs, by one server of one thread.

``python -m benchmarks.graph_growth`` runs a few epochs of each size, and prints seconds and bytes for each edge.
``--scales 22`` has 9 x 10^7 edges.
"""

import argparse
import os
import statistics
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from benchmarks.graph_memory import CLASSES, FEATURES, PATIENCE, ROOT, job_file
from benchmarks.peak_memory import Watch
from culm.local.cluster import LocalCluster
from culm.local.training import train
from culm.pipeline.job import load_job
from culm.protos import coordinator_pb2 as pb


class Grown(NamedTuple):
    start: float  # seconds until the first epoch: the server makes the graph
    epoch: float  # seconds, median; the first one counts not, which makes chunks
    memory: int  # bytes that the server had at most


def run(scale: int, degree: int, chunks: int, steps: int) -> Grown:
    commits: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        args = {"scale": scale, "degree": degree, "features": FEATURES, "classes": CLASSES}
        path = job_file(Path(name) / "job.toml", args, chunks, "culm.graphs.datasets:rmat", steps)

        def note(status: pb.GetStatusResponse, events: list[pb.ListEventsResponse], outcome: object) -> None:
            commits.extend(event.time for event in events if event.kind == "commit")
            if status.phase == "done":
                watch.end()

        began = time.time()
        with LocalCluster(load_job(path), ROOT, 1, folder=Path(name) / "run", patience=PATIENCE) as cluster:
            watch = Watch([cluster.pids()[each] for each in cluster.names])
            try:
                train(cluster, note)
            finally:
                watch.end()
    (most,) = watch.most.values()
    return Grown(commits[0] - began, statistics.median(b - a for a, b in pairwise(commits)), most.peak)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scales", type=int, nargs="+", default=[12, 14, 16, 18, 19], help="2^scale vertices")
    parser.add_argument("--degree", type=int, default=20, help="edges a vertex, and a loop beside them")
    parser.add_argument("--chunks", type=int, default=8)
    parser.add_argument("--steps", type=int, default=6)
    given = parser.parse_args()
    for scale in given.scales:
        found = run(scale, given.degree, given.chunks, given.steps)
        edges = (1 << scale) * (given.degree + 1)
        print(
            f"{edges:12,} edges: {found.start:6.1f} s to the first commit, {found.epoch:7.3f} s an epoch "
            f"({found.epoch / edges * 1e9:.0f} ns an edge), at most {found.memory / 1e9:.2f} GB of memory "
            f"(load {os.getloadavg()[0]:.1f})",
            flush=True,
        )


if __name__ == "__main__":
    main()
