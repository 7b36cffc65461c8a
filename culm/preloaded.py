"""What ``culm.nursery`` imports once for all nodes: see there. Starts no thread, which no fork would have."""

import torch

import culm.serve  # noqa: F401
import stage_server.service  # noqa: F401


def take_step() -> None:
    """The first step of any optimizer imports more of torch than torch itself does."""
    parameter = torch.nn.Parameter(torch.zeros(1))
    parameter.grad = torch.zeros(1)
    torch.optim.SGD([parameter], lr=0.0).step()


take_step()
