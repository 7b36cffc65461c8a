"""Tensors from process to process: Culm's own sender and receiver against gloo's send and recv.

``python -m benchmarks.transport`` runs them in turn, round by round, and prints throughput and CPU seconds per GB of
both sides together. Each measure is of a stream of tensors of one size, as stages exchange them: between nodes of one
machine, which share memory, and as between two machines, where every byte goes over the stream.
"""

import argparse
import json
import os
import statistics
import sys

from benchmarks.awake import awake_cores
from benchmarks.programs import told_by

WAYS = ("culm", "stream", "gloo")
SIZES = (1, 4, 16, 64)  # MiB
TOTAL = 768  # MiB a measure
# As nodes have it.
ALLOCATOR = {"MALLOC_TRIM_THRESHOLD_": str(1 << 30), "MALLOC_MMAP_THRESHOLD_": str(1 << 25), "MALLOC_ARENA_MAX": "2"}


def measure(way: str, mib: int) -> tuple[float, float]:
    """GB/s, and CPU seconds per GB of both sides."""
    words = [sys.executable, "-m", "benchmarks.transport_peers", way, str(mib), str(TOTAL // mib)]
    environment = {**os.environ, **ALLOCATOR, "OMP_NUM_THREADS": "1"}
    told = json.loads(told_by(words, environment))
    gb = TOTAL * (1 << 20) / 1e9
    return gb / told["seconds"], told["cpu"] / gb


@awake_cores()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, metavar="MIB")
    arguments = parser.parse_args()
    for mib in arguments.sizes:
        rounds: list[dict[str, tuple[float, float]]] = []
        for number in range(arguments.rounds):
            rounds.append({way: measure(way, mib) for way in WAYS})
            told = (f"{way} {speed:.2f} GB/s {used:.2f} CPU s/GB" for way, (speed, used) in rounds[-1].items())
            print(f"{mib} MiB round {number}: {', '.join(told)}", flush=True)
        for way in WAYS[:-1]:
            speeds, costs = ([one[way][i] / one["gloo"][i] for one in rounds] for i in (0, 1))
            print(
                f"{mib} MiB: {way}: {statistics.median(speeds):.2f} of gloo's speed ({min(speeds):.2f} to "
                f"{max(speeds):.2f}), {statistics.median(costs):.2f} of its CPU ({min(costs):.2f} to {max(costs):.2f})",
                flush=True,
            )


if __name__ == "__main__":
    main()
