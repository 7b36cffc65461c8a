"""Layers that conjugate or negate lazily, as torch does complex numbers, work wherever the model is cut."""

from itertools import combinations
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from culm.oracle.plain_loop import run_plain
from culm.pipeline.tensors.raw import bytes_of
from culm.pipeline.user_code.check import check_job
from tests.hostile.models import Wrapped
from tests.hostile.stages import as_it_is, job_of_parts, train
from tests.hostile.test_layouts import by_a_device, by_the_wire


class Mixed(nn.Module):
    """A product: a conjugate comes to it, and its backward gives one."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(31, 31, dtype=torch.complex64) / 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


class Turned(nn.Module):
    """Its weight is used as a conjugate, so its gradient is one."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(31, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.weight.conj()


def conjugates() -> list[nn.Module]:
    conjugate = Wrapped(lambda x: x.mT.clone(memory_format=torch.contiguous_format).mH)
    head = [Wrapped(lambda x: torch.complex(x, x.flip(1))), Mixed(), conjugate, Mixed(), Turned(), conjugate, Mixed()]
    return [nn.Linear(8, 31), *head, Wrapped(lambda x: x.conj().imag), nn.Linear(31, 4)]


def dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    return TensorDataset(torch.randn(30, 8, generator=generator), torch.randint(0, 4, (30,), generator=generator))


@pytest.mark.parametrize("passed", [as_it_is, by_the_wire, by_a_device])
@pytest.mark.parametrize("splits", [False, True], ids=["whole", "in two halves"])
def test_every_cut_gives_the_plain_loops_bits(passed: Any, splits: bool) -> None:
    job = job_of_parts(__name__, "conjugates", "dataset", microbatch=1)
    check_job(job)
    plain = run_plain(job).sha256
    inner = range(1, len(conjugates()))
    for cuts in [(), *combinations(inner, 1), tuple(inner)]:
        assert train(job, cuts, splits, passed) == plain, f"cut at {cuts}"


def test_what_is_sent_is_what_the_tensor_says() -> None:
    numbers = torch.tensor([1.0 + 2.0j, -3.0 - 4.0j])
    for lazy in (numbers.conj(), torch._neg_view(numbers), torch._neg_view(numbers.real.clone()), numbers.conj().imag):
        assert bytes(bytes_of(lazy)) == lazy.clone().numpy().tobytes()
