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


OVERSHOOT = 0.001  # seconds before its end that a sleep is over: with half of it one layer in ten ended 0.5 ms late
BETWEEN = 0.0005  # the most between two halves of one backward that are one piece of work
YIELD = 0.0001  # the same of a sleep of no time


def take_until(end: float) -> None:
    """Until then and no longer: an accelerator does not oversleep. The interpreter is free meanwhile."""
    while (left := end - time.perf_counter()) > 0:
        if left > YIELD:
            time.sleep(max(0.0, left - OVERSHOOT))


class Device:
    """An accelerator's clock: work takes a set time from when it is asked for, what the module itself does included."""

    def __init__(self) -> None:
        self._free_at = 0.0

    def begin(self) -> None:
        """What follows is timed from now on."""
        self._free_at = time.perf_counter()

    def take(self, seconds: float) -> None:
        """Ends so long after what was before; a second half that comes later, so long after now."""
        now = time.perf_counter()
        self._free_at = (self._free_at if now - self._free_at < BETWEEN else now) + seconds
        take_until(self._free_at)


class Pace(torch.autograd.Function):
    """The identity, but slow."""

    @staticmethod
    def forward(
        context: Any, x: torch.Tensor, device: Device, forward: float, backward: float, last: bool
    ) -> torch.Tensor:
        context.device, context.seconds, context.last = device, backward, last
        device.take(forward)
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None, None]:
        if context.last:
            context.device.begin()
        context.device.take(context.seconds)
        return gradients[0], None, None, None, None


class Paced(nn.Module):
    """One stage's work: a small linear layer, and the time that it takes, in seconds.

    Half of the backward's is spent on the gradient of the input and half on that of the weights, so that a schedule
    that splits backwards has two halves.
    """

    def __init__(self, forward: float, backward: float) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.seconds = (forward, backward / 2)
        self.device = Device()

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # x: [B, WIDTH] -> [B, WIDTH]
        forward, half = self.seconds
        self.device.begin()
        weight = Pace.apply(self.linear.weight, self.device, 0.0, half, False)  # type: ignore[no-untyped-call]
        # Slow after the linear layer, so that also the first stage's backward has something to wait for.
        out = functional.linear(x, weight, self.linear.bias)
        slow: torch.Tensor = Pace.apply(out, self.device, forward, half, True)  # type: ignore[no-untyped-call]
        return slow


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
