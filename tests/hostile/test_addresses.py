"""Where in memory a tensor lies, which tells kernels their way, does not depend on where the model is cut."""

import math
from collections.abc import Iterable
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from culm.oracle.plain_loop import run_plain
from culm.pipeline.job import Job
from culm.pipeline.tensors.layout import ALIGNMENT
from culm.pipeline.tensors.values import Value
from culm.pipeline.user_code.check import check_job
from culm.pipeline.user_code.model import ModelSource
from culm.stage_server.compute.device import CPU
from culm.stage_server.compute.keeping import Keeping
from culm.stage_server.compute.layer import HeldLayer
from tests.hostile.cut_runs import by_the_wire
from tests.hostile.models import Wrapped
from tests.hostile.stages import as_it_is, job_of_parts, train
from tests.late_device import Late


def are_where_torch_puts_them(tensors: Iterable[torch.Tensor]) -> bool:
    return all(tensor.data_ptr() % ALIGNMENT == 0 for tensor in tensors)


class Looks(nn.Module):
    """Hands on what it is given, and sees to it that this and its gradient lie where torch puts tensors."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert are_where_torch_puts_them([x])
        return _Looks.apply(x)  # type: ignore[no-any-return, no-untyped-call]


class _Looks(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 1.0

    @staticmethod
    def backward(_: Any, *gradients: torch.Tensor) -> torch.Tensor:
        assert are_where_torch_puts_them(gradients)
        return gradients[0]


def views() -> list[nn.Module]:
    """Outputs that are views from the second column on, and gradients that are such views of others."""
    return [
        Looks(),
        nn.Linear(8, 18),
        Wrapped(lambda x: x[:, 1:]),
        Looks(),
        nn.Linear(17, 7),
        Looks(),
        Wrapped(lambda x: torch.cat([torch.ones(len(x), 1), x], 1)),
        nn.Linear(8, 8),
        nn.Linear(8, 4),
    ]


def of_rows() -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    return TensorDataset(torch.randn(30, 9, generator=generator))


def with_label_first(samples: list[tuple[torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    rows = torch.stack([row for (row,) in samples])
    return rows[:, 1:], (rows[:, 0].abs() * 10).long() % 4


def job_of_views() -> Job:
    job = job_of_parts(__name__, "views", "of_rows", 4)
    return job.model_copy(update={"data": job.data.model_copy(update={"collate": f"{__name__}:with_label_first"})})


def one_by_the_wire(tensor: torch.Tensor) -> torch.Tensor:
    return by_the_wire(Value((("x", tensor),))).tensors[0][1]


@pytest.mark.parametrize("wired", [False, True], ids=["one node", "over the wire"])
def test_views_and_gradients_that_are_views_give_the_plain_loops_bits_wherever_the_model_is_cut(wired: bool) -> None:
    job = job_of_views()
    check_job(job)
    plain = run_plain(job).sha256
    for cuts in ((), *combinations(range(1, 9), 1), (2, 4), (3, 6, 7)):
        assert train(job, cuts, False, one_by_the_wire if wired else as_it_is) == plain, f"cut at {cuts}"


@pytest.mark.parametrize("columns", [3, 1 << 16])
def test_every_tensor_of_a_value_that_was_sent_lies_where_torch_puts_tensors(columns: int) -> None:
    """The positions, or a mask, come first; the large one is in memory that is used again."""
    parts = [torch.arange(9), torch.ones(9, 5, dtype=torch.bool), torch.randn(9, columns), torch.randn(3).bfloat16()]
    found = by_the_wire(Value(tuple((f"x{i}", part) for i, part in enumerate(parts))))
    tensors = [tensor for _, tensor in found.tensors]
    assert all(map(torch.equal, tensors, parts))
    assert are_where_torch_puts_them(tensors)


class Looking(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        gradients = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        assert are_where_torch_puts_them(gradients)
        return super().step(closure)


def test_an_optimizer_is_given_gradients_that_lie_where_those_of_other_holders_do() -> None:
    """One that multiplies them, as Muon does, would come to other bits on the holder that has added them up."""
    module = nn.Linear(3, 2)
    layer = HeldLayer(0, module, Looking(module.parameters(), lr=0.1), CPU)
    memory = torch.randn(9)
    for _ in range(2):
        layer.apply(Value((("grad.weight", memory[1:7].view(2, 3)), ("grad.bias", memory[7:]))), 1.0, 0)


class OfNumpy(nn.Module):
    """Its parameter and its buffer are views of numpy's memory."""

    def __init__(self) -> None:
        super().__init__()
        table = torch.from_numpy(np.arange(33, dtype=np.float32))
        self.weight = nn.Parameter(table[1:17].view(2, 8))
        self.register_buffer("mask", table[17:])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight.T


def of_numpy() -> list[Any]:
    return [OfNumpy]


def test_a_layer_is_built_where_those_of_other_processes_lie() -> None:
    module = HeldLayer.build(ModelSource(job_of_parts(__name__, "of_numpy", "of_rows")), 0, CPU).module
    assert are_where_torch_puts_them([*module.parameters(), *module.buffers()])
    assert torch.equal(module.get_buffer("mask"), torch.arange(17.0, 33.0))


def test_a_graph_that_is_kept_in_the_hosts_memory_keeps_a_views_address() -> None:
    whole = torch.randn(4, 18, requires_grad=True)
    device = Late()
    with Keeping(device):
        part = (whole * 1.0)[:, 1:]
        y = part @ part.T
    device.copied().wait()
    saved = y.grad_fn._saved_self  # type: ignore[union-attr]
    assert math.gcd(saved.data_ptr(), ALIGNMENT) == math.gcd(part.data_ptr(), ALIGNMENT) < ALIGNMENT
