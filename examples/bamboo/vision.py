"""ResNet-152, VGG-19 and AlexNet as lists of layers, and drawn pictures of digits to train them with."""

from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.utils.data import Dataset

from culm.examples.digits_mlp import PLACES, SEGMENTS

Constructor = Callable[[], nn.Module]
RESNET_152 = (3, 8, 36, 3)  # bottlenecks of each stage
VGG_19 = (2, 2, 4, 4, 4)  # convolutions before each pooling


class Bottleneck(nn.Module):
    """[B, C, H, W] to [B, 4 W', H / stride, W / stride], beside a shortcut (He et al. 2016, with the stride at 3x3)."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.reduce = nn.Sequential(nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        middle = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.middle = nn.Sequential(middle, nn.BatchNorm2d(width), nn.ReLU())
        self.expand = nn.Sequential(nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width))
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != 4 * width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.expand(self.middle(self.reduce(x)))
        return torch.relu(y + self.shortcut(x))


class Pool(nn.Module):
    """[B, C, H, W] to [B, C, side, side]: means over windows that ``nn.AdaptiveAvgPool2d`` takes as well.

    torch has no deterministic kernel of that one's backward for a card. A product with the windows' weights has one.
    """

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        down, across = (self._windows(size).to(x) for size in x.shape[-2:])
        out: torch.Tensor = down @ x @ across.T
        return out

    def _windows(self, size: int) -> torch.Tensor:
        """[side, size]: window i begins at floor(i size / side) and ends before ceil((i + 1) size / side)."""
        i, at = torch.arange(self.side).unsqueeze(1), torch.arange(size)
        inside = (at >= i * size // self.side) & (at < -(-(i + 1) * size // self.side))
        return inside / inside.sum(1, keepdim=True)


def resnet(blocks: tuple[int, ...] = RESNET_152, width: int = 64, classes: int = 1000) -> list[Constructor]:
    """[B, 3, H, W] to [B, classes]; as torchvision's resnet152 by default."""
    stem: list[Constructor] = [
        partial(nn.Conv2d, 3, width, 7, 2, padding=3, bias=False),
        partial(nn.BatchNorm2d, width),
        nn.ReLU,
        partial(nn.MaxPool2d, 3, 2, padding=1),
    ]
    made: list[Constructor] = [partial(_sequence, stem)]
    channels = width
    for stage, count in enumerate(blocks):
        for block in range(count):
            stride = 2 if stage and not block else 1
            made.append(partial(Bottleneck, channels, width << stage, stride))
            channels = 4 * (width << stage)
    head: list[Constructor] = [partial(nn.AdaptiveAvgPool2d, 1), nn.Flatten, partial(nn.Linear, channels, classes)]
    return [*made, partial(_sequence, head)]


def vgg(
    convolutions: tuple[int, ...] = VGG_19,
    width: int = 64,
    hidden: int = 4096,
    classes: int = 1000,
    dropout: float = 0.5,
) -> list[Constructor]:
    """[B, 3, H, W] to [B, classes]; as torchvision's vgg19 by default."""
    made: list[Constructor] = []
    channels = 3
    for stage, count in enumerate(convolutions):
        wide = min(width << stage, 8 * width)
        for place in range(count):
            own: list[Constructor] = [partial(nn.Conv2d, channels, wide, 3, padding=1), nn.ReLU]
            own += [partial(nn.MaxPool2d, 2, 2)] if place == count - 1 else []
            made.append(partial(_sequence, own))
            channels = wide
    return [*made, *_classifier(channels, 7, hidden, classes, dropout, first=False)]


def alexnet(width: int = 64, hidden: int = 4096, classes: int = 1000, dropout: float = 0.5) -> list[Constructor]:
    """[B, 3, H, W] to [B, classes]; as torchvision's alexnet by default."""
    pool = partial(nn.MaxPool2d, 3, 2)
    channels = (width, 3 * width, 6 * width, 4 * width, 4 * width)
    kernels = ((11, 4, 2), (5, 1, 2), (3, 1, 1), (3, 1, 1), (3, 1, 1))  # size, stride, padding
    made: list[Constructor] = []
    before = 3
    for place, (wide, (size, stride, padding)) in enumerate(zip(channels, kernels, strict=True)):
        own: list[Constructor] = [partial(nn.Conv2d, before, wide, size, stride, padding), nn.ReLU]
        made.append(partial(_sequence, [*own, pool] if place in (0, 1, 4) else own))
        before = wide
    return [*made, *_classifier(before, 6, hidden, classes, dropout, first=True)]


def _classifier(channels: int, side: int, hidden: int, classes: int, dropout: float, first: bool) -> list[Constructor]:
    """Three layers, with dropout before each hidden one (``first``) or after it."""
    drop: list[Constructor] = [partial(nn.Dropout, dropout)]
    flat: list[Constructor] = [partial(Pool, side), nn.Flatten]
    one: list[Constructor] = [partial(nn.Linear, channels * side * side, hidden), nn.ReLU]
    two: list[Constructor] = [partial(nn.Linear, hidden, hidden), nn.ReLU]
    none: list[Constructor] = []
    before, after = (drop, none) if first else (none, drop)
    return [
        partial(_sequence, [*flat, *before, *one, *after]),
        partial(_sequence, [*before, *two, *after]),
        partial(nn.Linear, hidden, classes),
    ]


def _sequence(parts: list[Constructor]) -> nn.Sequential:
    return nn.Sequential(*(make() for make in parts))


class Digits(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Seven-segment digits, each in a colour of its own, somewhere on a dark and noisy picture [3, size, size]."""

    def __init__(self, samples: int, size: int, noise: float) -> None:
        self._samples, self._size, self._noise = samples, size, noise
        glyphs = torch.zeros(10, 10, 8)
        for digit, lit in enumerate(SEGMENTS):
            for on, (rows, columns) in zip(lit, PLACES, strict=True):
                if on == "1":
                    glyphs[digit, rows, columns] = 1.0
        self._glyphs = glyphs

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        draw = torch.Generator().manual_seed(index)
        digit, size = index % 10, self._size
        scale = size // 16
        glyph = self._glyphs[digit].repeat_interleave(scale, 0).repeat_interleave(scale, 1)
        top, left = (int(torch.randint(0, size - side + 1, (), generator=draw)) for side in glyph.shape)
        colour = 0.5 + 0.5 * torch.rand(3, 1, 1, generator=draw)
        picture = self._noise * torch.randn(3, size, size, generator=draw)
        picture[:, top : top + glyph.shape[0], left : left + glyph.shape[1]] += colour * glyph
        return picture, torch.tensor(digit)


def dataset(samples: int = 9469, size: int = 224, noise: float = 0.2) -> Digits:
    """As many pictures as Imagenette has to train with, of its size."""
    return Digits(samples, size, noise)
