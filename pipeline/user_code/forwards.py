"""How a layer's forward runs: in the job's precision, and with what of it is kept for the backward."""

# Under "bf16-mixed" torch.autocast chooses, for each operation of a forward, bfloat16 or float32. Parameters, their
# gradients, the optimizer's state and all sums stay float32; a layer hands on what it gives.
#
# autocast keeps the bfloat16 copy of a leaf that requires a gradient until the context ends. So a leaf that is used
# twice has one copy, whose gradient is added up in bfloat16, and any other tensor has two. In one process a layer's
# input is no leaf; at the beginning of a stage it would be one. ``as_within`` takes care that a cut changes no bit.
#
# Under "bf16" there is no context: layers are cast when they are built, samples when they are loaded.
# Sums over microbatches and pipelines are bfloat16 then, too. Norms are taken in float64, as ever.
#
# With activation checkpointing a graph keeps each layer's input alone, and its backward runs the forward again. That
# draws the same random numbers: every generator is seeded as before the first time, and put back afterwards. torch
# would put back its own alone.

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from culm.pipeline.job import Job
from culm.pipeline.tensors.layout import copy_of
from culm.pipeline.tensors.pytrees import Pytree, mapped
from culm.pipeline.user_code.compiling import refuse_others
from culm.pipeline.user_code.devices import device_of
from culm.pipeline.user_code.streams import put_generators_back, seed_all, whole_states

Seeding = Callable[[int], None]


def precision_of(job: Job) -> Callable[[], AbstractContextManager[Any]]:
    """Gives the context of one forward, of a layer or of the loss."""
    if job.train.precision != "bf16-mixed":
        return nullcontext
    return partial(torch.autocast, device_of(job).type, dtype=torch.bfloat16)


def cast_layer(job: Job, layer: nn.Module) -> nn.Module:
    """The layer itself, its parameters and buffers in the job's precision."""
    return layer.to(torch.bfloat16) if job.train.precision == "bf16" else layer


def cast_inputs(job: Job, inputs: Pytree) -> Pytree:
    """Samples in the job's precision, where they are floating point; never targets."""
    if job.train.precision != "bf16":
        return inputs
    return mapped(lambda t: t.to(torch.bfloat16) if t.is_floating_point() else t, inputs)


def as_within(job: Job, x: Pytree) -> Pytree:
    """A stage's input as it would be in one process, for the layer that takes it."""
    return mapped(lambda t: t.view_as(t) if t.requires_grad else t, x) if job.train.precision == "bf16-mixed" else x


class Forwards:
    """Of a job's layers."""

    def __init__(self, job: Job) -> None:
        self.precision = precision_of(job)
        self.is_mixed = job.train.precision == "bf16-mixed"
        self.runs_again = job.train.activation_checkpointing

    def once(self, layer: nn.Module, x: Pytree) -> Any:
        """What the layer gives, on this very input, and never again."""
        if self.is_mixed:
            with self.precision():
                y = layer(x)
        else:
            y = layer(x)
        refuse_others()
        return y

    def run(self, layer: nn.Module, x: Pytree, seed: int, seeding: Seeding = seed_all) -> Any:
        """What the layer gives. ``seed``: with which the generators were seeded just now; ``seeding``: by which."""
        if not self.runs_again:
            return self.once(layer, x)
        with self.precision():
            contexts = partial(_contexts, partial(seeding, seed))
            own = partial(_on_a_copy, layer)
            return checkpoint(own, x, use_reentrant=False, preserve_rng_state=False, context_fn=contexts)


def _on_a_copy(layer: nn.Module, x: Pytree) -> Any:
    """The repetition is given the same tensors and containers: neither this layer nor a later one may write there."""
    return layer(mapped(copy_of, x))


def _contexts(seed: Callable[[], None]) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Around the forward, and around its repetition: there are two where the backward is split."""
    return nullcontext(), _Seeded(seed)


class _Seeded(AbstractContextManager[None]):
    """The generators as they were before the forward; put back at the end. May be entered again then."""

    def __init__(self, seed: Callable[[], None]) -> None:
        self._seed = seed
        self._states: tuple[Any, ...] = ()

    def __enter__(self) -> None:
        self._states = whole_states()
        self._seed()

    def __exit__(self, *_: object) -> None:
        put_generators_back(self._states)
