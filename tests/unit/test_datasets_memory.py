"""A dataset's own tensors stay as they are where a layer writes into its input: in nodes and in the plain loop."""

from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

from culm.pipeline.job import job_of
from tests.unit.exactness import gives_the_plain_loops_bits

RATE = {"lr": 0.01}
HERE = "tests.unit.test_datasets_memory"


class Samples(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Four of them, which it hands out again and again."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self._samples = [(torch.randn(4, generator=generator), torch.randn(2, generator=generator)) for _ in range(4)]

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self._samples[index]


class Doubles(nn.Module):
    """Writes into its input. x: [B, 4]."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mul_(2.0)


def layers() -> list[Any]:
    return [Doubles(), nn.Linear(4, 4), nn.Linear(4, 2)]


def collate(samples: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Of one sample: its own memory."""
    ((x, target),) = samples
    return x.unsqueeze(0), target.unsqueeze(0)


def test_what_is_written_into_a_dataset_is_not_in_later_epochs() -> None:
    """The plain loop wrote into the dataset, so ``culm verify`` told of other weights."""
    sections: dict[str, Any] = {
        "job": {"name": "memory", "steps": 6},
        "model": {"layers": f"{HERE}:layers"},
        "data": {"dataset": f"{HERE}:Samples", "microbatch": 1, "collate": f"{HERE}:collate"},
        "train": {
            "loss": "torch.nn.functional:mse_loss",
            "optimizer": "torch.optim:SGD",
            "optimizer_args": {"lr": 0.01},
        },
        "pipeline": {"stages": 2, "microbatches": 2},
        "evaluate": {"dataset": f"{HERE}:Samples", "every": 2, "samples": 4},
    }
    gives_the_plain_loops_bits(job_of(sections, "a test"))
