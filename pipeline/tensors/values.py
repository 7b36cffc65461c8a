"""A value: the tensors behind one key, and the facts that travel with them."""

from dataclasses import dataclass

import torch

CONSTANT = "constant"  # the name of an activation that requires no gradient


@dataclass(frozen=True, eq=False)
class Value:
    """Named tensors in order. ``squared_norms`` and ``losses`` belong to reduced gradients (see tensor.proto)."""

    tensors: tuple[tuple[str, torch.Tensor], ...]
    squared_norms: tuple[float, ...] = ()
    losses: tuple[float, ...] = ()

    @staticmethod
    def single(tensor: torch.Tensor) -> "Value":
        """A gradient, or an activation that requires one."""
        return Value((("output", tensor),))

    @staticmethod
    def activation(tensor: torch.Tensor, requires_gradient: bool) -> "Value":
        """A stage's output, whose name tells whether it requires a gradient."""
        return Value((("output" if requires_gradient else CONSTANT, tensor),))

    @property
    def requires_gradient(self) -> bool:
        """Of an activation: whether the next stage's input is to require a gradient, as it does in one process."""
        ((name, tensor),) = self.tensors
        return name != CONSTANT and (tensor.is_floating_point() or tensor.is_complex())

    @property
    def size(self) -> int:
        """Bytes of its tensors."""
        return sum(tensor.nbytes for _, tensor in self.tensors)

    def tensor(self) -> torch.Tensor:
        """The tensor of a value that has one."""
        ((_, tensor),) = self.tensors
        return tensor
