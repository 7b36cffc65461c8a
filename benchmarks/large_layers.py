"""Paced layers with many parameters: a model that one node holds whole, for data parallelism.

Equal layers, by default twelve of 2**20 float32 each, 50 MB in all. Of a layer's parameters 64 x 64 weights are used as
in any linear layer; the gradient of the others is one number that was spread over all of them. So a microbatch's
gradients are as many bytes as any model's, and cost no more of the CPU than writing them down and adding them up.
"""

import os
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.paced import WIDTH
from benchmarks.processes import heap_in_use, memory, reset_peak
from culm.pipeline.tensors.wire import BUFFERS

LAYERS, PARAMETERS = 12, 1 << 20  # a multiple of 3 and of 4 layers: as many for each replica to add up
MODEL_BYTES = LAYERS * PARAMETERS * 4
LOOK_SECONDS, NOTED = 0.005, 1 << 20  # between two looks at the heap, and how many bytes more are noted
SLACK = 0.002  # seconds by which a sleep may end late and the next one end as if it had not
JOB = """
[job]
name = "large-layers"
steps = {steps}
[model]
layers = "benchmarks.large_layers:layers"
args = {{ seconds = {seconds}, count = {layers}, parameters = {parameters}, notes = "{notes}" }}
[data]
dataset = "benchmarks.paced:dataset"
microbatch = 1
shuffle = false
[train]
loss = "torch.nn.functional:mse_loss"
optimizer = "torch.optim:{optimizer}"
optimizer_args = {{ lr = 0.01 }}
[pipeline]
stages = 1
pipelines = {pipelines}
microbatches = {microbatches}
[resilience]
redundancy = "off"
"""


class Clock:
    """An accelerator's: work takes a set time, what the CPU does meanwhile included.

    Unlike ``paced.Device`` it never spins, since here the CPU's time is measured: it sleeps, and what one sleep took
    too long the next one makes good.
    """

    def __init__(self) -> None:
        self._free_at = 0.0

    def begin(self) -> None:
        now = time.perf_counter()
        self._free_at = self._free_at if now - self._free_at < SLACK else now

    def end(self, seconds: float) -> None:
        """So long after what ``begin`` began."""
        self._free_at += seconds
        if (left := self._free_at - time.perf_counter()) > 0:
            time.sleep(left)


class Spread(torch.autograd.Function):
    """The identity. Backward it begins the layer's time, and gives the many parameters their gradient."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, many: torch.Tensor, clock: Clock) -> torch.Tensor:
        context.clock, context.shape = clock, many.shape
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        context.clock.begin()
        return gradients[0], gradients[0].mean().expand(context.shape), None


class Last(torch.autograd.Function):
    """The identity. Its backward is the layer's last, and ends when the layer's time is over."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, clock: Clock, seconds: float) -> torch.Tensor:
        context.clock, context.seconds = clock, seconds
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        context.clock.end(context.seconds)
        return gradients[0], None, None


class LargeLayer(nn.Module):
    """``parameters`` numbers; a forward and a backward of a microbatch take so many seconds."""

    def __init__(self, parameters: int, forward: float, backward: float) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.many = nn.Parameter(torch.zeros(parameters - WIDTH * WIDTH - WIDTH))
        self.seconds = (forward, backward)
        self.clock = Clock()

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # x: [B, WIDTH] -> [B, WIDTH]
        forward, backward = self.seconds
        self.clock.begin()
        # The weight's is a backward that every layer has: the input of the first one needs no gradient.
        weight = Last.apply(self.linear.weight, self.clock, backward)  # type: ignore[no-untyped-call]
        out = functional.linear(x, weight, self.linear.bias)
        spread: torch.Tensor = Spread.apply(out, self.many, self.clock)  # type: ignore[no-untyped-call]
        self.clock.end(forward)
        return spread


class Noting(LargeLayer):
    """The first layer. Its first forward begins to write down what memory the process has.

    ``notes/PID`` is what it had before: anonymous and resident bytes, and those of the heap in use. ``notes/PID.heap``
    is the most of the heap that was in use since, with and without buffers that wait for the next tensor that arrives.
    The kernel's peak begins anew.
    """

    def __init__(self, parameters: int, forward: float, backward: float, notes: str) -> None:
        super().__init__(parameters, forward, backward)
        self._notes: Path | None = Path(notes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self._notes is not None:
            note_heap(self._notes)
            self._notes = None
        return super().forward(x)


def note_heap(notes: Path) -> None:
    own, before, heap = notes / str(os.getpid()), memory(os.getpid()), heap_in_use()
    peaks = own.with_suffix(".heap")
    own.write_text(f"{before.anonymous} {before.resident} {heap}")
    peaks.write_text(f"{heap} {heap}")
    reset_peak()

    def look() -> None:
        most = counted = heap
        while True:
            waiting, now = BUFFERS.unused, heap_in_use()
            waiting = min(waiting, BUFFERS.unused)
            if now > most + NOTED or now - waiting > counted + NOTED:
                most, counted = max(most, now), max(counted, now - waiting)
                beside = peaks.with_suffix(".new")
                beside.write_text(f"{most} {counted}")
                beside.rename(peaks)
            time.sleep(LOOK_SECONDS)

    threading.Thread(target=look, name="heap", daemon=True).start()


def layers(seconds: float, count: int = LAYERS, parameters: int = PARAMETERS, notes: str = "") -> list[Any]:
    """``seconds``: for a microbatch in all layers, a third of them forward; ``parameters``: of a layer; ``notes``: a
    folder, see ``Noting``.
    """
    forward, backward = seconds / count / 3, seconds / count * 2 / 3
    layer = partial(LargeLayer, parameters, forward, backward)
    first = partial(Noting, parameters, forward, backward, notes) if notes else layer
    return [first, *[layer] * (count - 1)]


def job_file(
    folder: Path,
    *,
    steps: int,
    pipelines: int,
    microbatches: int,
    seconds: float = 0.0,
    layers: int = LAYERS,
    parameters: int = PARAMETERS,
    optimizer: str = "SGD",
    notes: str = "",
) -> Path:
    """A job of these layers in one stage."""
    path = folder / "large-layers.toml"
    path.write_text(
        JOB.format(
            steps=steps,
            pipelines=pipelines,
            microbatches=microbatches,
            seconds=seconds,
            layers=layers,
            parameters=parameters,
            optimizer=optimizer,
            notes=notes,
        )
    )
    return path
