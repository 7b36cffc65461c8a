"""1F1B over paced layers with nothing but processes and pipes: what a step takes on this machine without any runtime.

``python -m benchmarks.bare_pipeline STAGES MICROBATCHES STEPS WARM [later-first]`` prints the median seconds of a step;
the last word gives later stages priority (``benchmarks.priorities``). No process can be lost, no message is checked and
nobody agrees on anything: the least that Python and autograd can do.
"""

import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
from torch import multiprocessing
from torch.nn import functional

from benchmarks.paced import BACKWARD, FORWARD, WIDTH, Paced, dataset
from benchmarks.priorities import later_first
from culm.pipeline.instruction import Duty
from culm.pipeline.schedule import one_f_one_b

BYTES = WIDTH * 4  # of a tensor
PIPELINE = 0  # of the job here, which has one
LEAD = 2  # microbatches that a stage is ahead of the next one, as in the runtime


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


class Samples:
    """Loaded while a stage waits, as the runtime does it; ``microbatches`` a step."""

    def __init__(self, microbatches: int, first: int = 0) -> None:
        self._microbatches = microbatches
        self._first = first
        self._data = dataset()
        self._loaded: dict[tuple[int, int], list[torch.Tensor]] = {}

    def load(self, step: int) -> None:
        for m in range(self._microbatches):
            self._loaded[step, m] = [part[None] for part in self._data[self._first + step * self._microbatches + m]]

    def take(self, step: int, microbatch: int) -> list[torch.Tensor]:
        """Input and target."""
        return self._loaded.pop((step, microbatch))


def work(
    stage: int,
    forwards: list[Pipe],
    backwards: list[Pipe],
    microbatches: int,
    steps: int,
    warm: int,
    priorities: bool,
    first_sample: int = 0,
    add_up: Callable[[list[torch.Tensor]], None] | None = None,
) -> None:
    """One stage's training. ``forwards[i]`` and ``backwards[i]`` join stages i and i + 1.

    ``add_up``: makes a step's gradients those of all replicas, in place.
    """
    torch.set_num_threads(1)
    if priorities:
        later_first(os.getpid(), stage)
    last = len(forwards)
    module = Paced(FORWARD, BACKWARD)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    program = one_f_one_b(Duty(PIPELINE, stage), last + 1, microbatches, LEAD)
    samples = Samples(microbatches if stage in (0, last) else 0, first_sample)
    ends = []
    for step in range(steps):
        if stage == last or step == 0:  # it has nothing else to do until the first forward comes
            samples.load(step)
        graphs: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        for instruction in program:
            m = instruction.microbatch
            if instruction.op == "F":
                x = forwards[stage - 1].get().requires_grad_() if stage else samples.take(step, m)[0]
                out = module(x)
                if stage == last:
                    out = functional.mse_loss(out, samples.take(step, m)[1])
                    out.item()
                else:
                    forwards[stage].put(out.detach())
                graphs[m] = x, out
            else:
                if stage == m == 0:  # the gradient is far away
                    samples.load(step + 1)
                x, out = graphs.pop(m)
                torch.autograd.backward(out, None if stage == last else backwards[stage].get())
                if x.grad is not None:
                    backwards[stage - 1].put(x.grad)
        if add_up is not None:
            add_up([p.grad for p in module.parameters() if p.grad is not None])
        optimizer.step()
        optimizer.zero_grad()
        ends.append(time.perf_counter())
    if stage == 0 and first_sample == 0:
        print(statistics.median(b - a for a, b in zip(ends[warm:], ends[warm + 1 :], strict=False)), flush=True)


def main() -> None:
    stages, microbatches, steps, warm = map(int, sys.argv[1:5])
    priorities = sys.argv[5:] == ["later-first"]
    forwards, backwards = ([Pipe.opened() for _ in range(stages - 1)] for _ in range(2))
    multiprocessing.start_processes(  # type: ignore[attr-defined, no-untyped-call]
        work, (forwards, backwards, microbatches, steps, warm, priorities), nprocs=stages, start_method="fork"
    )


if __name__ == "__main__":
    main()
