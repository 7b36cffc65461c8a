"""What Culm uses of the private parts of torch; `tests/unit/test_private.py` tells when they change.

A backward in two halves is torch.distributed.pipelining's, which offers it to its own schedules alone.
"""

from collections.abc import Callable
from typing import Any

import torch


def halves() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """``stage_backward_input`` and ``stage_backward_weight``."""
    # Not at the top: torch's tracer comes with them, and takes a second of every node's start.
    from torch.distributed.pipelining._backward import (
        stage_backward_input,
        stage_backward_weight,
    )

    return stage_backward_input, stage_backward_weight


def is_view(tensor: torch.Tensor) -> bool:
    """Whether the tensor shares another one's memory, as autograd sees it."""
    return tensor._is_view()
