"""A value: the tensors behind one key, and the facts that travel with them."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, eq=False)
class Value:
    """Named tensors in order. ``squared_norms`` and ``losses`` belong to reduced gradients (see tensor.proto)."""

    tensors: tuple[tuple[str, torch.Tensor], ...]
    squared_norms: tuple[float, ...] = ()
    losses: tuple[float, ...] = ()

    @staticmethod
    def single(tensor: torch.Tensor) -> "Value":
        """An activation or a gradient."""
        return Value((("output", tensor),))

    @property
    def size(self) -> int:
        """Bytes of its tensors."""
        return sum(tensor.nbytes for _, tensor in self.tensors)

    def tensor(self) -> torch.Tensor:
        """The tensor of a value that has one."""
        ((_, tensor),) = self.tensors
        return tensor
