"""Compiled layers, on a grid that loses two nodes: samples of several shapes, and a model of Hugging Face."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from culm.pipeline.job import Job, with_values
from culm.pipeline.user_code.hardware import hardware_of
from tests.models.test_matrix import DEVICE, hugging_face, job_of, survives_and_ends_exact

HERE = "tests.models.test_compiled"
pytestmark = [
    pytest.mark.usefixtures("nothing_compiled"),
    pytest.mark.skipif(DEVICE != "cpu", reason="train.compile is for the CPU"),
]


@pytest.fixture
def nothing_compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The first process to need a kernel compiles it; the others find it, or are about to compile it as well."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))


class Uneven(Dataset[Any]):
    """Lines of three lengths: an heir, and a node that joins, see them in another order than those before."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        x = torch.randn(5 + 3 * (index % 3), 16, generator=torch.Generator().manual_seed(index))
        return x, x.mean(-1)


def padded(samples: list[Any]) -> Any:
    """As long as the longest of them."""
    return tuple(nn.utils.rnn.pad_sequence(list(part), batch_first=True) for part in zip(*samples, strict=True))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.inner, self.outer = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # x: [B, T, 16]
        h = nn.functional.dropout(nn.functional.gelu(self.inner(self.norm(x))), 0.2, self.training)
        y: torch.Tensor = self.outer(h)
        return x + y.softmax(-1)


def blocks() -> list[Any]:
    return [Block] * 4


def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output.mean(-1) - target).square().mean()


def uneven(seed: int, values: dict[str, Any]) -> Job:
    job = job_of("uneven", seed, f"{HERE}:blocks", f"{HERE}:Uneven", f"{HERE}:loss", {})
    return with_values(job, {"train.compile": True, "data.collate": f"{HERE}:padded", **values})


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"train.precision": "bf16-mixed"},
        {"train.activation_checkpointing": True},
        {"resilience.redundancy": "eager"},
    ],
    ids=["fp32", "bf16", "again", "eager"],
)
def test_samples_of_several_shapes(values: dict[str, Any], tmp_path: Path) -> None:
    survives_and_ends_exact(uneven(21, values), tmp_path / "run")


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_a_decoder(architecture: str, tmp_path: Path) -> None:
    job = hugging_face(architecture, 22, "next_token")
    survives_and_ends_exact(with_values(job, {"train.compile": True}), tmp_path / "run")


def test_the_compiler_is_part_of_a_runs_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    job = uneven(21, {})
    usual = hardware_of(job)
    assert usual.startswith(hardware_of(with_values(job, {"train.compile": False})))
    assert "compiled by g++" in usual
    monkeypatch.setenv("TORCHINDUCTOR_FX_GRAPH_CACHE", "0")  # chooses no kernel
    assert hardware_of(job) == usual
    monkeypatch.setenv("TORCHINDUCTOR_SPLIT_REDUCTIONS", "0")
    assert hardware_of(job) != usual
