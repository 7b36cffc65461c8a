"""torch's DistributedDataParallel on gloo over large paced layers: a peer, as its users run it.

``python -m benchmarks.torch_parallel REPLICAS MICROBATCHES SECONDS STEPS WARM [alone]`` prints as JSON the median
seconds from the end of a step to the end of the next, and the CPU seconds of a step on all replicas. Each step
accumulates its microbatches' gradients (``no_sync``) and reduces them in the last one's backward, which hides what it
can of that. With ``alone`` nothing is reduced: what the model, the samples and the optimizer take.
"""

import json
import os
import resource
import statistics
import sys
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.large_layers import layers
from benchmarks.paced import dataset
from culm.local.ports import free_port


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def work(
    rank: int, replicas: int, microbatches: int, seconds: float, steps: int, warm: int, alone: bool, port: int
) -> None:
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=replicas)
    plain = nn.Sequential(*(build() for build in layers(seconds)))
    parallel = None if alone else DistributedDataParallel(plain)
    module = parallel or plain
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    data = dataset()
    ends, used = [], []
    for step in range(steps):
        optimizer.zero_grad()
        for m in range(microbatches):
            x, target = (part[None] for part in data[((step * replicas + rank) * microbatches + m) % len(data)])
            with parallel.no_sync() if parallel is not None and m < microbatches - 1 else nullcontext():
                loss = nn.functional.mse_loss(module(x), target)
                torch.autograd.backward(loss / microbatches)
            loss.item()
        optimizer.step()
        ends.append(time.perf_counter())
        used.append(cpu())
    taken = torch.tensor([(used[-1] - used[warm]) / (steps - 1 - warm)], dtype=torch.float64)
    dist.all_reduce(taken)
    if rank == 0:
        middle = statistics.median(b - a for a, b in zip(ends[warm:], ends[warm + 1 :], strict=False))
        print(json.dumps({"seconds": middle, "cpu": taken.item()}), flush=True)
    dist.destroy_process_group()


def main() -> None:
    replicas, microbatches = map(int, sys.argv[1:3])
    seconds = float(sys.argv[3])
    steps, warm = map(int, sys.argv[4:6])
    alone = sys.argv[6:] == ["alone"]
    multiprocessing.start_processes(  # type: ignore[attr-defined, no-untyped-call]
        work, (replicas, microbatches, seconds, steps, warm, alone, free_port()), nprocs=replicas, start_method="spawn"
    )


if __name__ == "__main__":
    main()
