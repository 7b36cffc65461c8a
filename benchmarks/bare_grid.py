"""Replicas of a paced 1F1B pipeline with nothing but processes and pipes, whose gradients one of them adds up.

``python -m benchmarks.bare_grid REPLICAS STAGES MICROBATCHES STEPS WARM`` prints the median seconds of a step. It
passes and adds the same bytes as the runtime does with a pipeline on each replica.
"""

import os
import sys
from collections.abc import Callable

import torch
from torch import multiprocessing

from benchmarks.bare_pipeline import Pipe, work
from benchmarks.paced import WIDTH

GRADIENT = (WIDTH * WIDTH + WIDTH) * 4  # bytes of a layer's
SAMPLES = 512  # between the first of one replica and the first of the next


def exchange(replica: int, to_first: list[Pipe], to_others: list[Pipe]) -> Callable[[list[torch.Tensor]], None]:
    """Replica 0 adds up what the others have, in their order, and sends it to each."""

    def read(pipe: Pipe) -> torch.Tensor:
        found = bytearray()
        while len(found) < GRADIENT:
            found += os.read(pipe.reading, GRADIENT - len(found))
        return torch.frombuffer(found, dtype=torch.float32)

    def add_up(gradients: list[torch.Tensor]) -> None:
        mine = torch.cat([g.reshape(-1) for g in gradients])
        if replica == 0:
            for pipe in to_first[1:]:
                mine = mine + read(pipe)
            for pipe in to_others[1:]:
                os.write(pipe.writing, mine.numpy().tobytes())
        else:
            os.write(to_first[replica].writing, mine.numpy().tobytes())
            mine = read(to_others[replica])
        first = 0
        for gradient in gradients:
            gradient.copy_(mine[first : first + gradient.numel()].reshape(gradient.shape))
            first += gradient.numel()

    return add_up


def node(
    index: int, chains: list[tuple[list[Pipe], list[Pipe]]], sums: list[tuple[list[Pipe], list[Pipe]]], shape: list[int]
) -> None:
    stages, microbatches, steps, warm = shape
    replica, stage = divmod(index, stages)
    forwards, backwards = chains[replica]
    add_up = exchange(replica, *sums[stage])
    work(stage, forwards, backwards, microbatches, steps, warm, False, replica * SAMPLES, add_up)


def main() -> None:
    replicas, stages, *others = map(int, sys.argv[1:6])

    def pipes(count: int) -> list[Pipe]:
        return [Pipe.opened() for _ in range(count)]

    chains = [(pipes(stages - 1), pipes(stages - 1)) for _ in range(replicas)]
    sums = [(pipes(replicas), pipes(replicas)) for _ in range(stages)]
    multiprocessing.start_processes(  # type: ignore[attr-defined, no-untyped-call]
        node, (chains, sums, [stages, *others]), nprocs=replicas * stages, start_method="fork"
    )


if __name__ == "__main__":
    main()
