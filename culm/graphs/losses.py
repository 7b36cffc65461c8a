"""Losses and metrics of a chunk's vertices: called with the last layer's output [n, classes] and the chunk."""

import torch
from torch.nn import functional

from culm.pipeline.user_code.graph.chunks import Chunk

Pair = tuple[torch.Tensor, int]


def cross_entropy(output: torch.Tensor, chunk: Chunk) -> Pair:
    """The sum over the vertices that are trained on, and how many these are."""
    summed = functional.cross_entropy(output[chunk.train], chunk.labels[chunk.train], reduction="sum")
    return summed, int(chunk.train.sum())


def accuracy(output: torch.Tensor, chunk: Chunk) -> Pair:
    """Of the vertices that are trained on: how many are right, and how many there are."""
    return _right(output, chunk, chunk.train)


def valid_accuracy(output: torch.Tensor, chunk: Chunk) -> Pair:
    """The same of those to choose by."""
    return _right(output, chunk, chunk.valid)


def test_accuracy(output: torch.Tensor, chunk: Chunk) -> Pair:
    """The same of those to test on."""
    return _right(output, chunk, chunk.test)


def _right(output: torch.Tensor, chunk: Chunk, of: torch.Tensor) -> Pair:
    return (output[of].argmax(1) == chunk.labels[of]).sum(), int(of.sum())
