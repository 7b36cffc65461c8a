"""Draws a small job from a seed, and how its run is cut.

A layer is drawn by trial: what raises, or makes large numbers, is drawn again. So no maker has to know which tensors
come to it. The draw is a list of recipes, which make the same layers whenever they are asked.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from culm.pipeline.job import Job, job_of
from culm.pipeline.tensors.pytrees import mapped, tensors_in
from culm.pipeline.user_code.imports import RAISED
from tests.hostile import random_functions as functions
from tests.hostile import random_layers as usual
from tests.hostile import random_oddities as odd
from tests.hostile.cut_runs import Cut, Loss
from tests.hostile.random_settings import CLASSES, Settings, real, samples

LARGEST, MOST_TENSORS = 1500, 5  # elements of a tensor, and tensors between two layers
TRIES = 200
LARGE = 50.0  # a number between two layers


MAKERS: tuple[tuple[functions.Maker, int], ...] = (
    (usual.linear, 6),
    (usual.square, 3),
    (usual.convolution, 2),
    (usual.norm, 3),
    (usual.recurrent, 1),
    (usual.attention, 2),
    (usual.embedding, 1),
    (usual.table, 2),
    (usual.gives, 1),
    (usual.within, 3),
    (usual.other_dtype, 2),
    (usual.parametrized, 1),
    (functions.activation, 6),
    (functions.write, 5),
    (functions.view, 7),
    (functions.function, 4),
    (functions.side, 4),
    (odd.own_function, 2),
    (odd.hooked, 1),
    (odd.running, 1),
)


class Layer(nn.Module):
    """Runs a module on some of the tensors given; the others are handed on beside what it makes."""

    def __init__(self, inner: nn.Module, takes: tuple[int, ...], keeps: tuple[int, ...], container: int) -> None:
        super().__init__()
        self.inner, self.takes, self.keeps, self.container = inner, takes, keeps, container

    def forward(self, given: Any) -> Any:
        tensors = tensors_in(given)
        made = tensors_in(self.inner(*(tensors[i] for i in self.takes)))
        return odd.CONTAINERS[self.container]([*made, *(tensors[i] for i in self.keeps)])


class Head(nn.Module):
    """Scores for the classes, made of all tensors that are given; some of these beside. The scores come first."""

    def __init__(self, sizes: tuple[int, ...], samples: int, way: int) -> None:
        super().__init__()
        self.sizes, self.samples, self.way = sizes, samples, way
        self.inner = nn.ModuleList(nn.Linear(size, samples * CLASSES, bias=False) for size in sizes)
        self.bias = nn.Parameter(torch.zeros(CLASSES))

    def forward(self, given: Any) -> Any:
        tensors = tensors_in(given)
        parts = [
            layer(real(each).flatten().to(self.bias.dtype)) for layer, each in zip(self.inner, tensors, strict=True)
        ]
        scores = torch.stack(parts).sum(0).view(self.samples, CLASSES) + self.bias
        if self.way == 0:
            return scores
        return scores, *(each for each in tensors if each.numel()), scores[:, 1:]


@dataclass(frozen=True)
class Recipe:
    """Of one layer."""

    maker: Callable[[Random, Tensor], nn.Module] | None  # None: the layer joins several tensors
    seed: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    takes: tuple[int, ...]
    keeps: tuple[int, ...]
    container: int
    bare: bool  # the module itself is the layer

    def make(self) -> nn.Module:
        draw = Random(self.seed)
        if self.maker is None:
            inner: nn.Module = functions.Made(draw.choice(odd.JOINS))
        else:
            with torch.device("meta"):
                like = torch.empty(self.shape, dtype=self.dtype)
            inner = self.maker(draw, like)
            if self.dtype.is_floating_point and draw.random() < 0.9 and self.maker is not usual.other_dtype:
                inner = inner.to(self.dtype)
        return inner if self.bare else Layer(inner, self.takes, self.keeps, self.container)


@dataclass(frozen=True)
class HeadRecipe:
    sizes: tuple[int, ...]
    samples: int
    way: int

    def make(self) -> nn.Module:
        return Head(self.sizes, self.samples, self.way)


def _recipe(draw: Random, tensors: list[Tensor], alone: bool) -> Recipe:
    floats = [i for i, each in enumerate(tensors) if each.is_floating_point()]
    place = draw.choice(floats) if floats and draw.random() < 0.85 else draw.randrange(len(tensors))
    takes: tuple[int, ...] = (place,)
    maker: Any = draw.choices([m for m, _ in MAKERS], [weight for _, weight in MAKERS])[0]
    if len(tensors) > 1 and draw.random() < 0.35:
        maker, takes = None, (place, draw.choice([i for i in range(len(tensors)) if i != place]))
    kept = [i for i in range(len(tensors)) if draw.random() < (0.1 if i in takes else 0.8)]
    draw.shuffle(kept)
    return Recipe(
        maker=maker,
        seed=draw.getrandbits(32),
        shape=tuple(tensors[place].shape),
        dtype=tensors[place].dtype,
        takes=takes,
        keeps=tuple(kept),
        container=draw.randrange(len(odd.CONTAINERS)) if draw.random() < 0.5 else 0,
        bare=alone and takes == (0,) and not kept and draw.random() < 0.8,
    )


def _tried(recipe: Recipe, x: Any, half: bool) -> Any | None:
    """What the layer makes of this; None where it is to be drawn again."""
    waiting = [each.detach().requires_grad_(each.requires_grad) for each in tensors_in(x)]
    try:
        layer = recipe.make()
        given = iter([each.clone() for each in waiting])
        y = (layer.bfloat16() if half else layer)(mapped(lambda _: next(given), x))
        found = tensors_in(y)
        numbers = [real(each) for each in found if each.numel()]
        ends = [each.sum() for each in numbers if each.requires_grad]
        wanted = [each for each in waiting if each.requires_grad]
        if wanted and all(each is None for each in torch.autograd.grad(ends, wanted, allow_unused=True)):
            return None
    except RAISED:
        return None
    if len(found) > MOST_TENSORS or any(each.numel() > LARGEST for each in found):
        return None
    fits = all(bool((each.detach().abs() < LARGE).all()) for each in numbers)  # NaN is not
    return y if fits and any(each.is_floating_point() for each in found) else None


@lru_cache(maxsize=8)
def recipes(seed: int) -> tuple[Any, ...]:
    """Of the layers of a job."""
    draw = Random(seed)
    settings = Settings(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        half = settings.precision == "bf16"
        x, _ = settings.collate([samples(seed)[i] for i in range(settings.microbatch)])
        if half:
            x = mapped(lambda each: each.bfloat16() if each.is_floating_point() else each, x)
        found: list[Any] = []
        wanted = draw.randint(2, 9)
        for _ in range(TRIES):
            if len(found) == wanted:
                break
            recipe = _recipe(draw, tensors_in(x), isinstance(x, Tensor))
            y = _tried(recipe, x, half)
            if y is not None:
                found.append(recipe)
                x = y
    sizes = tuple(each.numel() for each in tensors_in(x))
    return (*found, HeadRecipe(sizes, settings.microbatch, draw.choice((0, 0, 0, 1))))


def layers(seed: int) -> list[Any]:
    """Modules, or constructors of them."""
    settings, found = Settings(seed), recipes(seed)
    if settings.constructs:
        return [partial(recipe.make) for recipe in found]
    made = [recipe.make() for recipe in found]
    if settings.ties:
        _tie(made)
    return made


def _tie(made: list[nn.Module]) -> None:
    """Two layers of one shape have one weight."""
    known: dict[Any, tuple[int, nn.Linear]] = {}
    for index, layer in enumerate(made):
        for module in layer.modules():
            if type(module) is nn.Linear and not hasattr(module, "parametrizations"):
                first, other = known.setdefault((module.weight.shape, module.weight.dtype), (index, module))
                if first != index:
                    module.weight = other.weight


def random_job(seed: int) -> Job:
    return job_of(Settings(seed).sections(f"{__name__}:layers"), f"seed {seed}")


def random_cut(draw: Random, job: Job, count: int, wired: bool) -> Cut:
    """``count``: of layers."""
    inner = range(1, count)
    some = draw.randint(min(1, len(inner)), min(3, len(inner)))
    at = tuple(sorted(draw.sample(inner, some if draw.random() < 0.7 else len(inner))))
    stage, per_stage = draw.randint(0, len(at)), 2 * job.pipeline.microbatches
    loss = Loss(draw.randrange(job.job.steps), stage, draw.randint(1, per_stage - 1)) if draw.random() < 0.5 else None
    return Cut(
        at=at,
        wired=wired,
        apart=draw.random() < 0.5,
        redundant=draw.random() < 0.3,
        by_layer=draw.random() < 0.4,
        ahead=draw.randint(1, job.pipeline.microbatches),
        ships=draw.random() < 0.3,
        loss=loss,
    )
