"""A byte-level GPT that learns Python from the standard library's own source files: real text, on every machine."""

import sysconfig
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.data import Dataset

VOCABULARY = 256
TEXT_BYTES = 4_000_000


class Embedding(nn.Module):
    """Bytes and their positions as vectors."""

    def __init__(self, width: int, context: int, dropout: float) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, width)
        self.position = nn.Embedding(context, width)
        self.dropout = nn.Dropout(dropout)
        for table in (self.token, self.position):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # x: [B, T] -> [B, T, D]
        at = torch.arange(x.shape[1], device=x.device)
        out: torch.Tensor = self.dropout(self.token(x) + self.position(at))
        return out


class Block(nn.Module):
    """Causal self-attention and a feed-forward network, each behind a norm and beside a residual."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.rate = dropout
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # x: [B, T, D] -> [B, T, D]
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).split(width, dim=2)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.out(mixed.transpose(1, 2).reshape(batch, length, width)))
        y: torch.Tensor = x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))
        return y


class Head(nn.Module):
    """Scores of the next byte, the classes in the second dimension as losses and metrics of torch's kind want them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scores = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # x: [B, T, D] -> [B, 256, T]
        scores: torch.Tensor = self.scores(self.norm(x))
        return scores.transpose(1, 2)


def layers(depth: int, width: int, heads: int, context: int, dropout: float = 0.1) -> list[Callable[[], nn.Module]]:
    """Constructors of the model's layers: a node builds only those that it holds."""
    blocks = [partial(Block, width, heads, dropout) for _ in range(depth)]
    return [partial(Embedding, width, context, dropout), *blocks, partial(Head, width)]


def loss(scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The cross-entropy of all bytes of a microbatch. scores: [B, 256, T]; target: [B, T]."""
    # Flat: for [B, C, T] torch has no kernel for a card that adds in the same order each time.
    return F.cross_entropy(scores.transpose(1, 2).flatten(0, 1), target.flatten())


class Text(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Windows of ``context`` bytes and the bytes that follow each."""

    def __init__(self, data: bytes, context: int) -> None:
        self._data = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        self._context = context

    def __len__(self) -> int:
        return (len(self._data) - 1) // self._context

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:  # [T], [T]
        window = self._data[index * self._context : (index + 1) * self._context + 1].long()
        return window[:-1], window[1:]


def dataset(context: int) -> Text:
    """The first few megabytes of the standard library's top-level modules, in order of name."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    data = b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
    return Text(data[:TEXT_BYTES], context)
