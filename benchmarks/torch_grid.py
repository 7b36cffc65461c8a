"""torch.distributed.pipelining's 1F1B beside data parallelism, on gloo over paced layers: a peer, as its users run it.

``python -m benchmarks.torch_grid REPLICAS STAGES MICROBATCHES STEPS WARM`` prints the median seconds from the end of a
step to the end of the next. Each stage's gradients are averaged by one all-reduce over its replicas.
"""

import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch import multiprocessing
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from benchmarks.paced import BACKWARD, FORWARD, Paced, dataset
from benchmarks.torch_pipelining import batch, feed
from culm.local.ports import free_port


def work(rank: int, replicas: int, stages: int, microbatches: int, steps: int, warm: int, port: int) -> None:
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank)}
    os.environ["WORLD_SIZE"] = str(replicas * stages)
    dist.init_process_group("gloo", rank=rank, world_size=replicas * stages)
    mesh = init_device_mesh("cpu", (replicas, stages), mesh_dim_names=("replica", "stage"))
    replica, index = divmod(rank, stages)
    module = Paced(FORWARD, BACKWARD)
    stage = PipelineStage(module, index, stages, torch.device("cpu"), group=mesh.get_group("stage"))
    schedule = Schedule1F1B(stage, microbatches, loss_fn=torch.nn.functional.mse_loss)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    data = dataset()
    ends = []
    for step in range(steps):
        x, target = batch(data, (replica * steps + step) * microbatches, microbatches)
        optimizer.zero_grad()
        feed(schedule, index, stages, x, target)
        flat = torch.cat([p.grad.reshape(-1) for p in module.parameters() if p.grad is not None])
        dist.all_reduce(flat, group=mesh.get_group("replica"))
        first = 0
        for parameter in module.parameters():
            assert parameter.grad is not None
            parameter.grad.copy_(flat[first : first + parameter.numel()].view_as(parameter) / replicas)
            first += parameter.numel()
        optimizer.step()
        ends.append(time.perf_counter())
    if rank == 0:
        print(statistics.median(b - a for a, b in zip(ends[warm:], ends[warm + 1 :], strict=False)), flush=True)
    dist.destroy_process_group()


def main() -> None:
    replicas, stages, microbatches, steps, warm = map(int, sys.argv[1:])
    multiprocessing.start_processes(  # type: ignore[attr-defined, no-untyped-call]
        work, (replicas, stages, microbatches, steps, warm, free_port()), nprocs=replicas * stages, start_method="spawn"
    )


if __name__ == "__main__":
    main()
