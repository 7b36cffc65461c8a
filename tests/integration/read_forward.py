"""An iterable dataset that notes from where it is read on, and may give some process samples of its own."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import IterableDataset


class Rows(IterableDataset[Any]):
    """``differs_from``: the sample from which on each process gets others."""

    def __init__(self, notes: str, differs_from: int = 1 << 30) -> None:
        self._notes, self._differs_from, self._at = Path(notes), differs_from, 0

    def __iter__(self) -> Iterator[Any]:
        while self._at < 500:
            self._at += 1
            own = os.getpid() if self._at > self._differs_from else 0
            yield torch.full((8,), self._at % 13 + float(own)) + torch.randn(8), torch.tensor(self._at % 4)
        self._at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self._at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._at = state["at"]
        with self._notes.open("a") as file:
            file.write(f"{self._at}\n")


def layers() -> list[nn.Module]:
    return [
        nn.Sequential(nn.Linear(8, 16), nn.ReLU()),
        nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.1)),
        nn.Linear(16, 4),
    ]
