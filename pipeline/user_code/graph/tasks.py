"""Tensor work as a task: one call of a layer's function, or its backward, by whoever has the layer's parameters."""

# A task's answer is a function of the task and the parameters alone: its random numbers are drawn from its own seed. So
# it may be done anywhere, twice, or late, and whatever answer comes first is the right one. A backward runs the forward
# once more: who does it has kept nothing.

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from culm.pipeline.tensors.as_sent import as_sent, between_layers, both_as_sent
from culm.pipeline.user_code.graph.layer import EDGE, VERTEX, GraphLayer
from culm.pipeline.user_code.streams import seed_all, stream_seed

FUNCTIONS = (VERTEX, EDGE)
LOSS = len(FUNCTIONS)  # the loss's number beside those of the functions


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """``wanted``: by argument, whether its gradient is. ``gradient``: of what the function gives; None: a forward."""

    layer: int
    function: str
    seed: int
    wanted: tuple[bool, ...]
    arguments: tuple[torch.Tensor, ...]
    gradient: torch.Tensor | None = None


def task_seed(seed: int, step: int, chunk: int, layer: int, function: str) -> int:
    """For what one function of a layer draws on one chunk in one epoch; ``seed``: the job's."""
    return stream_seed(seed, step, chunk, FUNCTIONS.index(function), layer)


def loss_seed(seed: int, step: int, chunk: int, layer: int) -> int:
    """For what the loss, and then the metrics, draw on one chunk in one epoch; ``layer``: the last one.

    A seed of their own: where a tensor worker does the last layer, nothing has been seeded here before them.
    """
    return stream_seed(seed, step, chunk, LOSS, layer)


def seeded(seed_of: Callable[[str], int]) -> Callable[[GraphLayer, str, tuple[torch.Tensor, ...]], torch.Tensor]:
    """Does tensor work in this very place, as a task of this seed would be done. ``seed_of``: by function."""

    def run(layer: GraphLayer, function: str, arguments: tuple[torch.Tensor, ...]) -> torch.Tensor:
        seed_all(seed_of(function))
        # A name of its own for each argument: what its uses within the function give is added up before anything that
        # comes from outside, as where a worker does it. And all of it, and its gradients, as if it were sent to one.
        found: Any = getattr(layer, function)(*(both_as_sent(x.view_as(x)) for x in arguments))
        # If it is no tensor, the layer that takes it raises.
        given: torch.Tensor = between_layers(found) if isinstance(found, torch.Tensor) else found
        return given

    return run


def do(module: GraphLayer, task: Task) -> Mapping[int, torch.Tensor]:
    """Of a forward {0: what the function gives}; of a backward the gradients of arguments and then of parameters that
    have one, by their place among both.
    """
    seed_all(task.seed)
    with torch.enable_grad():
        pairs = zip(task.arguments, task.wanted, strict=True)
        arguments = [as_sent(x.detach()).requires_grad_(wanted) for x, wanted in pairs]
        output: torch.Tensor = getattr(module, task.function)(*arguments)
        if task.gradient is None:
            return {0: as_sent(output.detach())}
        places = [i for i, wanted in enumerate(task.wanted) if wanted]
        parameters = trained(module)
        inputs = [*(arguments[i] for i in places), *parameters]
        given = as_sent(task.gradient)
        found: Sequence[torch.Tensor | None] = torch.autograd.grad(output, inputs, given, allow_unused=True)
        places += range(len(arguments), len(arguments) + len(parameters))
        return {place: as_sent(gradient) for place, gradient in zip(places, found, strict=True) if gradient is not None}


def trained(module: torch.nn.Module) -> list[torch.nn.Parameter]:
    """The parameters that have gradients, in their order."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]
