"""Layers that take a set time off the CPU: they stand for accelerators that do not share this machine's cores."""

import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

WIDTH = 64
FORWARD, BACKWARD = 0.01, 0.02  # seconds that the measures give a stage for a microbatch
JOB = """
[job]
name = "paced"
steps = {steps}
[model]
layers = "benchmarks.paced:layers"
args = {{ count = {stages}, forward = {forward}, backward = {backward} }}
[data]
dataset = "benchmarks.paced:dataset"
microbatch = 1
shuffle = false
[train]
loss = "torch.nn.functional:mse_loss"
optimizer = "torch.optim:SGD"
optimizer_args = {{ lr = 0.01 }}
[pipeline]
stages = {stages}
microbatches = {microbatches}
[resilience]
redundancy = "{redundancy}"
"""


OVERSHOOT = 0.0005  # seconds that a sleep may take longer than asked for


def take(seconds: float) -> None:
    """This long and no longer: an accelerator does not oversleep. The interpreter is free meanwhile."""
    end = time.perf_counter() + seconds
    if seconds > OVERSHOOT:
        time.sleep(seconds - OVERSHOOT)
    while time.perf_counter() < end:
        time.sleep(0)


class Pace(torch.autograd.Function):
    """The identity, but slow."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, forward: float, backward: float) -> torch.Tensor:
        context.backward_seconds = backward
        take(forward)
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        take(context.backward_seconds)
        return gradients[0], None, None


class Paced(nn.Module):
    """One stage's work: a small linear layer, and the time that it takes, in seconds.

    Half of the backward's is spent on the gradient of the input and half on that of the weights, so that a schedule
    that splits backwards has two halves.
    """

    def __init__(self, forward: float, backward: float) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.seconds = (forward, backward / 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # x: [B, WIDTH] -> [B, WIDTH]
        forward, half = self.seconds
        weight = Pace.apply(self.linear.weight, 0.0, half)  # type: ignore[no-untyped-call]
        # Slow after the linear layer, so that also the first stage's backward has something to wait for.
        out: torch.Tensor = Pace.apply(functional.linear(x, weight, self.linear.bias), forward, half)  # type: ignore[no-untyped-call]
        return out


def layers(count: int, forward: float, backward: float) -> list[Any]:
    """One a stage."""
    return [partial(Paced, forward, backward) for _ in range(count)]


class Numbers(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        return torch.randn(WIDTH, generator=generator), torch.randn(WIDTH, generator=generator)


def dataset() -> Numbers:
    return Numbers()


def job_file(folder: Path, **settings: Any) -> Path:
    """A job of these layers; settings: steps, stages, microbatches, forward, backward, redundancy."""
    path = folder / "paced.toml"
    path.write_text(JOB.format(**settings))
    return path
