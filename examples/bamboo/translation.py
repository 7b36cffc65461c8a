"""A GNMT-like translator of stacked LSTMs: it writes lines of Python that it is given without spaces, in one case."""

# The encoder's states are needed at every decoder layer that attends, so they travel from layer to layer beside what
# the layer gives, and so do the bytes that the decoder begins with. A layer takes and gives a dict of tensors:
#
#     source, previous                the sample: bytes of the line to read, and of the line to write, one place later
#     hidden, previous                of the encoder
#     hidden, memory                  of the decoder

import sysconfig
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import Dataset

VOCABULARY, PADDING, BEGIN, END = 259, 256, 257, 258
Tensors = dict[str, torch.Tensor]


class Source(nn.Module):
    """Bytes of the source [B, S] as vectors."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.table, self.dropout = nn.Embedding(VOCABULARY, width), nn.Dropout(dropout)

    def forward(self, x: Tensors) -> Tensors:
        return {"hidden": self.dropout(self.table(x["source"])), "previous": x["previous"]}


class Encoder(nn.Module):
    """An LSTM [B, S, W] to [B, S, W]; the first one reads in both directions, the others beside a residual."""

    def __init__(self, width: int, dropout: float, both: bool) -> None:
        super().__init__()
        self.both, self.dropout = both, nn.Dropout(dropout)
        self.lstm = nn.LSTM(width, width // 2 if both else width, batch_first=True, bidirectional=both)

    def forward(self, x: Tensors) -> Tensors:
        y, _ = self.lstm(x["hidden"])
        return {**x, "hidden": self.dropout(y if self.both else y + x["hidden"])}


class Target(nn.Module):
    """Bytes of the target so far [B, T] as vectors; the encoder's states become the memory [B, S, W]."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.table, self.dropout = nn.Embedding(VOCABULARY, width), nn.Dropout(dropout)

    def forward(self, x: Tensors) -> Tensors:
        return {"hidden": self.dropout(self.table(x["previous"])), "memory": x["hidden"]}


class Decoder(nn.Module):
    """An LSTM [B, T, W] to [B, T, W] beside a residual; the first one looks at the memory as well."""

    def __init__(self, width: int, dropout: float, attends: bool) -> None:
        super().__init__()
        self.lstm, self.dropout = nn.LSTM(width, width, batch_first=True), nn.Dropout(dropout)
        self.ask = nn.Linear(width, width, bias=False) if attends else None
        self.join = nn.Linear(2 * width, width) if attends else None

    def forward(self, x: Tensors) -> Tensors:
        y, _ = self.lstm(x["hidden"])
        if self.ask is not None and self.join is not None:
            scores = self.ask(y) @ x["memory"].transpose(1, 2)
            seen = torch.softmax(scores / y.shape[-1] ** 0.5, dim=-1) @ x["memory"]
            y = torch.tanh(self.join(torch.cat([y, seen], dim=-1)))
        return {**x, "hidden": self.dropout(y) + x["hidden"]}


class Scores(nn.Module):
    """[B, T, W] to [B, 259, T]: classes in the second dimension."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scores = nn.Linear(width, VOCABULARY)

    def forward(self, x: Tensors) -> torch.Tensor:
        scores: torch.Tensor = self.scores(x["hidden"])
        return scores.transpose(1, 2)


def layers(depth: int = 8, width: int = 1024, dropout: float = 0.2) -> list[Callable[[], nn.Module]]:
    """``depth`` LSTMs in the encoder and as many in the decoder."""
    encoder = [partial(Encoder, width, dropout, both=not i) for i in range(depth)]
    decoder = [partial(Decoder, width, dropout, attends=not i) for i in range(depth)]
    return [
        partial(Source, width, dropout),
        *encoder,
        partial(Target, width, dropout),
        *decoder,
        partial(Scores, width),
    ]


class Lines(Dataset[tuple[Tensors, torch.Tensor]]):
    """Pairs of lines, padded to ``length`` bytes."""

    def __init__(self, lines: list[bytes], length: int) -> None:
        self._lines, self._length = lines, length

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, index: int) -> tuple[Tensors, torch.Tensor]:
        line = self._lines[index]
        source = self._padded([*line.lower().replace(b" ", b"")])
        target = self._padded([*line, END])
        return {"source": source, "previous": torch.cat([torch.tensor([BEGIN]), target[:-1]])}, target

    def _padded(self, numbers: list[int]) -> torch.Tensor:
        return torch.tensor((numbers + [PADDING] * self._length)[: self._length])


def dataset(length: int = 50, most: int = 100_000) -> Lines:
    """Lines of the standard library's top-level modules, in order of name."""
    folder, found = Path(sysconfig.get_paths()["stdlib"]), list[bytes]()
    for path in sorted(folder.glob("*.py")):
        found += [line.strip() for line in path.read_bytes().splitlines()]
    return Lines([line for line in found if 8 <= len(line) < length][:most], length)


def loss(scores: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The cross-entropy of all bytes that are no padding, as a sum, and how many they are: ``reduction = "sum"``."""
    flat = scores.transpose(1, 2).flatten(0, 1)  # for [B, C, T] torch has no deterministic kernel for a card
    total = nn.functional.cross_entropy(flat, target.flatten(), ignore_index=PADDING, reduction="sum")
    return total, (target != PADDING).sum()
