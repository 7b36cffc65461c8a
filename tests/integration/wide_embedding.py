"""A model whose parameters lie in one layer, and whose time is spent in the others."""

from collections.abc import Callable

import torch
from torch import nn
from torch.utils.data import TensorDataset

WORDS, WIDTH, LENGTH, BLOCKS = 8192, 128, 64, 6


class Block(nn.Sequential):
    """x: [B, T, D] to the same."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(WIDTH, WIDTH), nn.Tanh())


class Head(nn.Linear):
    """x: [B, T, D] to logits of two classes, [B, 2]."""

    def __init__(self) -> None:
        super().__init__(WIDTH, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.mean(dim=1))


def frozen() -> nn.Module:
    """tokens: [B, T] to [B, T, D]; it is not trained, so its backward takes no time."""
    embedding = nn.Embedding(WORDS, WIDTH)
    embedding.weight.requires_grad_(False)
    return embedding


def layers() -> list[Callable[[], nn.Module]]:
    """The embedding has about ten times the parameters of all other layers together."""
    return [frozen, *[Block] * BLOCKS, Head]


def dataset() -> TensorDataset:
    """tokens: [256, T], and two classes."""
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(0, WORDS, (256, LENGTH), generator=generator)
    return TensorDataset(tokens, torch.randint(0, 2, (256,), generator=generator))
