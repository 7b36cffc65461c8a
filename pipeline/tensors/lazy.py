"""Conjugates and negations that torch has put off: the tensor says so by a bit, and its memory holds other numbers."""

# A product takes a conjugate by another kernel than the same numbers in memory, with other bits. A tensor that is sent
# arrives as numbers in memory. So it is that between all layers, and so is its gradient: whether a cut lies there must
# not matter.

import torch

from culm.pipeline.tensors.pytrees import Pytree, mapped


def in_memory(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with nothing put off; one that has nothing is given back as it is."""
    return tensor.resolve_conj().resolve_neg()


def between_layers(output: Pytree) -> Pytree:
    """A layer's output with nothing put off, in its tensors or in their gradients. Raises NotAPytree."""
    return mapped(_between_layers, output)


def _between_layers(tensor: torch.Tensor) -> torch.Tensor:
    tensor = in_memory(tensor)
    if tensor.is_complex() and tensor.requires_grad:
        tensor.register_hook(_gradient_in_memory)  # type: ignore[no-untyped-call]
    return tensor


def _gradient_in_memory(gradient: torch.Tensor | None) -> torch.Tensor | None:
    """A Function may give none, and torch calls the hook all the same."""
    return in_memory(gradient) if gradient is not None else None
