"""How long each layer's forward and backward takes on this node, and how large its output is."""

# The coordinator cuts the stages by the times, and knows by the bytes what activations between zones cost.
#
# One layer at a time is built, run on the job's first microbatch and dropped, so a model too large for this machine is
# never whole on it. A layer's input is the output of the layer before. The whole is done twice: a machine that is busy
# for a moment slows other layers then.
#
# No bit depends on a time: what is built here takes part in nothing, and every piece of work seeds its own random
# numbers. So nodes may tell different times, and the machine may be busy with other things.

import logging
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn

from culm.pipeline.errors import JobError
from culm.pipeline.job import Job
from culm.pipeline.tensors.pytrees import Pytree, mapped, tensors_in
from culm.pipeline.user_code.data import microbatches_of
from culm.pipeline.user_code.forwards import Forwards
from culm.pipeline.user_code.imports import RAISED, described
from culm.pipeline.user_code.losses import taken
from culm.pipeline.user_code.model import ModelSource
from culm.pipeline.user_code.streams import stream_seed
from culm.pipeline.user_code.trial import leaf_of
from culm.stage_server.compute.device import Device

log = logging.getLogger("culm.compute")

# A layer's first pass pays for what torch sets up once, and the later ones add to gradients as most passes of a step
# do. Of these the fastest counts: what makes a pass slower is the machine's, not the layer's.
SWEEPS = 2
MOST_PASSES = 3  # of a sweep, after the first
ENOUGH_SECONDS = 0.1  # of a layer's passes after the first: a slow layer needs few
LEAST_SECONDS = 1e-9  # so that every time is above zero, whatever the clock's resolution

OutputLoss = Callable[[Pytree], torch.Tensor]  # of the last layer's output


class Measured(NamedTuple):
    """Of one layer and one microbatch."""

    seconds: float  # its forward and backward; of the last layer with the loss
    boundary: int  # bytes of its output, of the gradient of that, and of the target that travels beside it


def measured(job: Job, source: ModelSource, device: Device) -> tuple[tuple[Measured, ...], str]:
    """Of each layer, or none and why: a layer that raises here may raise in the run, which tells more of it."""
    begun = time.perf_counter()
    try:
        found = layers_measured(job, source, device)
    except RAISED as error:
        why = str(error) if isinstance(error, JobError) else described(error)
        log.warning("this node could not measure how long its layers take: %s", why)
        return (), why
    log.info("measured how long each of %d layers takes, in %.1f s", len(found), time.perf_counter() - begun)
    return found, ""


def layers_measured(job: Job, source: ModelSource, device: Device) -> tuple[Measured, ...]:
    found = microbatches_of(job, "data", source.dataset()).microbatch(0, 0, 0)
    x, target = (mapped(lambda tensor: tensor.to(device.place), part) for part in found)
    sweeps = [_sweep(job, source, device, x, target) for _ in range(SWEEPS)]
    return tuple(
        Measured(max(LEAST_SECONDS, min(each.seconds for each in layer)), max(each.boundary for each in layer))
        for layer in zip(*sweeps, strict=True)
    )


def _sweep(job: Job, source: ModelSource, device: Device, x: Pytree, target: Pytree) -> list[Measured]:
    """Every layer once. x and target: of a microbatch, as the first layer and the loss take them."""
    found: list[Measured] = []
    for index in range(source.layer_count):
        layer = source.build(index).to(device.place)
        last = index == source.layer_count - 1
        timed = _Timed(layer, stream_seed(job.job.seed, 0, 0, 0, index), index > 0, device, Forwards(job))
        try:
            seconds, x = timed.fastest(x, (lambda y: taken(source.loss(y, target), job)[0]) if last else None)
        except RAISED as error:
            what = f"layer {index} ({type(layer).__name__}) raised {described(error)}"
            raise JobError(what, "model.layers", "correct the layer or what feeds it") from error
        sent = sum(t.nbytes * (2 if _takes_gradient(t) else 1) for t in tensors_in(x))
        found.append(Measured(seconds, sent + sum(t.nbytes for t in tensors_in(target))))
    return found


def _takes_gradient(x: torch.Tensor) -> bool:
    """Whether a stage gives the gradient of such an input back."""
    return x.is_floating_point() or x.is_complex()


class _Timed:
    """A layer whose passes are timed as a stage makes them."""

    def __init__(self, layer: nn.Module, seed: int, passes_back: bool, device: Device, forwards: Forwards) -> None:
        self._forwards = forwards
        self._layer = layer
        self._seed = seed
        self._passes_back = passes_back  # whether a layer before it takes the gradient of its input
        self._device = device

    def fastest(self, x: Pytree, loss: OutputLoss | None) -> tuple[float, Pytree]:
        """Seconds of the fastest pass, and the layer's output."""
        _, y = self._pass(x, loss)
        times: list[float] = []
        while len(times) < MOST_PASSES and sum(times) < ENOUGH_SECONDS:
            seconds, y = self._pass(x, loss)
            times.append(seconds)
        return min(times), y

    def _pass(self, x: Pytree, loss: OutputLoss | None) -> tuple[float, Pytree]:
        leaf = leaf_of(x, self._passes_back)
        given = mapped(torch.clone, leaf)  # the layer may write into its input, which the next pass needs again
        self._device.seed(self._seed)
        begun = self._now()
        y = self._forwards.run(self._layer, given, self._seed, self._device.seed)
        with self._forwards.precision():
            end = loss(y) if loss is not None else y
        forward = self._now() - begun
        ends = [tensor for tensor in tensors_in(end) if tensor.requires_grad]
        output = mapped(lambda tensor: tensor.detach().requires_grad_(tensor.requires_grad), y)
        if not ends:
            return forward, output
        gradients = [torch.ones_like(tensor) for tensor in ends]
        begun = self._now()
        torch.autograd.backward(ends, gradients)
        return forward + self._now() - begun, output

    def _now(self) -> float:
        """Once the device is done."""
        self._device.computed().wait()
        return time.perf_counter()
