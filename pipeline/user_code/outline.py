"""What a layer consists of, without its values: names, dtypes and shapes of its tensors."""

from dataclasses import dataclass

import torch
from torch import nn


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
                parts.append(f"{kind}{name} {str(tensor.dtype).removeprefix('torch.')} {shape}")
        trained = tuple((tuple(p.shape), p.dtype) for p in module.parameters() if p.requires_grad)
        size = sum(t.numel() * t.element_size() for tensors in (module.parameters(), module.buffers()) for t in tensors)
        return Outline(", ".join(parts), sum(p.numel() for p in module.parameters()), size, trained)
