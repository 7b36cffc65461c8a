"""Models that no job can use, one that gets stuck, and two that are slow for a while."""

import os
import signal
import time

import torch
from torch import nn


class Tuples(nn.Module):
    """Returns a tuple where a tensor belongs."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, x


def tuples(width: int = 0, hidden: int = 0) -> list[nn.Module]:
    return [nn.Flatten(), Tuples(), nn.Linear(64, 10)]


class Sticky(nn.Linear):
    """Stands still for ever, alive, when it finds the file named by CULM_STICK; the next one does not find it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            os.remove(os.environ.get("CULM_STICK", "/nonexistent"))
        except FileNotFoundError:
            return super().forward(x)
        while True:
            signal.pause()


def sticky(width: int = 0, hidden: int = 0) -> list[nn.Module]:
    return [nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), Sticky(32, 32), nn.ReLU(), nn.Linear(32, 10)]


class Paced(nn.Linear):
    """Takes its time, as if on an accelerator; ten times as much once the file named by CULM_SLOW is there."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.03 if os.path.exists(os.environ.get("CULM_SLOW", "/nonexistent")) else 0.003)
        return torch.relu(super().forward(x))


def paced(width: int = 0, hidden: int = 0) -> list[nn.Module]:
    return [nn.Sequential(nn.Flatten(), Paced(64, 64)), *[Paced(64, 64) for _ in range(6)], nn.Linear(64, 10)]


class Braked(nn.Linear):
    """Takes its time for as long as the file named by CULM_BRAKE is there."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if os.path.exists(os.environ.get("CULM_BRAKE", "/nonexistent")):
            time.sleep(0.03)
        return super().forward(x)


def braked(width: int = 0, hidden: int = 0) -> list[nn.Module]:
    return [nn.Sequential(nn.Flatten(), Braked(64, 32)), nn.Sequential(nn.ReLU(), Braked(32, 32)), Braked(32, 10)]


class Failing(nn.Linear):
    """Fails when it finds the file named by CULM_FAIL."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if os.path.exists(os.environ.get("CULM_FAIL", "/nonexistent")):
            raise ValueError("out of luck")
        return super().forward(x)


def failing(width: int = 0, hidden: int = 0) -> list[nn.Module]:
    return [nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), Failing(32, 32), nn.ReLU(), nn.Linear(32, 10)]
