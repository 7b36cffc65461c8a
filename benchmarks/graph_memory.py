"""The most memory that a graph server takes, with the whole graph in memory and from a folder of chunks.

``python -m benchmarks.graph_memory`` draws an R-MAT, cuts it with ``culm chunks``, and runs a few epochs of a GCN on so
many servers each way. "own" is anonymous memory, which is the process's alone; "resident" has also what is mapped of
files: code, and chunks, which the system may drop and read again. The weights of all runs have to be the same.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import tomli_w

from benchmarks.peak_memory import Watch
from benchmarks.processes import Memory
from culm.commands.chunks import READER
from culm.local.cluster import LocalCluster
from culm.local.training import train
from culm.pipeline.job import Job, load_job
from culm.protos import coordinator_pb2 as pb

ROOT = Path(__file__).parents[1]
PATIENCE = 120.0  # each server makes the graph at once, on few cores
FEATURES, CLASSES = 32, 8


def job_file(path: Path, args: dict[str, Any], chunks: int, data: str, steps: int) -> Path:
    sizes = [FEATURES, FEATURES, CLASSES]
    asked = {
        "job": {"name": "graph-memory", "steps": steps},
        "graph": {"data": data, "args": args, "layers": 2, "chunks": chunks, "partitioner": "hash"},
        "model": {"layers": "culm.graphs:gcn", "args": {"sizes": sizes}},
        "train": {
            "loss": "culm.graphs:cross_entropy",
            "optimizer": "torch.optim:SGD",
            "optimizer_args": {"lr": 0.1},
        },
    }
    path.write_text(tomli_w.dumps(asked))
    return path


def cut(job: Path, folder: Path) -> int:
    """Runs ``culm chunks``. The most memory that it had, as the kernel counts it."""
    process = subprocess.Popen([sys.executable, "-m", "culm", "chunks", str(job), str(folder)], cwd=ROOT)
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit("culm chunks has failed")
    return used.ru_maxrss * 1024


def peaks(asked: Job, servers: int) -> tuple[list[Memory], str]:
    """Of each server, and the sha256 of the weights."""
    with tempfile.TemporaryDirectory() as name:

        def note(status: pb.GetStatusResponse, events: list[pb.ListEventsResponse], outcome: object) -> None:
            if status.phase == "done":
                watch.end()

        with LocalCluster(asked, ROOT, servers, folder=Path(name) / "run", patience=PATIENCE) as cluster:
            watch = Watch([cluster.pids()[name] for name in cluster.names])
            try:
                outcome = train(cluster, note)
            finally:
                watch.end()
    return sorted(watch.most.values()), outcome.sha256


def megabytes(count: int) -> str:
    return f"{count / 1e6:.0f} MB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=int, default=19, help="2^scale vertices")
    parser.add_argument("--degree", type=int, default=20, help="edges a vertex")
    parser.add_argument("--chunks", type=int, default=16)
    parser.add_argument("--servers", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--steps", type=int, default=3)
    given = parser.parse_args()
    args = {"scale": given.scale, "degree": given.degree, "features": FEATURES, "classes": CLASSES}
    small = {**args, "scale": 10}
    found = set()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:  # on a disk: what is in /tmp may be memory
        folder, rmat = Path(name), "culm.graphs.datasets:rmat"
        whole = job_file(folder / "whole.toml", args, given.chunks, rmat, given.steps)
        cutting = cut(whole, folder / "chunks")
        print(f"culm chunks: at most {megabytes(cutting)} resident", flush=True)
        files = job_file(folder / "files.toml", {"path": str(folder / "chunks")}, given.chunks, READER, given.steps)
        nothing = job_file(folder / "nothing.toml", small, given.chunks, rmat, given.steps)
        for servers in given.servers:
            for way, path in (("a graph of 1024 vertices", nothing), ("in memory", whole), ("a folder", files)):
                most, sha256 = peaks(load_job(path), servers)
                own, resident = (max(getattr(each, kind) for each in most) for kind in ("anonymous", "peak"))
                load = os.getloadavg()[0]
                print(
                    f"{servers} servers, {way}: at most {megabytes(own)} own, {megabytes(resident)} resident "
                    f"(load {load:.1f})",
                    flush=True,
                )
                found |= {sha256} if path != nothing else set()
    print(f"the same weights: {len(found) == 1}")


if __name__ == "__main__":
    main()
