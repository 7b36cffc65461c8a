"""Metrics for a job's [train] and [evaluate], such as ``culm.metrics:accuracy``. Each returns (sum, count)."""

import torch


def accuracy(output: torch.Tensor, target: torch.Tensor) -> tuple[float, float]:
    """How many have the highest score at their class, and of how many. Negative classes, such as -100, do not count.

    output: scores [B, C, ...], the classes in the second dimension, as ``torch.nn.functional.cross_entropy`` takes
    them; target: classes [B, ...], int64. Raises ValueError for other shapes.
    """
    if output.dim() < 2 or target.shape != (output.shape[0], *output.shape[2:]):
        raise ValueError(
            _shapes(output, target, "[B, C, ...] and [B, ...]", "culm.metrics:token_accuracy takes [B, T, V]")
        )
    return _right(output.argmax(1), target)


def token_accuracy(output: torch.Tensor, target: torch.Tensor) -> tuple[float, float]:
    """The same of what language models give, as ``culm.models.hf:each_token`` takes it.

    output: scores [B, T, V]; target: tokens [B, T], int64. Raises ValueError for other shapes.
    """
    if output.dim() != 3 or target.shape != output.shape[:2]:
        raise ValueError(_shapes(output, target, "[B, T, V] and [B, T]", "culm.metrics:accuracy takes [B, C, ...]"))
    return _right(output.argmax(2), target)


def next_token_accuracy(output: torch.Tensor, target: torch.Tensor) -> tuple[float, float]:
    """The same of each token after the first, as ``culm.models.hf:next_token`` takes them: the target is the tokens."""
    return token_accuracy(output[:, :-1], target[:, 1:])


def mean_absolute_error(output: torch.Tensor, target: torch.Tensor) -> tuple[float, float]:
    """The sum of absolute differences, and how many there are. Both [B, ...], of one shape; else ValueError."""
    if output.shape != target.shape:
        raise ValueError(_shapes(output, target, "of one shape", "view one of them as the other"))
    return float((output.double() - target.double()).abs().sum()), float(target.numel())


def _right(found: torch.Tensor, target: torch.Tensor) -> tuple[float, float]:
    counts = target >= 0
    return float(((found == target) & counts).sum()), float(counts.sum())


def _shapes(output: torch.Tensor, target: torch.Tensor, wanted: str, mend: str) -> str:
    return f"output and target are {list(output.shape)} and {list(target.shape)}, and have to be {wanted}; {mend}"
