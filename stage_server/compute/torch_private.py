"""What Culm uses of the private parts of torch; `tests/unit/test_private.py` tells when they change.

A backward in two halves is torch.distributed.pipelining's, which offers it to its own schedules alone.
"""

import torch
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

__all__ = ["is_view", "stage_backward_input", "stage_backward_weight"]


def is_view(tensor: torch.Tensor) -> bool:
    """Whether the tensor shares another one's memory, as autograd sees it."""
    return tensor._is_view()
