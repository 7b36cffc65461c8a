"""Layers whose backward reads from the module what forwards leave there: by then another forward may have run."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.hostile.habits import WIDTH, Inner, Tokens, head


class Masked(Inner):
    """Runs again within the backward, with the mask of whatever forward came last."""

    def block(self, x: torch.Tensor) -> torch.Tensor:
        return self.plain(x) * self.mask

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mask = (x > 0).float()
        y: torch.Tensor = checkpoint(self.block, x, use_reentrant=False)
        return y + x


class Averaged(Inner):
    """The same of a buffer, which it updates first."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.register_buffer("mean", torch.ones(WIDTH))

    def block(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.plain(x) * self.get_buffer("mean"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.get_buffer("mean").mul_(0.9).add_(x.detach().abs().mean(0), alpha=0.1)
        y: torch.Tensor = checkpoint(self.block, x, use_reentrant=self.reentrant)
        return y


class ScaledByHook(Inner):
    """A hook of a tensor, or torch's own of a module, scales by what the last forward left."""

    def __init__(self, of_module: bool) -> None:
        super().__init__()
        self.of_module, self.norm = of_module, torch.ones(())
        if of_module:
            self.inner.register_full_backward_hook(self.scale)

    def scale(self, _module: nn.Module, gradients: Any, _given: Any) -> Any:
        return tuple(gradient / self.norm if gradient is not None else None for gradient in gradients)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.plain(x)
        self.norm = x.detach().norm()
        if not self.of_module:
            y.register_hook(lambda gradient: gradient / self.norm)  # type: ignore[no-untyped-call]
        return torch.tanh(y)


class Scaling(torch.autograd.Function):
    """Multiplies by a module's buffer, which the backward looks up again."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, module: nn.Module) -> torch.Tensor:
        ctx.module = module
        return x * module.get_buffer("scale")

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0] * ctx.module.get_buffer("scale"), None


class Quantized(Inner):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.plain(x)
        self.scale: torch.Tensor = 0.9 * self.scale + 0.1 * x.detach().abs().max()
        y: torch.Tensor = Scaling.apply(x, self)  # type: ignore[no-untyped-call]
        return y


class TimesNorm(Inner):
    """Its graph needs a BatchNorm's mean, into which torch writes without counting a version."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.norm(self.plain(x))
        return self.plain(x) * self.norm.get_buffer("running_mean") + y


class Overwriting(Inner):
    """Its graph needs an attribute, into which the next forward writes."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.ones(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.scale.copy_(x.detach().abs().mean(0))
        return self.plain(x) * self.scale


OTHER = r"layer 1 .* gives another gradient of its input once a later forward has run"
LATE: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "a mask": (Masked, OTHER),
    "a buffer": (functools.partial(Averaged, False), OTHER),
    "a buffer, reentrant": (functools.partial(Averaged, True), OTHER),
    "a tensor's hook": (functools.partial(ScaledByHook, False), OTHER),
    "a module's hook": (functools.partial(ScaledByHook, True), OTHER),
    "a function's module": (Quantized, OTHER),
    "a norm's mean": (TimesNorm, OTHER),
    "an attribute": (Overwriting, r"the backward of layer 1 .* after the next microbatch's forward raised"),
}


def late(name: str) -> list[Any]:
    return [Tokens, LATE[name][0], head]
