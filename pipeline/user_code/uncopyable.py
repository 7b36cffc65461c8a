"""Layers that no node could copy, seed or count are refused by name, before anything starts."""

from collections.abc import Iterable

import torch
from torch import nn

from culm.pipeline.errors import JobError
from culm.pipeline.tensors.layout import is_plain
from culm.pipeline.user_code.entries import foreign_entry
from culm.pipeline.user_code.imports import RAISED, described
from culm.pipeline.user_code.sharing import tensors_of


def no_copy(layer: nn.Module, index: int, error: BaseException) -> JobError:
    what = f"layer {index} ({type(layer).__name__}) cannot be copied: {described(error)}"
    mend = "give a constructor in its place, such as a functools.partial"
    computed = [key for part in layer.modules() for key, value in vars(part).items() if _is_computed(value)]
    if computed:  # torch.nn.utils.weight_norm, the old one, keeps such a weight
        what = f"layer {index} ({type(layer).__name__}) cannot be copied: its {computed[0]} is computed from parameters"
        mend = f"{mend}; or use torch.nn.utils.parametrizations for weight_norm and spectral_norm"
    return JobError(what, "model.layers", mend)


def _is_computed(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.grad_fn is not None


def refuse_lazy(layer: nn.Module, index: int) -> None:
    """Raises JobError for a lazy module: before its first forward nobody can seed or count its parameters."""
    lazy = next((m for m in layer.modules() if any(map(nn.parameter.is_lazy, m.parameters(recurse=False)))), None)
    if lazy is not None:
        what = f"layer {index} has a {type(lazy).__name__}, whose parameters have no shape before its first forward"
        raise JobError(what, "model.layers", "give its input's size, as nn.Linear takes it")


def refuse_hooks(layer: nn.Module, index: int) -> None:
    """Raises JobError for a ready-made layer with a hook on a parameter: torch's deepcopy drops it without a word."""
    for name, parameter in layer.named_parameters():
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            what = f"layer {index} ({type(layer).__name__}) has a hook on its parameter {name}, and copies have none"
            raise JobError(what, "model.layers", "give a constructor in its place, which registers the hook")


def refuse_state(layer: nn.Module, index: int) -> None:
    """Raises JobError for a layer with state that no copy of its parameters and buffers takes along."""
    for name, tensor in tensors_of(layer):
        if not is_plain(tensor):
            what = f"layer {index} ({type(layer).__name__}) keeps {name} as a sparse, nested or quantized tensor"
            raise JobError(what, "model.layers", "keep it dense, and make the other from it in the forward")
    try:
        foreign = foreign_entry(layer)
    except RAISED as error:
        what = f"the state_dict of layer {index} ({type(layer).__name__}) raised {described(error)}"
        raise JobError(what, "model.layers", "correct the layer or its hooks") from error
    if foreign:
        what = f"the state_dict of layer {index} ({type(layer).__name__}) has {foreign}, no parameter or buffer of it"
        raise JobError(what, "model.layers", "keep state in parameters and buffers, not in get_extra_state or a hook")


def refuse_expanded(layer: nn.Module, tensors: Iterable[tuple[str, torch.Tensor]], index: int) -> None:
    """Raises JobError for a tensor that repeats the same memory: nothing can be written into it."""
    for name, tensor in tensors:
        if any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)):
            what = f"layer {index} ({type(layer).__name__}) keeps {name} expanded: several elements are one in memory"
            raise JobError(what, "model.layers", "call contiguous() after expand()")
