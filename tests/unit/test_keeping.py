"""Graphs that nobody runs backward are freed when they are dropped."""

import weakref
from typing import Any

import pytest
import torch
from torch.nn import functional

from culm.stage_server.compute.device import CPU
from culm.stage_server.compute.keeping import Keeping


class Mark:
    """Lives as long as the graph."""


class Marked(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: torch.Tensor, mark: Mark) -> torch.Tensor:
        context.mark = mark
        return x * 2.0

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0] * 2.0, None


def test_a_graph_that_saves_its_own_output_goes_with_it() -> None:
    """As a softmax does. Of redundant forwards hardly any graph is run backward."""
    mark = Mark()
    seen = weakref.ref(mark)
    x = torch.randn(3, 4, requires_grad=True)
    with Keeping(CPU) as keeping:
        y = functional.softmax(torch.tanh(Marked.apply(x, mark)), 1)  # type: ignore[no-untyped-call]
    assert keeping.size > 0
    del y, mark
    assert seen() is None


def test_a_saved_tensor_that_was_written_is_told() -> None:
    """torch tells it of tensors that it keeps itself; here the backward went on with the newer numbers."""
    x, factor = torch.ones(3, requires_grad=True), torch.full((3,), 2.0)
    with Keeping(CPU):
        y = x * factor
    factor.mul_(5.0)
    with pytest.raises(RuntimeError, match="has been modified by an inplace operation"):
        y.sum().backward()  # type: ignore[no-untyped-call]


def test_what_is_saved_after_it_was_written_is_taken() -> None:
    x = torch.ones(3, requires_grad=True)
    with Keeping(CPU):
        y = (functional.relu((x * 2.0).add_(1.0), inplace=True) * 1.0).exp_()
    y.sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    assert torch.equal(x.grad, 2.0 * torch.full((3,), 3.0).exp())
