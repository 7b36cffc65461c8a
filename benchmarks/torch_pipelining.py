"""torch.distributed.pipelining's 1F1B on gloo over paced layers: a peer, run as its users would.

``python -m benchmarks.torch_pipelining STAGES MICROBATCHES STEPS WARM`` prints the median seconds from the end of a
step to the end of the next, as ours are measured.
"""

import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch import multiprocessing
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from benchmarks.paced import BACKWARD, FORWARD, Numbers, Paced, dataset
from culm.local.ports import free_port


def batch(data: Numbers, first: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of so many samples, each [count, WIDTH]."""
    samples = [data[first + i] for i in range(count)]
    x, target = (torch.stack(part) for part in zip(*samples, strict=True))
    return x, target


def feed(schedule: Schedule1F1B, rank: int, stages: int, x: torch.Tensor, target: torch.Tensor) -> None:
    """Runs a step: the first rank takes the inputs, the last one the targets."""
    if rank == 0:
        schedule.step(x)
    elif rank == stages - 1:
        schedule.step(target=target)
    else:
        schedule.step()


def work(rank: int, stages: int, microbatches: int, steps: int, warm: int, port: int) -> None:
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=stages)
    module = Paced(FORWARD, BACKWARD)
    stage = PipelineStage(module, rank, stages, torch.device("cpu"))
    schedule = Schedule1F1B(stage, microbatches, loss_fn=torch.nn.functional.mse_loss)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    data = dataset()
    ends = []
    for step in range(steps):
        x, target = batch(data, step * microbatches, microbatches)
        optimizer.zero_grad()
        feed(schedule, rank, stages, x, target)
        optimizer.step()
        ends.append(time.perf_counter())
    if rank == 0:
        print(statistics.median(b - a for a, b in zip(ends[warm:], ends[warm + 1 :], strict=False)), flush=True)
    dist.destroy_process_group()


def main() -> None:
    stages, microbatches, steps, warm = map(int, sys.argv[1:])
    multiprocessing.start_processes(  # type: ignore[attr-defined, no-untyped-call]
        work, (stages, microbatches, steps, warm, free_port()), nprocs=stages, start_method="spawn"
    )


if __name__ == "__main__":
    main()
