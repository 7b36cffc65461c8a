"""What one and the same microbatch of torch takes at once and after a pause: ``python -m benchmarks.cold``.

Nothing else runs meanwhile. A loop that keeps the core and touches no memory should leave its caches as they were: what
the microbatch takes longer after it was done by others, most likely guests of the same host on the core's other thread,
who take none of the time that counts as stolen. Every instruction of the paced steps begins after such a pause, in any
runtime.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from benchmarks.awake import awake_cores
from benchmarks.paced import WIDTH, Paced

PAUSE = 0.01  # seconds
TIMES = 30  # in a round


def _loop() -> None:
    end = time.perf_counter() + PAUSE
    while time.perf_counter() < end:
        pass


PAUSES: dict[str, Callable[[], None]] = {
    "at once": lambda: None,
    "after a loop": _loop,
    "after a sleep": lambda: time.sleep(PAUSE),
}


def milliseconds(pause: Callable[[], None]) -> float:
    """The median of a forward and a backward of a layer that takes no time off the CPU."""
    layer, x = Paced(0.0, 0.0), torch.randn(1, WIDTH)
    found = []
    for _ in range(TIMES):
        pause()
        began = time.perf_counter()
        out = layer(x.detach().requires_grad_())
        torch.autograd.backward(out, torch.ones_like(out))
        found.append(1e3 * (time.perf_counter() - began))
    return statistics.median(found)


@awake_cores()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, list[float]] = {name: [] for name in PAUSES}
    for _ in range(arguments.rounds):
        for name, pause in PAUSES.items():
            found[name].append(milliseconds(pause))
    for name, values in found.items():
        spread = f"{min(values):.2f} to {max(values):.2f}"
        print(f"{name}: median {statistics.median(values):.2f} ms ({spread})", flush=True)


if __name__ == "__main__":
    main()
