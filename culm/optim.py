"""What a job can name for its optimizer, such as ``culm.optim:decay_matrices`` and ``culm.optim:warmup_cosine``."""

import math
from typing import Any

import torch


def decay_matrices(layer: int, name: str, parameter: torch.Tensor) -> dict[str, Any]:
    """``train.groups``: no weight decay for biases, norms and other parameters of fewer than two dimensions."""
    return {} if parameter.dim() >= 2 else {"weight_decay": 0.0}


def warmup_cosine(step: int, warmup: int, steps: int, least: float = 0.0) -> float:
    """``train.schedule``: the learning rate's factor, which rises in a line and then falls to ``least`` as a cosine.

    step: from 0. warmup: steps in which it rises in equal parts, up to 1.0. steps: after which it stays at ``least``.
    """
    if step < warmup:
        return (step + 1) / warmup
    share = min(1.0, (step - warmup) / max(1, steps - warmup))
    return least + (1.0 - least) * 0.5 * (1.0 + math.cos(math.pi * share))
