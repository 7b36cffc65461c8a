"""What ``culm.local.nursery`` imports once for all nodes: see there. Starts no thread, which no fork would have."""

from culm.local.nursery import die_with_parent

die_with_parent()  # before anything that takes its time: a launcher that is killed meanwhile leaves nothing behind

import torch  # noqa: E402

import culm.commands.serve  # noqa: E402
import culm.stage_server.service  # noqa: E402, F401


def take_step() -> None:
    """The first step of any optimizer imports more of torch than torch itself does."""
    parameter = torch.nn.Parameter(torch.zeros(1))
    parameter.grad = torch.zeros(1)
    torch.optim.SGD([parameter], lr=0.0).step()


take_step()
