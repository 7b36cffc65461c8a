"""A small model that trains slowly for as long as a file is there: then what happens beside it has its time."""

import os
import time
from pathlib import Path

import torch
from torch import nn

from culm.examples.digits_mlp import dataset

__all__ = ["dataset", "layers"]

HOLD = "CULM_TEST_HOLD"  # names the file
PACE = 0.01  # seconds


class Paced(nn.Module):
    """Gives what it takes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if Path(os.environ.get(HOLD, "/nowhere")).exists():
            time.sleep(PACE)
        return x


def layers() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), Paced(), nn.ReLU(), nn.BatchNorm1d(32), nn.Linear(32, 10))
