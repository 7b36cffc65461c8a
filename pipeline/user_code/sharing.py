"""Which layers share memory. Built on different nodes they would silently come apart, so such models are refused, but
for whole parameters (``tied``).

Each node builds the layers that it holds, alone, and again whenever an era begins from the initial state. So a
constructor must make all that it returns. A tensor that outlives the call is the same one in every layer that uses it,
and it comes back trained where the initial state is asked for.
"""

from collections.abc import Container, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from culm.pipeline.tensors.layout import is_plain


class Extent(NamedTuple):
    """The memory of one tensor; addresses are those of one device."""

    device: str
    start: int
    end: int
    layer: int
    name: str


def shared_between(
    modules: Mapping[int, nn.Module], tied: Container[tuple[int, str]] = ()
) -> tuple[Extent, Extent] | None:
    """Two tensors of different layers that overlap, views of one storage among them; None where there are none.

    ``tied``: parameters, by layer and name, that an earlier layer has, too: they are passed over.
    """
    extents = sorted(e for index, module in modules.items() for e in _extents(index, module, tied))
    furthest: Extent | None = None
    for extent in extents:
        overlaps = furthest is not None and extent.device == furthest.device and extent.start < furthest.end
        if overlaps and furthest is not None and extent.layer != furthest.layer:
            return furthest, extent
        if not overlaps or (furthest is not None and extent.end > furthest.end):
            furthest = extent
    return None


def kept_between(first: nn.Module, second: nn.Module) -> str:
    """The name of a tensor that two modules built by one constructor have in common; nothing where there is none.

    Both have to be alive: memory that was given back may be taken again.
    """
    before = {memory for _, tensor in tensors_of(first) for memory in _storage(tensor)}
    return next((name for name, t in tensors_of(second) if not before.isdisjoint(_storage(t))), "")


def tensors_of(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Every parameter and buffer by each of its names."""
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def _extents(index: int, module: nn.Module, tied: Container[tuple[int, str]]) -> Iterator[Extent]:
    passed = {id(parameter) for name, parameter in module.named_parameters() if (index, name) in tied}
    for name, tensor in tensors_of(module):
        if _storage(tensor) and id(tensor) not in passed:
            last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
            start = tensor.data_ptr() if not tensor.is_meta else tensor.untyped_storage()._cdata
            yield Extent(str(tensor.device), start, start + (last + 1) * tensor.element_size(), index, name)


def _storage(tensor: torch.Tensor) -> set[int]:
    """What tells one piece of memory from another; nothing for a tensor that has none."""
    if is_lazy(tensor) or not is_plain(tensor) or not tensor.numel():
        return set()
    storage = tensor.untyped_storage()
    return {storage._cdata} if tensor.is_meta else {storage._cdata, storage.data_ptr()}
