"""More layers to draw from: own Functions, hooks, buffers that change, and layers that take several tensors."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tests.hostile.random_functions import Made
from tests.hostile.random_layers import linear

# ---- own Functions ---------------------------------------------------------------------------------------------------


class Exponential(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = (x * 0.3).exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * ctx.saved_tensors[0] * 0.3  # type: ignore[no-any-return]


class Halved(torch.autograd.Function):
    """Writes into its input, and says so."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(0.5)

    @staticmethod
    def backward(_: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * 0.5


class OddGradient(torch.autograd.Function):
    """Its gradient lies in memory in another way than its input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kind: str) -> Tensor:
        ctx.kind = kind
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (g,) = gradients
        if ctx.kind == "transposed":
            return g.transpose(0, -1).contiguous().transpose(0, -1), None
        if ctx.kind == "shifted":
            return torch.cat([g.new_ones(1), g.flatten()])[1:].view(g.shape), None
        if ctx.kind == "expanded":
            return g.mean().expand(g.shape), None
        return g, None


class OfTwo(torch.autograd.Function):
    """Two outputs, of which the second one's gradient may be none."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        return x * 0.5, x * 2.0

    @staticmethod
    def backward(_: Any, *gradients: Tensor | None) -> Tensor | None:
        one, other = gradients
        if one is None:
            return other * 2.0 if other is not None else None
        return one * 0.5 if other is None else one * 0.5 + other * 2.0


FUNCTIONS: tuple[Callable[[Tensor], Any], ...] = (
    lambda x: Exponential.apply(x),  # type: ignore[no-untyped-call]
    lambda x: Halved.apply(x),  # type: ignore[no-untyped-call]
    lambda x: OddGradient.apply(x, "transposed"),  # type: ignore[no-untyped-call]
    lambda x: OddGradient.apply(x, "shifted"),  # type: ignore[no-untyped-call]
    lambda x: OddGradient.apply(x, "expanded"),  # type: ignore[no-untyped-call]
    lambda x: OddGradient.apply(x, "same"),  # type: ignore[no-untyped-call]
    lambda x: OfTwo.apply(x),  # type: ignore[no-untyped-call]
)


def own_function(draw: Random, x: Tensor) -> nn.Module:
    return Made(draw.choice(FUNCTIONS))


# ---- hooks -----------------------------------------------------------------------------------------------------------


def _halved(_: nn.Module, given: Any, __: Any) -> Any:
    return tuple(gradient * 0.5 for gradient in given if gradient is not None)


class Hooked(nn.Module):
    """Hooks that change gradients: of its input, of its output, or of a parameter."""

    def __init__(self, inner: nn.Module, where: str) -> None:
        super().__init__()
        self.inner, self.where = inner, where
        if where == "parameter":
            for parameter in inner.parameters():
                parameter.register_hook(lambda g: g * 0.5)  # type: ignore[no-untyped-call]
        if where == "module":
            inner.register_full_backward_hook(_halved)

    def forward(self, x: Tensor) -> Any:
        if self.where == "input" and x.requires_grad:
            x = x.view_as(x)  # an earlier layer may use that very tensor too, whose hook a cut would keep from its part
            x.register_hook(lambda g: g * 0.5)  # type: ignore[no-untyped-call]
        y = self.inner(x)
        if self.where == "output" and y.requires_grad:
            y.register_hook(lambda g: g * 0.5)
        if self.where == "written" and y.requires_grad:
            y.register_hook(lambda g: g.mul_(0.5))
        return y


def hooked(draw: Random, x: Tensor) -> nn.Module:
    inner = linear(draw, x) if draw.random() < 0.7 else Made(lambda y: y * 0.5)
    return Hooked(inner, draw.choice(("input", "output", "parameter", "module", "written")))


# ---- buffers ---------------------------------------------------------------------------------------------------------


class Running(nn.Module):
    """A running mean, of which each forward takes note in some way."""

    def __init__(self, width: int, way: str) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.way = way

    def forward(self, x: Tensor) -> Any:
        mean = self.get_buffer("mean")
        with torch.no_grad():
            new = x.detach().float().mean(tuple(range(x.dim() - 1)))
            if self.way == "before":
                mean.lerp_(new, 0.3)
            if self.way == "replaced":
                self.mean = mean + new * 0.1
            self.get_buffer("count").add_(1)
        y = x - self.get_buffer("mean")
        if self.way == "after":
            mean.add_(new * 0.1)
        if self.way == "late" and int(self.get_buffer("count")) % 2:
            mean.copy_(new)
        return (y, self.get_buffer("mean")) if self.way == "given" else y


def running(draw: Random, x: Tensor) -> nn.Module:
    return Running(x.shape[-1], draw.choice(("before", "after", "replaced", "late", "given")))


# ---- several tensors -------------------------------------------------------------------------------------------------


def _like(x: Tensor, other: Tensor) -> Tensor:
    """Real numbers of the first one's dtype."""
    y = other.abs() if other.is_complex() else other
    return y.to(x.dtype if x.is_floating_point() else torch.float32)


def _write_both(x: Tensor, other: Tensor) -> Any:
    return x.mul_(0.5), other.add_(1)


JOINS: tuple[Callable[[Tensor, Tensor], Any], ...] = (
    lambda x, o: x + _like(x, o).mean(),
    lambda x, o: x * _like(x, o).sum().tanh(),
    lambda x, o: x + o,
    lambda x, o: x * o,
    lambda x, o: x.add_(o),
    lambda x, o: x.mul_(o.mean() if o.is_floating_point() else 0.5),
    lambda x, o: x.masked_fill(o, 0.0),
    lambda x, o: torch.where(o, x, 0.1),
    lambda x, o: x.masked_fill_(o, 0.0),
    lambda x, o: x[..., o],
    lambda x, o: x.flatten(1)[:, o.flatten() % 3],
    lambda x, o: x.index_select(-1, o.flatten() % x.shape[-1]),
    lambda x, o: x @ o.transpose(-1, -2),
    lambda x, o: x @ o,
    lambda x, o: torch.cat([x, o], -1),
    lambda x, o: torch.cat([x.flatten(1), o.flatten(1)], 1),
    lambda x, o: torch.cat([x.flatten(), _like(x, o).flatten()])[1:].unsqueeze(0),
    lambda x, o: torch.outer(x.flatten()[:5], _like(x, o).flatten()[:7]),
    lambda x, o: (o, x),
    lambda x, o: (x, o, x),
    lambda x, o: (x[:, 1:], o),
    lambda x, o: (x * 0.5, o.detach()),
    lambda x, o: (x.relu_(), o),
    lambda x, o: (x, o * 2 if o.is_floating_point() else o),
    lambda x, o: nn.functional.embedding(o.long() % 3, x.flatten(0, -2)[:3]),
    lambda x, o: torch.addmm(x, x, o),
    lambda x, o: torch.complex(x, o),
    _write_both,
)


class Pair(NamedTuple):
    one: Any
    rest: Any


@dataclass
class Hidden:
    x: Any
    rest: Any
    scale: float = 0.5


CONTAINERS: tuple[Callable[[list[Tensor]], Any], ...] = (
    lambda t: t[0] if len(t) == 1 else tuple(t),
    lambda t: t[0] if len(t) == 1 else list(t),
    lambda t: {f"x{i}": each for i, each in enumerate(t)},
    lambda t: OrderedDict((f"x{i}", each) for i, each in enumerate(t)),
    lambda t: (t[0], {"rest": t[1:], "none": None}, "word", 3),
    lambda t: [t[0], [t[0], (*t[1:], None)]],
    lambda t: Pair(t[0], t[1:]),
    lambda t: Hidden(t[-1], t[:-1]),
)
