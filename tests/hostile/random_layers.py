"""Layers with parameters to draw from: usual ones, and what is odd and yet allowed."""

from collections.abc import Callable
from random import Random
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

from tests.hostile.random_functions import Made, activation, view

WIDTHS = (1, 3, 4, 5, 7, 8, 16, 17, 33)


def linear(draw: Random, x: Tensor) -> nn.Module:
    return nn.Linear(x.shape[-1], draw.choice(WIDTHS), bias=draw.random() < 0.7)


def square(draw: Random, x: Tensor) -> nn.Module:
    return nn.Linear(x.shape[-1], x.shape[-1], bias=draw.random() < 0.7)


def convolution(draw: Random, x: Tensor) -> nn.Module:
    channels, wide = x.shape[1], draw.choice((1, 2, 3, 5))
    kinds: dict[int, Any] = {3: nn.Conv1d, 4: nn.Conv2d, 5: nn.Conv3d}
    if draw.random() < 0.2:
        kinds = {3: nn.ConvTranspose1d, 4: nn.ConvTranspose2d}
    groups = channels if draw.random() < 0.2 else 1
    layer: nn.Module = kinds[x.dim()](channels, wide * groups, draw.choice((1, 2, 3)), padding=1, groups=groups)
    if x.dim() == 4 and draw.random() < 0.4:
        layer = nn.Sequential(layer, Made(lambda y: y.to(memory_format=torch.channels_last)))
    return layer


def norm(draw: Random, x: Tensor) -> nn.Module:
    kinds: list[Callable[[], nn.Module]] = [
        lambda: nn.LayerNorm(x.shape[-1]),
        lambda: nn.RMSNorm(x.shape[-1]),
        lambda: nn.GroupNorm(draw.choice((1, x.shape[1])), x.shape[1]),
        lambda: nn.BatchNorm2d(x.shape[1]) if x.dim() == 4 else nn.BatchNorm1d(x.shape[1]),
        lambda: nn.InstanceNorm1d(x.shape[1], affine=True, track_running_stats=True),
        lambda: nn.BatchNorm1d(x.shape[1], momentum=None, affine=False),
    ]
    return draw.choice(kinds)()


class First(nn.Module):
    """Of a layer that gives several things, the first; or all tensors among them."""

    def __init__(self, inner: nn.Module, whole: bool) -> None:
        super().__init__()
        self.inner, self.whole = inner, whole

    def forward(self, x: Tensor) -> Any:
        y, rest = self.inner(x)
        return (y, *(rest if isinstance(rest, tuple) else [rest])) if self.whole else y


def recurrent(draw: Random, x: Tensor) -> nn.Module:
    kind: Any = draw.choice((nn.GRU, nn.LSTM, nn.RNN))
    options = {"batch_first": draw.random() < 0.7, "bidirectional": draw.random() < 0.3}
    _, _, width = x.shape
    return First(kind(width, draw.choice((1, 3, 5, 8)), **options), draw.random() < 0.4)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, mask: str) -> None:
        super().__init__()
        self.inner, self.mask = nn.MultiheadAttention(width, heads, batch_first=True), mask

    def forward(self, x: Tensor) -> Tensor:
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        masks = {"bool": later, "float": torch.zeros(later.shape, dtype=x.dtype).masked_fill(later, float("-inf"))}
        y: Tensor = self.inner(x, x, x, attn_mask=masks.get(self.mask), need_weights=self.mask == "float")[0]
        return y


class Scaled(nn.Module):
    """scaled_dot_product_attention, of views of one projection."""

    def __init__(self, width: int, mask: str) -> None:
        super().__init__()
        self.inner, self.mask = nn.Linear(width, 3 * width), mask

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.inner(x).chunk(3, -1)
        mask = torch.ones(x.shape[-2], x.shape[-2], dtype=torch.bool).tril() if self.mask == "bool" else None
        return F.scaled_dot_product_attention(q, k, v, mask, is_causal=self.mask == "causal")


def attention(draw: Random, x: Tensor) -> nn.Module:
    if draw.random() < 0.5:
        return Scaled(x.shape[-1], draw.choice(("none", "bool", "causal")))
    return Attention(x.shape[-1], draw.choice((1, 2)), draw.choice(("none", "bool", "float")))


def embedding(draw: Random, x: Tensor) -> nn.Module:
    """Of whole numbers, or of signs."""
    rows = Made(lambda y: y.long().remainder(5) if not y.is_floating_point() else (y > 0).long())
    pads = 1 if draw.random() < 0.2 else None
    return nn.Sequential(rows, nn.Embedding(5, draw.choice((3, 5, 8)), padding_idx=pads))


class Table(nn.Module):
    """Adds a parameter by views alone, as positions are added."""

    def __init__(self, width: int, scale: float) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(width))
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return x + (self.table if self.scale == 1.0 else self.table * self.scale)


def table(draw: Random, x: Tensor) -> nn.Module:
    return Table(x.shape[-1], draw.choice((1.0, 1.0, 0.5)))


class Gives(nn.Module):
    """Hands on, beside its input, a parameter, views of it, or a buffer."""

    def __init__(self, width: int, what: str) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(4, width))
        self.register_buffer("mask", torch.ones(width))
        self.what = what

    def forward(self, x: Tensor) -> Any:
        y = x * self.table[0] if x.is_floating_point() else x
        views = {"view": self.table[1:], "column": self.table[:, 0], "mean": self.table.mean(0), "all": self.table}
        return y, views.get(self.what, self.get_buffer("mask"))


def gives(draw: Random, x: Tensor) -> nn.Module:
    return Gives(x.shape[-1], draw.choice(("view", "column", "mean", "all", "buffer")))


class Twice(nn.Module):
    """Uses its parameters twice."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(torch.tanh(self.inner(x)))
        return y


class Unused(nn.Module):
    """Has a parameter that nothing uses, or that is used now and then."""

    def __init__(self, inner: nn.Module, width: int, chance: float) -> None:
        super().__init__()
        self.inner, self.chance = inner, chance
        self.unused = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Any:
        return self.inner(x * self.unused if torch.rand(()) < self.chance else x)


class Dtype(nn.Module):
    """Computes in another dtype, and may hand on what has it."""

    def __init__(self, inner: nn.Module, dtype: torch.dtype, back: bool) -> None:
        super().__init__()
        self.inner, self.dtype, self.back = inner.to(dtype), dtype, back

    def forward(self, x: Tensor) -> Any:
        y = self.inner(x.to(self.dtype))
        return y.to(x.dtype) if self.back else y


def other_dtype(draw: Random, x: Tensor) -> nn.Module:
    dtype = draw.choice((torch.float64, torch.bfloat16, torch.float16, torch.float32))
    return Dtype(draw.choice((linear, square, norm))(draw, x), dtype, draw.random() < 0.5)


class Mixed(nn.Module):
    """Runs within autocast of its own."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.inner(x)


class Checkpointed(nn.Module):
    def __init__(self, inner: nn.Module, reentrant: bool) -> None:
        super().__init__()
        self.inner, self.reentrant = inner, reentrant

    def forward(self, x: Tensor) -> Any:
        return checkpoint(self.inner, x, use_reentrant=self.reentrant)


def parametrized(draw: Random, x: Tensor) -> nn.Module:
    kinds: Any = (nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.spectral_norm)
    layer: nn.Module = draw.choice(kinds)(linear(draw, x))
    return layer


def within(draw: Random, x: Tensor) -> nn.Module:
    """A layer within another that runs it in some way."""
    inner = draw.choice((linear, square, convolution, norm, attention, activation, view))(draw, x)
    kinds: list[Callable[[], nn.Module]] = [
        lambda: Twice(square(draw, x)),
        lambda: Unused(inner, x.shape[-1], draw.choice((0.0, 0.5))),
        lambda: Mixed(inner),
        lambda: Checkpointed(nn.Sequential(inner, nn.Dropout(0.2)), draw.random() < 0.3),
        lambda: inner.requires_grad_(False),
        lambda: Mixed(nn.Sequential(inner, activation(draw, x))),
    ]
    return draw.choice(kinds)()
