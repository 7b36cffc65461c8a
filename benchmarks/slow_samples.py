"""What slow samples cost a step: 20 ms each, asleep, beside samples that are in memory; paced layers, P = 4, M = 8.

``python -m benchmarks.slow_samples`` runs both in turn. Two processes load ahead, on the node of the first stage.
"""

import argparse
import statistics
import time

import torch

from benchmarks.awake import awake_cores
from benchmarks.paced import Numbers
from benchmarks.pipelining import culm_step

STAGES, MICROBATCHES, STEPS = 4, 8, 24
SECONDS = 0.02  # of a sample
WORKERS = 2
MOST = 1.05  # steps over slow samples against those over samples in memory


class Slow(Numbers):
    """As from a storage far away."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        time.sleep(SECONDS)
        return super().__getitem__(index)


def slow() -> Slow:
    return Slow()


@awake_cores()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    changes = ["data.dataset=benchmarks.slow_samples:slow", f"data.workers={WORKERS}"]
    ratios = []
    for number in range(arguments.rounds):
        seconds = culm_step(STAGES, MICROBATCHES, "lazy", STEPS, changes=changes)
        in_memory = culm_step(STAGES, MICROBATCHES, "lazy", STEPS)
        ratios.append(seconds / in_memory)
        print(f"round {number}: {seconds:.4f} s, in memory {in_memory:.4f} s, {ratios[-1]:.4f}", flush=True)
    print(f"median {statistics.median(ratios):.4f}, {min(ratios):.4f} to {max(ratios):.4f} (at most {MOST})")


if __name__ == "__main__":
    main()
