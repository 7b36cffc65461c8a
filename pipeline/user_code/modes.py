"""Layers in evaluation mode for a moment."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluation_mode(*layers: nn.Module) -> Iterator[None]:
    """Afterwards they train again, each part as it did before: one may be in evaluation mode while others train."""
    modes = [(part, part.training) for layer in layers for part in layer.modules()]
    for layer in layers:
        layer.eval()
    try:
        yield
    finally:
        for layer in layers:
            layer.train()  # by its own method: it may undo more than a flag
        for part, training in modes:
            part.training = training
