"""Parameters train wherever the model is cut: on whatever ways gradients go, and where they end."""

from itertools import combinations
from typing import Any, Self

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from culm.oracle.plain_loop import run_plain
from culm.pipeline.errors import JobError
from culm.pipeline.user_code.check import check_job
from culm.pipeline.user_code.model import ModelSource
from tests.hostile.models import Wrapped
from tests.hostile.stages import job_of_parts, train


def dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    return TensorDataset(torch.randn(30, 8, generator=generator), torch.randint(0, 4, (30,), generator=generator))


def linear() -> nn.Module:
    return nn.Linear(8, 8)


def head() -> nn.Module:
    return nn.Linear(8, 4)


def frozen() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh()).requires_grad_(False)


class Encoder(nn.TransformerEncoderLayer):
    """Frozen and never in training mode. torch has another way for it, unless its input requires a gradient."""

    def __init__(self) -> None:
        super().__init__(32, 4, 64, batch_first=True)
        self.requires_grad_(False)

    def train(self, mode: bool = True) -> Self:
        return super().train(False)


class Probe(nn.Linear):
    """Trains on what the layers before it give, and passes nothing back."""

    def __init__(self) -> None:
        super().__init__(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.detach())


class Now(nn.Linear):
    """Passes a gradient back by chance."""

    def __init__(self) -> None:
        super().__init__(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.detach() if torch.rand(()) < 0.5 else x)


class Stop(torch.autograd.Function):
    """Gives no gradient by chance, though its output has a graph."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.passes = bool(torch.rand(()) < 0.5)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor | None:
        return gradients[0] if ctx.passes else None


class Stopping(nn.Linear):
    def __init__(self) -> None:
        super().__init__(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(Stop.apply(x))  # type: ignore[no-untyped-call]


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ self.weight.real) + (x @ self.weight.imag) * 1j


class Real(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = Stop.apply(x)  # type: ignore[no-untyped-call]
        return y.real


class Branches(nn.Module):
    """One of two branches is detached."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = torch.tanh(self.one(x)) + self.other(torch.tanh(x.detach()))
        return y


class Prompt(nn.Module):
    """Its output is its parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.randn(3, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.values


class Tied(nn.Module):
    """Uses one weight twice, with a bias of its own each time; torch sees the biases first."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Parameter(torch.randn(8)), nn.Parameter(torch.randn(8))
        self.weight = nn.Parameter(torch.randn(8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(nn.functional.linear(x, self.weight, self.one))
        return nn.functional.linear(hidden, self.weight.t(), self.other)


class Added(Tied):
    """Keeps nothing for its backward, so that nothing is missed where a backward goes twice."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x + (self.one + self.weight[0])) + (self.other + self.weight[0])


class Unrolled(Tied):
    """Between two uses of a weight there is another one's."""

    def __init__(self) -> None:
        super().__init__()
        self.between = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            x = torch.tanh(self.between(super().forward(x))) + x
        return x


class Scaled(nn.Module):
    """A hook changes the gradient of what is between its parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.one(x)
        if hidden.requires_grad:
            hidden.register_hook(lambda gradient: gradient * 3.0)  # type: ignore[no-untyped-call]
        y: torch.Tensor = self.other(torch.tanh(hidden))
        return y


class Halved(nn.Linear):
    """Hooks change its gradients before and after they are added up."""

    def __init__(self) -> None:
        super().__init__(8, 8)
        self.weight.register_post_accumulate_grad_hook(_halve)  # type: ignore[no-untyped-call]
        self.bias.register_hook(lambda gradient: gradient * 0.5)  # type: ignore[no-untyped-call]


def _halve(parameter: torch.Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.mul_(0.5)


def frozen_first() -> list[object]:
    return [frozen, frozen, linear, head]


def encoded() -> list[object]:
    def sequences() -> nn.Module:
        return nn.Sequential(nn.Linear(8, 7 * 32), nn.Unflatten(1, (7, 32))).requires_grad_(False)

    return [sequences, Encoder, Encoder, lambda: nn.Sequential(nn.Flatten(), nn.Linear(7 * 32, 4))]


def probed() -> list[object]:
    return [frozen, Probe, linear, head]


def probed_twice() -> list[object]:
    return [frozen, Probe, frozen, linear, head]


def by_chance() -> list[object]:
    return [linear, Now, linear, head]


def stopping() -> list[object]:
    return [linear, Stopping, linear, head]


def stopping_complex() -> list[object]:
    return [linear, Complex, Real, head]


def branches() -> list[object]:
    return [linear, Branches, linear, head]


def prompted() -> list[object]:
    return [frozen, Prompt, linear, head]


def tied() -> list[object]:
    return [linear, Tied, Added, Unrolled, head]


def hooked() -> list[object]:
    return [linear, Scaled, Halved, Scaled, head]


LAYERS = [
    "frozen_first",
    "encoded",
    "probed",
    "probed_twice",
    "by_chance",
    "stopping",
    "stopping_complex",
    "branches",
    "prompted",
    "tied",
    "hooked",
]


@pytest.mark.parametrize("splits", [False, True], ids=["whole", "in two halves"])
@pytest.mark.parametrize("layers", LAYERS)
def test_every_cut_gives_the_plain_loops_bits(layers: str, splits: bool) -> None:
    job = job_of_parts(__name__, layers, "dataset")
    check_job(job)
    plain = run_plain(job).sha256
    inner = range(1, ModelSource(job).layer_count)
    for count in range(len(inner) + 1):
        for cuts in combinations(inner, count):
            assert train(job, cuts, splits) == plain, f"cut at {cuts}"


def severed() -> list[object]:
    return [linear, lambda: Now().requires_grad_(False), lambda: head().requires_grad_(False)]


@pytest.mark.parametrize("cuts", [(), (1,), (2,), (1, 2)], ids=str)
def test_a_microbatch_on_which_nothing_trains_is_refused_as_in_one_process(cuts: tuple[int, ...]) -> None:
    job = job_of_parts(__name__, "severed", "dataset")
    check_job(job)
    with pytest.raises(RuntimeError, match="does not require grad"):
        run_plain(job)
    with pytest.raises(JobError, match="the model's output has no graph"):
        train(job, cuts, False)


class HalvedBack(torch.autograd.Function):
    """Its backward writes into what the next layer's has given."""

    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 0.5

    @staticmethod
    def backward(_: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0].mul_(0.5)


class HalvingHook(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        if y.requires_grad:
            y.register_hook(lambda gradient: gradient.mul_(0.5))  # type: ignore[no-untyped-call]
        return y


def written_by_a_function() -> list[nn.Module]:
    return [linear(), Wrapped(HalvedBack.apply), head()]


def written_by_a_hook() -> list[nn.Module]:
    return [linear(), HalvingHook(8, 8), head()]


@pytest.mark.parametrize("layers", ["written_by_a_function", "written_by_a_hook"])
def test_a_backward_that_writes_into_the_gradient_that_it_is_given_is_refused(layers: str) -> None:
    """A node keeps that for an heir, who would begin with what is left of it."""
    with pytest.raises(JobError, match=r"backward of layer 1 \(\w+\) writes into the gradient that it is given"):
        check_job(job_of_parts(__name__, layers, "dataset"))
