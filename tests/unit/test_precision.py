"""Forwards under autocast, cut anywhere, give the bits of one process with one context around the whole model."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from culm.oracle.plain_loop import run_plain
from culm.pipeline.job import Job
from culm.pipeline.user_code.check import check_job
from tests.unit.test_exactness import ADAMW, gives_the_plain_loops_bits, make_job

HERE = "tests.unit.test_precision"


class Thrice(nn.Module):
    """Uses its input three times, as attention does, and its weight twice."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # x: [B, 8]
        y: torch.Tensor = self.query(x) * torch.tanh(self.key(x)) + self.value(self.value(x))
        return x + y


class Float(nn.Module):
    """Hands on float32, as a residual stream of full precision does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.float()


def layers(count: int) -> list[Any]:
    attention = partial(nn.TransformerEncoderLayer, 8, 2, 16)
    norms = [partial(nn.BatchNorm1d, 8), partial(nn.LayerNorm, 8)]
    return [
        partial(nn.Linear, 8, 8),
        Thrice,
        attention,
        *norms,
        Float,
        *[Thrice] * count,
        Float,
        Thrice,
        partial(nn.Linear, 8, 4),
    ]


def job_of(stages: int, splits: bool = False, **train: Any) -> Job:
    job = make_job(stages, 3, ADAMW, True, count=2)
    model = job.model.model_copy(update={"layers": f"{HERE}:layers"})
    pipeline = job.pipeline.model_copy(update={"schedule": "zb-h1"} if splits else {})
    train = {"precision": "bf16-mixed", **train}
    return job.model_copy(update={"model": model, "pipeline": pipeline, "train": job.train.model_copy(update=train)})


@pytest.mark.parametrize("splits", [False, True], ids=["1f1b", "zb-h1"])
@pytest.mark.parametrize("stages", [1, 2, 3, 5, 8, 11])
def test_every_cut_gives_the_plain_loops_bits(stages: int, splits: bool) -> None:
    job = job_of(stages, splits)
    check_job(job)
    gives_the_plain_loops_bits(job)


def test_it_changes_what_is_computed_and_keeps_the_weights_float32() -> None:
    mixed, plain = run_plain(job_of(2)), run_plain(job_of(2, precision="fp32"))
    assert mixed.sha256 != plain.sha256
    assert {tensor.dtype for _, state in mixed.layers for tensor in state.values()} == {torch.float32, torch.int64}
