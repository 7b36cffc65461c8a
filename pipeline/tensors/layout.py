"""How a tensor's elements lie in memory: its strides, which a copy on another node is to have as well."""

# Kernels choose their way by strides. The mean of a transposed tensor, or a BatchNorm over one in channels_last, has
# other bits than that of the same elements in order. A stage that is cut off has its input from another process, one
# that is not has it from the layer before; an heir has it from its own stage. All of them must see one layout, or the
# weights would depend on where the model is cut.

from typing import Any

import torch

ALIGNMENT = 64  # bytes: at multiples of it torch gives memory; see ``as_sent``


def strides_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """In elements, a dimension each; empty where they are those of a tensor that was made in order."""
    return unless_in_order(tuple(tensor.shape), tensor.stride())


def unless_in_order(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    """The strides; empty where they are those of a tensor of the shape that was made in order."""
    usual = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        # Also of a dimension of one element: by its stride a kernel takes a tensor for one in channels_last.
        if stride != usual:
            return strides
        usual *= max(size, 1)
    return ()


def is_dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether every element of a tensor with these has a place of its own in memory, and there are no gaps."""
    usual = 1
    for stride, size in sorted((stride, size) for size, stride in zip(shape, strides, strict=True) if size > 1):
        if stride != usual:
            return False
        usual *= size
    return all(stride >= 0 for stride in strides)


def overlaps(tensor: torch.Tensor) -> bool:
    """Whether several of its elements are one in memory, as those of an unfolded tensor are."""
    reach = 1
    for stride, size in sorted((stride, size) for size, stride in zip(tensor.shape, tensor.stride(), strict=True)):
        if size > 1 and stride < reach:
            return True
        reach += (size - 1) * stride
    return False


def span(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Elements from the first to the last in memory, of a tensor that is not empty."""
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def memory_of(tensor: torch.Tensor) -> torch.Tensor:
    """What lies in memory from its first element to its last, in order, gaps and all: a view of one dimension.

    A copy of that, seen with the tensor's shape and strides, is a copy of the tensor with its strides.
    """
    if not tensor.numel():
        return tensor.reshape(0)
    return tensor.as_strided((span(tuple(tensor.shape), tensor.stride()),), (1,))


def laid_out(tensor: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """The same elements with these strides, in memory of their own. ``strides`` as ``strides_of`` gives them."""
    shape = tuple(tensor.shape)
    if not strides or not tensor.numel():
        return tensor
    # No view of other memory: autograd refuses writes into a view that a Function gives.
    memory = torch.empty_strided(shape, strides, dtype=tensor.dtype, device=tensor.device)
    # Where a dimension repeats the same elements they are written once.
    once = tensor
    for dimension, (size, stride) in enumerate(zip(shape, strides, strict=True)):
        if stride == 0 and size > 1:
            once = once.narrow(dimension, 0, 1)
    memory.as_strided(once.shape, strides).copy_(once)
    return memory


def copy_of(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides, whose gradient is the tensor's.

    ``clone`` keeps strides only where no element is skipped or repeated.
    """
    copied: torch.Tensor = tensor.clone()
    if copied.stride() != tensor.stride() and tensor.numel():
        copied = _Copy.apply(tensor)  # type: ignore[no-untyped-call]
    return copied


class _Copy(torch.autograd.Function):
    """To autograd one step: through those of ``laid_out`` the gradient would get other strides."""

    @staticmethod
    def forward(_: Any, tensor: torch.Tensor) -> torch.Tensor:
        return laid_out(tensor.detach(), strides_of(tensor))

    @staticmethod
    def backward(_: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0]


def in_one_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether the two are views of one piece of memory, or one tensor."""
    return one.numel() > 0 and one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether its elements are numbers in memory at strides: neither sparse nor opaque, nested nor quantized."""
    return tensor.layout is torch.strided and not tensor.is_nested and not tensor.is_quantized
