"""Imported once, in the process that forks nodes (``culm.local.nursery``). Starts no thread: forks would lack it."""

from culm.local.nursery import die_with_parent

die_with_parent()  # before the slow imports: a launcher that is killed during them leaves nothing behind

import torch  # noqa: E402

import culm.commands.serve  # noqa: E402
import culm.stage_server.service  # noqa: E402, F401


def take_step() -> None:
    """The first step of any optimizer imports more of torch than torch itself does."""
    parameter = torch.nn.Parameter(torch.zeros(1))
    parameter.grad = torch.zeros(1)
    torch.optim.SGD([parameter], lr=0.0).step()


take_step()
