"""Tensors from process to process: Culm's own sender and receiver against gloo's send and recv.

``python -m benchmarks.transport`` runs both in turn, round by round, and prints throughput and CPU seconds per GB of
both sides together. Each measure is of a stream of tensors of one size, as stages exchange them.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SIZES = (1, 4, 16, 64)  # MiB
TOTAL = 768  # MiB a measure
ALLOCATOR = {"MALLOC_TRIM_THRESHOLD_": str(1 << 30), "MALLOC_MMAP_THRESHOLD_": str(1 << 25)}  # as nodes have it


def measure(way: str, mib: int) -> tuple[float, float]:
    """GB/s, and CPU seconds per GB of both sides."""
    words = [sys.executable, "-m", "benchmarks.transport_peers", way, str(mib), str(TOTAL // mib)]
    environment = {**os.environ, **ALLOCATOR, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, cwd=ROOT, env=environment, check=True, capture_output=True, text=True)
    told = json.loads(done.stdout.strip().split("\n")[-1])
    gb = TOTAL * (1 << 20) / 1e9
    return gb / told["seconds"], told["cpu"] / gb


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, metavar="MIB")
    arguments = parser.parse_args()
    for mib in arguments.sizes:
        speeds, costs = [], []
        for number in range(arguments.rounds):
            (ours, own_cpu), (gloo, gloo_cpu) = measure("culm", mib), measure("gloo", mib)
            speeds.append(ours / gloo)
            costs.append(own_cpu / gloo_cpu)
            print(
                f"{mib} MiB round {number}: culm {ours:.2f} GB/s {own_cpu:.2f} CPU s/GB, "
                f"gloo {gloo:.2f} GB/s {gloo_cpu:.2f} CPU s/GB",
                flush=True,
            )
        print(
            f"{mib} MiB: {statistics.median(speeds):.2f} of gloo's speed ({min(speeds):.2f} to {max(speeds):.2f}), "
            f"{statistics.median(costs):.2f} of its CPU ({min(costs):.2f} to {max(costs):.2f})",
            flush=True,
        )


if __name__ == "__main__":
    main()
