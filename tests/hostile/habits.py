"""Layers that do what no other node could do again: they write, count, draw and leave things behind."""

import functools
import itertools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

WIDTH, CLASSES = 8, 4


def numbers() -> TensorDataset:
    """x: [60, 8] in [0, 10), targets: [60] of four classes."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randint(0, 10, (60, WIDTH), generator=generator)
    return TensorDataset(x, torch.randint(0, CLASSES, (60,), generator=generator))


class Tokens(nn.Module):
    """Means of vectors. x: [B, 8] whole numbers, to [B, 8]."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.table = nn.Embedding(10, WIDTH, **options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.table(x).mean(1)
        return y


class Inner(nn.Module):
    """A linear layer, to be given a habit. x: [B, 8]."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def plain(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.inner(x)
        return y

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.plain(x)


# ---- parameters that a forward changes -------------------------------------------------------------------------------


class Clamped(Inner):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.inner.weight.data.clamp_(-0.1, 0.1)
        return self.plain(x)


class Codebook(Inner):
    """Keeps a mean of its inputs where only an optimizer may write."""

    def __init__(self) -> None:
        super().__init__()
        self.codes = nn.Parameter(torch.zeros(WIDTH), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.codes.data = 0.9 * self.codes.data + 0.1 * x.detach().mean(0)
        return self.plain(x) + self.codes


class Renewed(Inner):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.inner.bias = nn.Parameter(self.inner.bias.detach().clone())
        return self.plain(x)


class StepsInBackward(Inner):
    def __init__(self) -> None:
        super().__init__()
        self.inner.weight.register_post_accumulate_grad_hook(self.step)  # type: ignore[no-untyped-call]

    def step(self, parameter: torch.Tensor) -> None:
        with torch.no_grad():
            parameter.sub_(0.1)


class Later(Inner):
    """Behaves at first."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        with torch.no_grad():
            if self.calls > 2:
                self.inner.weight.clamp_(-0.1, 0.1)
        return self.plain(x)


# ---- what Python keeps -----------------------------------------------------------------------------------------------


class Counter(Inner):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.plain(x) / self.calls


class LateCounter(Counter):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.plain(x) if self.calls < 1000 else x


class Listing(Inner):
    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, list[float]] = {"means": []}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen["means"].append(float(x.detach().mean()))
        return self.plain(x)


class Average(Inner):
    """Its mean is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = torch.zeros(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return self.plain(x) - self.mean


class FirstInput(Inner):
    """Sets itself up by the first input that it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.scale: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.scale is None:
            self.scale = x.detach().mean(0)
        return self.plain(x) * self.scale


class OwnGenerator(Inner):
    def __init__(self) -> None:
        super().__init__()
        self.generator = np.random.default_rng(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.plain(x) * float(self.generator.random())


class CountsBackwards(Inner):
    def __init__(self) -> None:
        super().__init__()
        self.held = itertools.count(1)  # no plain data

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.plain(x)
        y.register_hook(lambda gradient: gradient / next(self.held))  # type: ignore[no-untyped-call]
        return y


NUMBER = itertools.count()


class Numbered(Inner):
    """Knows how many were built before it."""

    def __init__(self) -> None:
        super().__init__()
        self.number = next(NUMBER)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.plain(x) + self.number


LEFT: dict[str, torch.Tensor] = {}


class Leaves(Inner):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        LEFT["mean"] = x.detach().mean()
        return self.plain(x)


class Finds(Inner):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.plain(x) * LEFT["mean"]


class First(nn.Module):
    """Takes the first of several tensors alone."""

    def forward(self, given: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return given[0]


class Workspace(Inner):
    """Hands on, beside its output, memory that each forward fills again."""

    def __init__(self) -> None:
        super().__init__()
        self.work = torch.zeros(WIDTH)

    def forward(self, x: torch.Tensor) -> Any:
        torch.mul(x.detach()[0], 2.0, out=self.work)
        return self.plain(x), self.work


# ---- buffers ---------------------------------------------------------------------------------------------------------


class Filled(Inner):
    """Has a buffer that its first forward makes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kept = torch.ones(WIDTH)
        return self.plain(x) * self.kept


class Grows(Inner):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kept = torch.ones(WIDTH)
        return self.plain(x) * self.kept


# ---- random numbers in a backward ------------------------------------------------------------------------------------

DRAWS: dict[str, Callable[[], Any]] = {
    "torch's": lambda: torch.rand(()),
    "Python's": random.random,
    "numpy's": np.random.random,
}


class Noisy(Inner):
    """Adds noise to a gradient. ``whose``: the generator."""

    def __init__(self, whose: str) -> None:
        super().__init__()
        self.draw = DRAWS[whose]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.plain(x)
        y.register_hook(lambda gradient: gradient * (1.0 + float(self.draw())))  # type: ignore[no-untyped-call]
        return y


class Recomputed(Inner):
    """Runs again within the backward, with its own dropout or with numpy's numbers."""

    def __init__(self, dropout: bool, reentrant: bool = False) -> None:
        super().__init__()
        self.dropout, self.reentrant = dropout, reentrant

    def noise(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(self.plain(x), 0.5) if self.dropout else self.plain(x * float(np.random.random()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = checkpoint(self.noise, x, use_reentrant=self.reentrant)
        return y + x


# ---- models ----------------------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[list[Any], str]] = {
    "a norm's bound": ([functools.partial(Tokens, max_norm=0.5)], r"layer 0 \(Tokens\) changes its parameter table.w"),
    "a clamp": ([Tokens, Clamped], r"layer 1 \(Clamped\) changes its parameter inner.weight itself"),
    "a codebook": ([Tokens, Codebook], r"layer 1 \(Codebook\) changes its parameter codes itself"),
    "another parameter": ([Tokens, Renewed], r"layer 1 \(Renewed\) changes its parameter inner.bias itself"),
    "a step in a backward": ([Tokens, StepsInBackward], r"layer 1 .* changes its parameter inner.weight itself"),
    "a sparse gradient": (
        [functools.partial(Tokens, sparse=True)],
        r"gradient of table.weight of layer 0 .* sparse",
    ),
    "a count": ([Tokens, Counter], r"layer 1 \(Counter\) gives another output when it is run again"),
    "a count that acts late": ([Tokens, LateCounter], r"layer 1 \(LateCounter\) keeps calls as a plain attribute"),
    "a list": ([Tokens, Listing], r"layer 1 \(Listing\) keeps seen as a plain attr.* outside the module"),
    "a mean": ([Tokens, Average], r"layer 1 \(Average\) gives another output"),
    "the first input": ([Tokens, FirstInput], r"layer 1 \(FirstInput\) gives another output"),
    "a generator of its own": ([Tokens, OwnGenerator], r"layer 1 \(OwnGenerator\) gives another output"),
    "a count of backwards": ([Tokens, CountsBackwards], r"layer 1 .* gives another gradient of its input"),
    "a number at construction": ([Tokens, Numbered], r"layer 1 \(Numbered\) gives another output"),
    "a global": ([Tokens, Leaves, Inner, Finds], r"layer 3 \(Finds\) gives another output"),
    "a workspace": ([Tokens, Workspace, First], r"the next forward of layer 1 \(Workspace\) writes over what it has"),
    "a buffer that is made": ([Tokens, Filled], r"a forward of layer 1 \(Filled\) makes its buffer kept anew"),
    "a buffer that grows": ([Tokens, Grows], r"a forward of layer 1 \(Grows\) makes its buffer kept anew"),
    **{
        f"{whose} numbers": (
            [Tokens, functools.partial(Noisy, whose)],
            f"backward of layer 1 .* numbers from {whose} g",
        )
        for whose in DRAWS
    },
    "numpy's under checkpoint()": (
        [Tokens, functools.partial(Recomputed, False)],
        r"backward of layer 1 .* numpy's gen",
    ),
}


def head() -> nn.Module:
    return nn.Linear(WIDTH, CLASSES)


def refused(name: str) -> list[Any]:
    return [*REFUSED[name][0], head]


def late() -> list[Any]:
    return [Tokens, Later, head]
