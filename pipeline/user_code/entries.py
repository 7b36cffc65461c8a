"""The names under which a layer's state is kept: those of its state_dict, by which a user loads the weights."""

# A module and its state_dict may disagree. torch's checkpoint_wrapper, for one, takes a prefix out of the names. So a
# tensor's name is looked up by the tensor itself:
#
#     parameter.NAME   and  buffer.NAME    NAME as in the state_dict; a tensor with two names there is kept under both
#     transient.NAME   a tensor that is not in it, under its name in the module: mostly a buffer that does not persist
#
# Within a step gradients and changed buffers go by the module's own names, each tensor once.

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn


def entries_of(module: nn.Module) -> dict[str, torch.Tensor]:
    """The module's own tensors by kind and name: parameters in the state_dict's order, then all others."""
    kept: Mapping[str, Any] = module.state_dict(keep_vars=True)
    parameters = {id(parameter) for parameter in module.parameters()}
    found = {f"parameter.{name}": tensor for name, tensor in kept.items() if id(tensor) in parameters}
    names: dict[int, list[str]] = {}
    for name, tensor in kept.items():
        names.setdefault(id(tensor), []).append(name)
    for name, buffer in module.named_buffers():
        in_dict = [f"buffer.{known}" for known in names.get(id(buffer), ())]
        found |= dict.fromkeys(in_dict or [f"transient.{name}"], buffer)
    return found | {f"transient.{name}": p for name, p in module.named_parameters() if id(p) not in names}


def foreign_entry(module: nn.Module) -> str:
    """The name of an entry of the module's state_dict that is none of its tensors; nothing if there is none."""
    kept: Mapping[str, Any] = module.state_dict(keep_vars=True)
    own = {id(tensor) for tensors in (module.parameters(), module.buffers()) for tensor in tensors}
    return next((name for name, entry in kept.items() if id(entry) not in own), "")
