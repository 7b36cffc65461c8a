"""What of a random job is no layer: samples, loss, optimizer, and how a step is divided."""

from collections.abc import Callable
from random import Random
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import Dataset, default_collate

from culm.pipeline.tensors.pytrees import mapped, tensors_in

CLASSES = 4
SAMPLES = 30


def real(x: Tensor) -> Tensor:
    """As numbers of which there is a least and a largest."""
    return (x.abs() if x.is_complex() else x).float()


# ---- samples ---------------------------------------------------------------------------------------------------------

KINDS: tuple[Callable[[torch.Generator], Any], ...] = (
    lambda g: torch.randn(8, generator=g),
    lambda g: torch.randn(9, generator=g),
    lambda g: torch.randn(17, generator=g),
    lambda g: torch.randn(5, 7, generator=g),
    lambda g: torch.randn(4, 8, generator=g),
    lambda g: torch.randn(3, 6, 5, generator=g),
    lambda g: torch.randint(0, 5, (6,), generator=g),
    lambda g: (torch.randn(4, 8, generator=g), torch.rand(4, generator=g) > 0.3),
    lambda g: {"x": torch.randn(7, generator=g), "rows": torch.randint(0, 5, (3,), generator=g)},
    lambda g: [torch.randn(5, generator=g), torch.randn(5, generator=g).double()],
)


class Samples(Dataset[Any]):
    """Held in memory, and given out as they are."""

    def __init__(self, seed: int) -> None:
        g = torch.Generator().manual_seed(seed)
        kind = Random(seed + 1).choice(KINDS)
        self._found = [(kind(g), torch.randint(0, CLASSES, (), generator=g)) for _ in range(SAMPLES)]

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        return self._found[index]


def samples(seed: int) -> Samples:
    return Samples(seed)


def views_of_samples(found: list[Any]) -> Any:
    """Input tensors that begin elsewhere in memory than where torch puts tensors."""
    return mapped(lambda t: torch.cat([t.flatten()[:1], t.flatten()])[1:].view(t.shape), default_collate(found))


# ---- losses ----------------------------------------------------------------------------------------------------------


def _scores(output: Any) -> Tensor:
    return tensors_in(output)[0]


def _beside(output: Any) -> Tensor:
    """Of what is handed on beside the scores."""
    found = [real(each).square().mean() for each in tensors_in(output)[1:] if each.requires_grad]
    return 0.01 * torch.stack(found).sum() if found else torch.zeros(())


def cross_entropy(output: Any, target: Tensor) -> Tensor:
    return F.cross_entropy(_scores(output), target)


def with_the_rest(output: Any, target: Tensor) -> Tensor:
    return F.cross_entropy(_scores(output), target) + _beside(output)


def squares(output: Any, target: Tensor) -> Tensor:
    return F.mse_loss(_scores(output), F.one_hot(target, CLASSES).float())


def in_place(output: Any, target: Tensor) -> Tensor:
    return F.cross_entropy(_scores(output).mul_(0.5), target)


def linear_loss(output: Any, target: Tensor) -> Tensor:
    """Its gradient has no memory of its own for each element."""
    return _scores(output).mean() * 0.1 + _beside(output)


def summed(output: Any, target: Tensor) -> tuple[Tensor, int]:
    return F.cross_entropy(_scores(output), target, reduction="sum"), len(target)


def some_summed(output: Any, target: Tensor) -> tuple[Tensor, Tensor]:
    counts = target > 0
    return F.cross_entropy(_scores(output), target.masked_fill(~counts, -100), reduction="sum"), counts.sum()


LOSSES = (cross_entropy, cross_entropy, with_the_rest, squares, in_place, linear_loss, summed, some_summed)
SUMS = (summed, some_summed)

# ---- optimizers ------------------------------------------------------------------------------------------------------

OPTIMIZERS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("SGD", {"lr": 0.05}),
    ("SGD", {"lr": 0.05, "momentum": 0.9}),
    ("SGD", {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("SGD", {"lr": 0.05, "momentum": 0.9, "fused": True}),
    ("AdamW", {"lr": 0.01}),
    ("AdamW", {"lr": 0.01, "foreach": True}),
    ("AdamW", {"lr": 0.01, "amsgrad": True, "fused": True}),
    ("Adam", {"lr": 0.01, "foreach": True}),
    ("Adam", {"lr": 0.01, "fused": True}),
    ("Adagrad", {"lr": 0.02}),
    ("RMSprop", {"lr": 0.01, "momentum": 0.5, "centered": True}),
    ("NAdam", {"lr": 0.01}),
    ("Adadelta", {"lr": 0.5}),
)


def decay_some(layer: int, name: str, parameter: nn.Parameter) -> dict[str, Any]:
    return {"weight_decay": 0.1} if parameter.dim() > 1 else {"lr": 0.02} if layer % 2 else {}


def muon_for_some(layer: int, name: str, parameter: nn.Parameter) -> dict[str, Any]:
    if parameter.dim() == 2 and parameter.dtype == torch.float32 and layer % 2:
        return {"optimizer": "torch.optim:Muon", "lr": 0.02}
    return {}


def falling(step: int) -> float:
    return 0.7**step


# ---- the job ---------------------------------------------------------------------------------------------------------


class Settings:
    """All that is drawn but the layers."""

    def __init__(self, seed: int) -> None:
        draw = Random(seed + 2)
        self.microbatch = draw.choice((1, 2, 3, 3, 4))
        self.constructs = draw.random() < 0.2
        self.ties = draw.random() < 0.3
        self.precision = draw.choice(("fp32", "fp32", "fp32", "fp32", "bf16-mixed", "bf16"))
        self.collate: Callable[[list[Any]], Any] = draw.choice((default_collate, views_of_samples))
        self._seed = seed
        self._train, self._pipeline = self._training(draw), self._division(draw)
        self._steps = draw.choice((2, 2, 3))

    def _training(self, draw: Random) -> dict[str, Any]:
        loss, (optimizer, arguments) = draw.choice(LOSSES), draw.choice(OPTIMIZERS)
        train: dict[str, Any] = {
            "loss": f"{__name__}:{loss.__name__}",
            "reduction": "sum" if loss in SUMS else "mean",
            "optimizer": f"torch.optim:{optimizer}",
            "optimizer_args": arguments,
            "precision": self.precision,
            "activation_checkpointing": draw.random() < 0.1,
        }
        if draw.random() < 0.4:
            train["clip_norm"] = 0.5
        if draw.random() < 0.3:
            train["groups"] = f"{__name__}:{draw.choice((decay_some, muon_for_some)).__name__}"
        if draw.random() < 0.2:
            train["schedule"] = f"{__name__}:falling"
        if draw.random() < 0.1:
            train["average"] = 0.9
        return train

    def _division(self, draw: Random) -> dict[str, Any]:
        return {
            "stages": 1,
            "microbatches": draw.randint(1, 3),
            "pipelines": draw.choice((1, 1, 2, 3)),
            "schedule": draw.choice(("1f1b", "1f1b", "zb-h1")),
        }

    def sections(self, layers: str) -> dict[str, dict[str, Any]]:
        """Of the job file. ``layers``: what makes them, by its name."""
        seed = {"seed": self._seed}
        data = {"dataset": f"{__name__}:samples", "args": seed, "microbatch": self.microbatch}
        if self.collate is views_of_samples:
            data["collate"] = f"{__name__}:views_of_samples"
        return {
            "job": {"steps": self._steps, **seed},
            "model": {"layers": layers, "args": seed},
            "data": data,
            "train": self._train,
            "pipeline": self._pipeline,
        }
