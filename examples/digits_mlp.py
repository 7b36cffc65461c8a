"""A small classifier with BatchNorm on noisy seven-segment digits, drawn by a formula."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

# Which of the segments (top, top left, top right, middle, bottom left, bottom right, bottom) each digit lights.
SEGMENTS = (
    "1110111",
    "0010010",
    "1011101",
    "1011011",
    "0111010",
    "1101011",
    "1101111",
    "1010010",
    "1111111",
    "1111011",
)
PLACES = (
    (slice(0, 1), slice(1, 5)),
    (slice(1, 4), slice(0, 1)),
    (slice(1, 4), slice(5, 6)),
    (slice(4, 5), slice(1, 5)),
    (slice(5, 8), slice(0, 1)),
    (slice(5, 8), slice(5, 6)),
    (slice(7, 8), slice(1, 5)),
)


def layers(width: int = 64, hidden: int = 3) -> nn.Sequential:
    """[B, 8, 8] images to [B, 10] scores."""
    modules: list[nn.Module] = [nn.Flatten(), nn.Linear(64, width)]
    for _ in range(hidden):
        modules += [nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, width)]
    return nn.Sequential(*modules, nn.ReLU(), nn.Linear(width, 10))


def dataset(samples: int = 4096, noise: float = 0.4, seed: int = 0) -> TensorDataset:
    """Images [8, 8] in float32 and their digits."""
    glyphs = torch.zeros(10, 8, 8)
    for digit, lit in enumerate(SEGMENTS):
        for on, (rows, columns) in zip(lit, PLACES, strict=True):
            if on == "1":
                glyphs[digit, rows, columns] = 1.0
    generator = torch.Generator().manual_seed(seed)
    digits = torch.randint(0, 10, (samples,), generator=generator)
    images = glyphs[digits] + noise * torch.randn(samples, 8, 8, generator=generator)
    return TensorDataset(images, digits)
