"""1F1B over paced layers with nothing but processes and pipes: what a step takes on this machine without any runtime.

``python -m benchmarks.bare_pipeline STAGES MICROBATCHES STEPS WARM`` prints the median seconds of a step. No process
can be lost, no message is checked and nobody agrees on anything: the least that Python and autograd can do.
"""

import os
import statistics
import sys
import time
from dataclasses import dataclass
from typing import Self

import torch
from torch import multiprocessing
from torch.nn import functional

from benchmarks.paced import BACKWARD, FORWARD, WIDTH, Paced, dataset
from pipeline.schedule import one_f_one_b

BYTES = WIDTH * 4  # of a tensor


@dataclass(frozen=True)
class Pipe:
    """One tensor of [1, WIDTH] at a time, as its bytes."""

    reading: int
    writing: int

    @classmethod
    def opened(cls) -> Self:
        return cls(*os.pipe())

    def put(self, tensor: torch.Tensor) -> None:
        os.write(self.writing, tensor.numpy().tobytes())

    def get(self) -> torch.Tensor:
        return torch.frombuffer(bytearray(os.read(self.reading, BYTES)), dtype=torch.float32).reshape(1, WIDTH)


def work(stage: int, forwards: list[Pipe], backwards: list[Pipe], microbatches: int, steps: int, warm: int) -> None:
    """One stage's training. ``forwards[i]`` and ``backwards[i]`` join stages i and i + 1."""
    torch.set_num_threads(1)
    last = len(forwards)
    module = Paced(FORWARD, BACKWARD)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    data = dataset()
    program = one_f_one_b(stage, last + 1, microbatches)
    ends = []
    for step in range(steps):
        graphs: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        for instruction in program:
            m = instruction.microbatch
            if instruction.op == "F":
                sample, target = (part[None] for part in data[step * microbatches + m])
                x = forwards[stage - 1].get().requires_grad_() if stage else sample
                out = module(x)
                if stage == last:
                    out = functional.mse_loss(out, target)
                    out.item()
                else:
                    forwards[stage].put(out.detach())
                graphs[m] = x, out
            else:
                x, out = graphs.pop(m)
                torch.autograd.backward(out, None if stage == last else backwards[stage].get())
                if x.grad is not None:
                    backwards[stage - 1].put(x.grad)
        optimizer.step()
        optimizer.zero_grad()
        ends.append(time.perf_counter())
    if stage == 0:
        print(statistics.median(b - a for a, b in zip(ends[warm:], ends[warm + 1 :], strict=False)), flush=True)


def main() -> None:
    stages, microbatches, steps, warm = map(int, sys.argv[1:])
    forwards, backwards = ([Pipe.opened() for _ in range(stages - 1)] for _ in range(2))
    multiprocessing.start_processes(  # type: ignore[attr-defined, no-untyped-call]
        work, (forwards, backwards, microbatches, steps, warm), nprocs=stages, start_method="fork"
    )


if __name__ == "__main__":
    main()
