"""What stands in a model of Hugging Face in place of modules that a layer does not have."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class Passing(nn.Module):
    """In place of a block. Hands on what it is given; the model may read the block's settings."""

    def __init__(self, block: nn.Module, returns_tuple: bool) -> None:
        super().__init__()
        self._returns_tuple = returns_tuple
        self.at: Callable[[torch.Tensor], torch.Tensor] | None = None  # what becomes of the input
        for name, value in vars(block).items():
            if not name.startswith("_") and name != "training":
                setattr(self, name, value)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        hidden = args[0] if args else kwargs["hidden_states"]
        hidden = self.at(hidden) if self.at is not None else hidden
        return (hidden,) if self._returns_tuple else hidden


class Blank(nn.Module):
    """In place of an embedding, a norm or a product outside of the blocks: of the same shape."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._width = 0  # of what it gives; 0: as wide as what it is given
        if isinstance(module, nn.Embedding):
            self._width = module.embedding_dim
        elif isinstance(module, nn.Linear):
            self._width = module.out_features
        self._is_table = isinstance(module, nn.Embedding)
        self._dtype = next(module.parameters()).dtype

    def forward(self, x: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        if not self._width:
            return x
        shape = x.shape if self._is_table else x.shape[:-1]
        return torch.zeros(*shape, self._width, dtype=self._dtype, device=x.device)
