"""What Culm uses of the private parts of torch; `tests/unit/test_private.py` tells when they change.

The first half of a backward is torch.distributed.pipelining's, which offers it to its own schedules alone.
"""

from collections.abc import Callable
from typing import Any

import torch


def first_half() -> Callable[..., Any]:
    """``stage_backward_input``, which gives the gradients of inputs, and groups of parameters as dicts."""
    # Not at the top: torch's tracer comes with it, and takes a second of every node's start.
    from torch.distributed.pipelining._backward import stage_backward_input

    return stage_backward_input


def is_view(tensor: torch.Tensor) -> bool:
    """Whether the tensor shares another one's memory, as autograd sees it."""
    return tensor._is_view()
