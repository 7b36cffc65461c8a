"""Metrics that a job's [evaluate] section can name, such as ``culm.metrics:accuracy``. Each returns (sum, count)."""

import torch


def accuracy(output: torch.Tensor, target: torch.Tensor) -> tuple[float, float]:
    """How many have the highest score at their class, and of how many. Negative classes, such as -100, do not count.

    output: scores [B, C, ...], the classes in the second dimension, as ``torch.nn.functional.cross_entropy`` takes
    them; target: classes [B, ...], int64.
    """
    counts = target >= 0
    right = (output.argmax(1) == target) & counts
    return float(right.sum()), float(counts.sum())


def mean_absolute_error(output: torch.Tensor, target: torch.Tensor) -> tuple[float, float]:
    """The sum of absolute differences, and how many there are. Both [B, ...], of one shape."""
    return float((output - target).abs().double().sum()), float(target.numel())
