"""Small jobs that do what they should not: models, losses and data for the tests of this folder."""

import functools
import math
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

WIDTH, CLASSES, SAMPLES = 8, 4, 64


def samples() -> TensorDataset:
    """x: [64, 8]; targets: [64] of four classes."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(SAMPLES, WIDTH, generator=generator)
    return TensorDataset(x, torch.randint(0, CLASSES, (SAMPLES,), generator=generator))


def poisoned(at: int = 20, value: float = float("nan")) -> TensorDataset:
    """As ``samples``, with one element of one sample that is not finite."""
    data = samples()
    data.tensors[0][at, 0] = value
    return data


class Block(nn.Sequential):
    """Linear and BatchNorm: weights, and buffers that every forward changes. x: [B, 8]."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Tanh())


def blocks(count: int = 3) -> list[object]:
    """``count`` blocks and a head."""
    return [*[Block] * count, lambda: nn.Linear(WIDTH, CLASSES)]


def with_hook(register: str) -> nn.Sequential:
    """One layer has a hook on its weight. ``register``: the method that takes it."""
    kept = nn.Linear(WIDTH, WIDTH)
    getattr(kept.weight, register)(lambda _: None)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), kept, nn.Linear(WIDTH, CLASSES))


class Head(nn.Module):
    """A loss with a product of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(CLASSES, CLASSES)

    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.head(output), target)


def begun_with_zero(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """As scripts do that add up several losses."""
    return torch.zeros((), requires_grad=True) + nn.functional.cross_entropy(output, target)


with_parameters = Head()
with_frozen_ones = Head().requires_grad_(False)


def with_files(weights: str, other: list[object]) -> list[object]:
    """As ``blocks``; the arguments name files."""
    return blocks()


class Overflow(torch.autograd.Function):
    """The identity, with an infinite gradient where an element of ``x`` is above ``bound``."""

    @staticmethod
    def forward(ctx: Any, scaled: torch.Tensor, x: torch.Tensor, bound: float) -> torch.Tensor:
        ctx.factor = math.inf if float(x.max()) > bound else 1.0
        return scaled.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return gradients[0] * ctx.factor, None, None


class Explodes(nn.Module):
    """Scales x: [B, 8]; the gradient of its weight is infinite in some steps."""

    def __init__(self, bound: float) -> None:
        super().__init__()
        self.bound = bound
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scaled: torch.Tensor = Overflow.apply(x * self.weight, x, self.bound)  # type: ignore[no-untyped-call]
        return scaled


def exploding(bound: float) -> list[object]:
    """The losses stay finite, gradients do not."""
    return [lambda: Explodes(bound), Block, Block, lambda: nn.Linear(WIDTH, CLASSES)]


# ---- layers that share what each should have of its own --------------------------------------------------------------

MASK = torch.tril(torch.ones(WIDTH, WIDTH))


class Tied(nn.Module):
    """Multiplies x: [B, 8] by a weight that it is given."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


class Masked(nn.Module):
    """A linear layer under a mask that the whole program shares. x: [B, 8]."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("mask", MASK)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.inner(x) @ self.get_buffer("mask")
        return y


class Slot(nn.Module):
    """Keeps a buffer that is a view of another's. x: [B, 8]."""

    def __init__(self, memory: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("slot", memory)
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.inner(x)
        return y


def head() -> nn.Module:
    return nn.Linear(WIDTH, CLASSES)


def sharing(how: str) -> list[Any]:
    """Two layers that share something, in several ways, and a head."""
    if how == "a closure":
        weight = nn.Parameter(torch.randn(WIDTH, WIDTH))
        return [lambda: Tied(weight), lambda: Tied(weight), head]
    if how == "a view in a closure":
        weights = torch.randn(2, WIDTH, WIDTH)
        return [lambda: Tied(nn.Parameter(weights[0])), lambda: Tied(nn.Parameter(weights[1])), head]
    if how == "a buffer of the module":
        return [Masked, Masked, head]
    if how == "one module":
        one = nn.Linear(WIDTH, WIDTH)
        return [lambda: one, lambda: one, head]
    if how == "a cache":
        cached = functools.cache(lambda: nn.Linear(WIDTH, WIDTH))
        return [cached, cached, head]
    if how == "an array":
        array = np.ones((WIDTH, WIDTH), np.float32)
        return [lambda: Tied(nn.Parameter(torch.from_numpy(array)))] * 2 + [head]
    if how == "modules with one buffer":
        memory = torch.zeros(WIDTH)
        return [Slot(memory), Slot(memory), head()]
    if how == "modules with views":
        memory = torch.zeros(WIDTH)
        return [Slot(memory[:6]), Slot(memory[4:]), head()]
    raise ValueError(how)


def alone() -> list[Any]:
    """What looks like sharing and is none: copies, disjoint views, one constructor for two layers, one ReLU."""
    weight, memory, relu = torch.randn(WIDTH, WIDTH), torch.zeros(2, WIDTH), nn.ReLU()
    copies: list[Any] = [lambda: Tied(nn.Parameter(weight.clone()))] * 2
    return [*copies, Slot(memory[0]), Slot(memory[1]), relu, relu, Block, Block, nn.Linear(WIDTH, CLASSES)]


def drawn() -> list[Any]:
    """Another weight whenever the layer is built."""
    return [lambda: Tied(nn.Parameter(torch.tensor(np.random.default_rng().normal(size=(8, 8))).float())), head]


# ---- layers and losses through which no gradient goes ----------------------------------------------------------------


class Detach(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.detach()


class Argmax(nn.Module):
    """One-hot of the greatest. x: [B, 8]."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.one_hot(x.argmax(1), WIDTH).float()


class Item(nn.Module):
    """Scales by numbers that it takes out of the graph. x: [B, 8]."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            x = x / x.norm()
        y: torch.Tensor = self.inner(x)
        return y


class Skips(nn.Module):
    """Leaves itself out now and then, as LayerDrop does."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if float(torch.rand(())) < 0.5 else x + self.inner(x)


def cut(kind: str) -> list[Any]:
    """A layer in the middle that passes no gradient on."""
    made: dict[str, Any] = {"detach": Detach, "argmax": Argmax, "no_grad": Item}
    return [Block, made[kind], head]


def frozen(module: nn.Module) -> nn.Module:
    return module.requires_grad_(False)


def legitimate() -> list[Any]:
    """Frozen layers before what cuts the graph, layers that are left out by chance, an in-place ReLU."""
    inplace = functools.partial(nn.ReLU, inplace=True)
    return [lambda: frozen(nn.Linear(WIDTH, WIDTH)), Detach, Skips, inplace, Block, Skips, head]


def all_frozen() -> list[Any]:
    return [lambda: frozen(nn.Linear(WIDTH, WIDTH)), lambda: frozen(nn.Linear(WIDTH, CLASSES))]


def loss_without_graph(y: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(y.detach(), target)


def loss_of_target(y: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return torch.ones((), requires_grad=True) * target.float().mean()


def integer_loss(y: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (y.argmax(1) != target).sum()


def loss_by_sample(y: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(y, target, reduction="none")


def loss_as_a_float(y: torch.Tensor, target: torch.Tensor) -> float:
    return nn.functional.cross_entropy(y, target).item()


def ready_made() -> list[object]:
    """As ``blocks``, as modules in place of constructors."""
    return [*(Block() for _ in range(3)), nn.Linear(WIDTH, CLASSES)]


def in_place() -> list[object]:
    """Layers that write into their input."""
    return [nn.ReLU(inplace=True), lambda: nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True), nn.Linear(WIDTH, CLASSES)]


def misfit_inside() -> list[object]:
    """Its second layer does not fit the first."""
    return [Block, lambda: nn.Linear(WIDTH + 1, WIDTH), lambda: nn.Linear(WIDTH, CLASSES)]


def normed() -> list[object]:
    """A ready-made layer that torch cannot copy."""
    return [nn.utils.weight_norm(nn.Linear(WIDTH, WIDTH)), nn.Linear(WIDTH, CLASSES)]
