"""What stands in a model of Hugging Face in place of modules that a layer does not have."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class Passing(nn.Module):
    """In place of a block. Hands on what it is given; the model may read the block's settings."""

    def __init__(self, block: nn.Module, returned: int) -> None:
        """``returned``: how many values the block returns as a tuple; 0 for a tensor alone."""
        super().__init__()
        self._returned = returned
        self.at: Callable[[torch.Tensor], None] | None = None  # sees the input
        self.output: tuple[torch.Tensor | None, ...] | None = None  # what it returns in place of its input
        for name, value in vars(block).items():
            if not name.startswith("_") and name != "training":
                setattr(self, name, value)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        hidden = args[0] if args else kwargs["hidden_states"]
        if self.at is not None:
            self.at(hidden)
        output = self.output if self.output is not None else (hidden, *[None] * (self._returned - 1))
        return output if self._returned else output[0]


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
        # A model that draws its initial values may do so by a module's name.
        for name, _ in module.named_parameters(recurse=False):
            setattr(self, name, torch.empty(0, dtype=self._dtype))

    def forward(self, x: torch.Tensor | torch.Size, *_: Any, **__: Any) -> torch.Tensor:
        """``x``: a shape where positions follow from it alone. Then it gives one number, which any device adds."""
        if not isinstance(x, torch.Tensor):
            return torch.zeros((), dtype=self._dtype)
        if not self._width:
            return x
        shape = x.shape if self._is_table else x.shape[:-1]
        return torch.zeros(*shape, self._width, dtype=self._dtype, device=x.device)
