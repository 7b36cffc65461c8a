"""How many bytes each layer takes on a node that holds it: its state, and one gradient of it."""

import math
from collections.abc import Mapping

import torch

from culm.pipeline.user_code.model import ModelSource
from culm.stage_server.compute.average import average_dtype
from culm.stage_server.compute.optimizer_state import optimized

Kind = tuple[torch.dtype, int]  # of a parameter: its dtype and how many dimensions it has

# Sizes that no other tensor of an optimizer's state has by chance: a count, or a factor of a moment, is no moment.
ODD = (5, 7, 3, 2)


def footprint(source: ModelSource) -> list[tuple[int, int]]:
    """(state, gradient) of each layer."""
    kept = moments(source)
    found = []
    for outline in source.outlines():
        trained = [(math.prod(shape), dtype, len(shape)) for shape, dtype in outline.trained]
        gradient = sum(elements * dtype.itemsize for elements, dtype, _ in trained)
        beside = sum(elements * kept[dtype, dimensions] for elements, dtype, dimensions in trained)
        if source.average is not None:
            beside += sum(elements * average_dtype(dtype).itemsize for elements, dtype, _ in trained)
        found.append((outline.size + beside, gradient))
    return found


def moments(source: ModelSource) -> Mapping[Kind, int]:
    """What the job's optimizer keeps of each element of a parameter, in bytes, as its first step shows; of several
    optimizers the one that keeps most.

    Tensors of the parameter's own shape alone: all else is small beside it.
    """
    found: dict[Kind, int] = {}
    for name in source.optimizers():
        for like in source.parameters_like(name):
            shape = [ODD[i % len(ODD)] for i in range(like.dim())]
            parameter = torch.zeros(shape, dtype=like.dtype, requires_grad=True)
            optimizer = source.alone(name, [parameter])
            parameter.grad = torch.zeros_like(parameter)
            optimizer.step()
            state = optimizer.state[optimized(optimizer)[0]].values()
            tensors = [entry for entry in state if isinstance(entry, torch.Tensor) and entry.shape == parameter.shape]
            kept = sum(tensor.element_size() for tensor in tensors)
            found[like.dtype, like.dim()] = max(kept, found.get((like.dtype, like.dim()), 0))
    return found
