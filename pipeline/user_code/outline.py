"""What a layer consists of, without its values: names, dtypes and shapes of its tensors, and which are not trained.

An optimizer's state numbers the parameters that are trained, so it fits only where the same ones are.
"""

from dataclasses import dataclass

import torch
from torch import nn

from culm.pipeline.identity import FROZEN


@dataclass(frozen=True, slots=True)
class Outline:
    """``text`` is different for two layers unless the state of one fits into the other."""

    text: str
    parameters: int
    size: int  # in bytes, of parameters and buffers
    trained: tuple[tuple[tuple[int, ...], torch.dtype], ...]  # shapes and dtypes of those that require a gradient

    @staticmethod
    def of(module: nn.Module) -> "Outline":
        parts = []
        for kind, named in (("", module.named_parameters()), ("buffer ", module.named_buffers())):
            for name, tensor in named:
                shape = "x".join(map(str, tensor.shape)) or "scalar"
                frozen = "" if kind or tensor.requires_grad else FROZEN
                parts.append(f"{kind}{name} {str(tensor.dtype).removeprefix('torch.')} {shape}{frozen}")
        trained = tuple((tuple(p.shape), p.dtype) for p in module.parameters() if p.requires_grad)
        size = sum(t.numel() * t.element_size() for tensors in (module.parameters(), module.buffers()) for t in tensors)
        return Outline(", ".join(parts), sum(p.numel() for p in module.parameters()), size, trained)
