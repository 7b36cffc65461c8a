"""Layers without parameters to draw from. A maker fits a layer to a tensor's shape and dtype.

A maker looks at nothing else, so a layer is the same whenever it is made. Where none fits the maker may raise, and so
may the layer.
"""

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

Maker = Callable[[Random, Tensor], nn.Module]  # of a layer that takes one tensor like this


class Made(nn.Module):
    """Gives what a function makes of its input."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *given: Tensor) -> Any:
        return self.function(*given)


IN_PLACE: tuple[Callable[[bool], nn.Module], ...] = (
    lambda i: nn.ReLU(inplace=i),
    lambda i: nn.LeakyReLU(0.1, inplace=i),
    lambda i: nn.ELU(inplace=i),
    lambda i: nn.SiLU(inplace=i),
    lambda i: nn.Hardtanh(inplace=i),
    lambda i: nn.Mish(inplace=i),
    lambda i: nn.Hardswish(inplace=i),
    lambda i: nn.CELU(inplace=i),
    lambda i: nn.Threshold(0.0, 0.1, inplace=i),
    lambda i: nn.Dropout(0.3, inplace=i),
    lambda i: nn.AlphaDropout(0.2, inplace=i),
)
ACTIVATIONS: tuple[Callable[[], nn.Module], ...] = (
    nn.GELU,
    lambda: nn.GELU("tanh"),
    nn.Softplus,
    nn.Tanh,
    nn.Sigmoid,
    nn.Softsign,
    lambda: nn.Softmax(-1),
    lambda: nn.LogSoftmax(-1),
    nn.Identity,
    lambda: nn.Dropout1d(0.3),
)


def activation(draw: Random, x: Tensor) -> nn.Module:
    return draw.choice(IN_PLACE)(True) if draw.random() < 0.5 else draw.choice(ACTIVATIONS)()


def _no_grad(x: Tensor) -> Tensor:
    with torch.no_grad():
        x.mul_(0.5)
    return x


def _data(x: Tensor) -> Tensor:
    x.data.add_(0.5)
    return x


def _column(x: Tensor) -> Tensor:
    x[:, 0] = 0
    return x


def _row(x: Tensor) -> Tensor:
    x[..., -1:].mul_(0.5)
    return x


def _chunks(x: Tensor) -> Tensor:
    x.chunk(2, -1)[1].tanh_()
    return x


def _flattened(x: Tensor) -> Tensor:
    x.view(-1)[1:].sigmoid_()
    return x


WRITES: tuple[Callable[[Tensor], Any], ...] = (
    lambda x: x.add_(1),
    lambda x: x.mul_(0.5),
    lambda x: x.tanh_(),
    lambda x: x.sigmoid_(),
    lambda x: x.clamp_(-1, 1),
    lambda x: x.masked_fill_(x > 1, 0.1),
    lambda x: x.copy_(x.flip(-1) * 0.5),
    lambda x: x.sub_(x.mean()),
    lambda x: x.t_(),
    lambda x: x.transpose_(0, -1),
    lambda x: x.unsqueeze_(1),
    lambda x: x.squeeze_(),
    lambda x: x.mul_(x),
    lambda x: F.relu_(x[:, 1:]),
    lambda x: (x.mul_(0.5), x),
    lambda x: (torch.sigmoid(x), x.relu_()),
    _no_grad,
    _data,
    _column,
    _row,
    _chunks,
    _flattened,
)


def write(draw: Random, x: Tensor) -> nn.Module:
    return Made(draw.choice(WRITES))


VIEWS: tuple[Callable[[Tensor], Any], ...] = (
    lambda x: x,
    lambda x: x[:, 1:],
    lambda x: x[..., 1:],
    lambda x: x[..., ::2],
    lambda x: x[..., :-1],
    lambda x: x[:, 0],
    lambda x: x[..., 1],
    lambda x: x.transpose(0, 1),
    lambda x: x.transpose(-1, -2),
    lambda x: x.transpose(-1, -2).contiguous(),
    lambda x: x.permute(*reversed(range(x.dim()))),
    lambda x: x.chunk(2, -1),
    lambda x: x.chunk(2, -1)[1],
    lambda x: torch.split(x, 3, 1),
    lambda x: x.unbind(1)[:3],
    lambda x: x.flip(-1),
    lambda x: x.roll(1, -1),
    lambda x: x.narrow(-1, 1, x.shape[-1] - 1),
    lambda x: x.as_strided((x.shape[0], x.shape[-1] - 1), (x.stride(0), x.stride(-1)), 1),
    lambda x: x.unfold(-1, 2, 2),  # of elements that share memory a later write has other bits where it is cut
    lambda x: x.unfold(1, 2, 2),
    lambda x: x.squeeze(),
    lambda x: x.unsqueeze(0),
    lambda x: x.unsqueeze(1),
    lambda x: x.unsqueeze(-1),
    lambda x: x.flatten(1),
    lambda x: x.flatten(1)[:, 1:],
    lambda x: torch.unflatten(x, -1, (2, -1)),
    lambda x: x.mean(-1, keepdim=True).expand(*x.shape[:-1], 5),
    lambda x: x.unsqueeze(1).expand(-1, 3, *[-1] * (x.dim() - 1)),
    lambda x: x.sum().expand(3, 5),
    lambda x: x.diagonal(),
    lambda x: x.movedim(-1, 0),
    lambda x: x.view(-1)[3:].view(1, -1),
    lambda x: x.view_as(x),
    lambda x: x.to(memory_format=torch.channels_last),
    lambda x: x.reshape(x.shape[0], -1, 1, 1),
    lambda x: x.view(torch.int32) if not x.is_floating_point() else x.view_as(x),
    lambda x: torch.view_as_real(x) if x.is_complex() else torch.view_as_complex(torch.unflatten(x, -1, (-1, 2))),
    lambda x: x.real,
    lambda x: x.imag,
    lambda x: x.conj(),
    lambda x: x.mH,
    lambda x: torch.complex(x, x.sin()),
    lambda x: torch.complex(x, x.sin()).conj().imag,
    lambda x: torch.fft.rfft(x),
    lambda x: torch.fft.fft(x).real,
)


def view(draw: Random, x: Tensor) -> nn.Module:
    return Made(draw.choice(VIEWS))


def _noise(x: Tensor) -> Tensor:
    return x + float(np.random.rand()) * 0.1


FUNCTIONS: tuple[Callable[[Tensor], Any], ...] = (
    lambda x: x @ x.transpose(-1, -2) / x.shape[-1],
    lambda x: x * x.sum(-1, keepdim=True) * 0.1,
    lambda x: x - x.mean(0),
    lambda x: x / (x.norm() + 1),
    lambda x: x.cumsum(-1) * 0.3,
    lambda x: x.sort(-1),
    lambda x: x.topk(2, -1),
    lambda x: x.max(1),
    lambda x: x.logsumexp(1),
    lambda x: torch.cat([torch.ones_like(x[:, :1]), x], 1),
    lambda x: torch.stack([x, x * 0.5], -1),
    lambda x: F.pad(x, (1, 1)),
    lambda x: F.glu(x),
    lambda x: torch.einsum("...i,...j->...ij", x, x) * 0.2,
    lambda x: x + torch.randn_like(x) * 0.1,
    _noise,
    lambda x: x * 0.5 if torch.rand(()) < 0.5 else x,
    lambda x: x if torch.rand(()) < 0.7 else x * 1.5,
    lambda x: F.normalize(x, dim=-1),
    lambda x: F.max_pool1d(x, 2),
    lambda x: F.avg_pool2d(x, 2),
    lambda x: F.interpolate(x, scale_factor=2),
    lambda x: F.unfold(x, 2),
    lambda x: F.linear(x, x.detach().flatten(0, -2)[:3]),
    lambda x: x.index_select(-1, torch.arange(x.shape[-1] - 1)),
    lambda x: x[:, torch.arange(x.shape[1]).flip(0)],
    lambda x: x.gather(-1, x.detach().argsort(-1)),
    lambda x: torch.where(x > 0, x, x * 0.1),
    lambda x: x.square().mean(-1),
    lambda x: x.abs(),
    lambda x: x.repeat(1, 2, *[1] * (x.dim() - 2)),
    lambda x: x.roll(1, 0),
    lambda x: x.float(),
    lambda x: x.double(),
)


def function(draw: Random, x: Tensor) -> nn.Module:
    return Made(draw.choice(FUNCTIONS))


SIDES: tuple[Callable[[Tensor], Any], ...] = (
    lambda x: (x, x),
    lambda x: (x, x > 0),
    lambda x: (x, torch.arange(x.shape[-1])),
    lambda x: (x, x.detach()),
    lambda x: (x, x.bfloat16()),
    lambda x: (x, x.half()),
    lambda x: (x, x.double()),
    lambda x: (x.view_as(x), x),
    lambda x: (x[:, :1], x[:, 1:]),
    lambda x: (x[..., 1:], x[..., :-1]),
    lambda x: (x, x[0]),
    lambda x: (x, x.mean(-1)),
    lambda x: (x, x.mean()),
    lambda x: (x, torch.zeros(0, 3)),
    lambda x: (x, torch.ones(1).expand(4, 4)),
    lambda x: (x, x.flatten().expand(2, -1)),
    lambda x: (x, (x > 0).long().flip(0)),
    lambda x: (x, torch.rand(3)),
    lambda x: (x, x.detach()[:, 1:]),
    lambda x: (x * 0.5, x.detach() * 1.0, x),
    lambda x: (torch.sigmoid(x), x),
    lambda x: (x.exp().clamp(max=3), x.tanh()),
)


def side(draw: Random, x: Tensor) -> nn.Module:
    return Made(draw.choice(SIDES))
