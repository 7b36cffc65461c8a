"""Where a layer keeps each buffer, so that another tensor can take its place."""

from collections.abc import Mapping, Sequence

import torch
from torch import nn

Place = tuple[dict[str, torch.Tensor | None], str]  # a module's buffers, and the key among them
Places = Mapping[str, Sequence[Place]]  # of each buffer, by its name

# Their statistics have no part in a backward: torch writes into them without counting a version.
NORMS = (
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
)


def places_of_buffers(module: nn.Module) -> dict[str, list[Place]]:
    """In several modules if these share the buffer."""
    places: dict[int, list[Place]] = {}
    for part in module.modules():
        for key, buffer in part._buffers.items():
            places.setdefault(id(buffer), []).append((part._buffers, key))
    return {name: places[id(buffer)] for name, buffer in module.named_buffers()}


def put(places: Sequence[Place], tensor: torch.Tensor) -> None:
    """The tensor is the buffer from now on."""
    for buffers, key in places:
        buffers[key] = tensor


def in_norms(module: nn.Module) -> set[str]:
    """Names of the buffers that norms alone have: they are never exchanged between forwards."""
    read = {id(b) for m in module.modules() if type(m) not in NORMS for b in m._buffers.values() if b is not None}
    return {name for name, buffer in module.named_buffers() if id(buffer) not in read}
