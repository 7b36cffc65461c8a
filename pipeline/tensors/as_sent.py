"""Tensors as they are after they were sent: numbers in memory, at an address that is a multiple of ``ALIGNMENT``."""

# Kernels choose their way by more than shape, dtype and strides, and another way has other bits:
#
#     conjugate, negative     torch puts both off: a bit of the tensor says so, and its memory holds other numbers
#     view                    torch lays the gradient of one that is written out like the memory behind it
#     address                 from one that is no multiple of 16 bytes MKL multiplies and adds up in another order; it
#                             asks for 64 where bits are to be the same. torch gives memory at multiples of 64, but a
#                             view such as x[:, 1:] begins elsewhere
#
# Of a tensor that was sent none of these is left (``wire.Assembler`` sees to the address). So it is that between all
# layers, and so is its gradient: whether a cut lies there must not matter. Samples and parameters' gradients are as
# well, and so are layers when they are built.

import torch
from torch import nn

from culm.pipeline.tensors.layout import ALIGNMENT, copy_of, is_plain
from culm.pipeline.tensors.pytrees import NotAPytree, Pytree, mapped


def as_sent(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers; the tensor itself where it lies as it should."""
    if not is_plain(tensor) or tensor.is_meta:
        return tensor
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    return copy_of(tensor) if tensor.data_ptr() % ALIGNMENT else tensor


def between_layers(output: Pytree) -> Pytree:
    """A layer's output as if it were sent, and so the gradients of its tensors. Raises NotAPytree."""
    return mapped(_between_layers, output)


def after_layers(output: Pytree) -> Pytree:
    """The same where no layer follows in this process. Gradients were sent then, or come from the loss: nobody cuts
    between that and the last layer.
    """
    return mapped(_after_layers, output)


def both_as_sent(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers, and so its gradient's. A view stays one."""
    return _with_gradient(as_sent(tensor))


def _between_layers(tensor: torch.Tensor) -> torch.Tensor:
    return _with_gradient(_after_layers(tensor))


def _after_layers(tensor: torch.Tensor) -> torch.Tensor:
    tensor = as_sent(tensor)
    # Where a layer writes into a view autograd lays the gradient out like the memory behind it, or lets nobody write;
    # into what was sent it may. Nor may a hook be put on a view before somebody has asked for its ``grad_fn``, where
    # its memory was written by way of another one: torch 2.13 crashes.
    return copy_of(tensor) if tensor._is_view() else tensor


def _with_gradient(tensor: torch.Tensor) -> torch.Tensor:
    # A parameter that is handed on gets no hook: each forward would add another one to it.
    if tensor.requires_grad and tensor.grad_fn is not None:
        tensor.register_hook(_gradient_as_sent)  # type: ignore[no-untyped-call]
    return tensor


def _gradient_as_sent(gradient: torch.Tensor | None) -> torch.Tensor | None:
    """A Function may give none, and torch calls the hook all the same."""
    return as_sent(gradient) if gradient is not None else None


def samples_as_sent(samples: Pytree) -> Pytree:
    """Where they are no pytree whoever takes them says so."""
    try:
        # What was made in inference mode no backward may use, but for a copy.
        return mapped(lambda tensor: as_sent(copy_of(tensor) if tensor.is_inference() else tensor), samples)
    except NotAPytree:
        return samples


def lay_out(module: nn.Module) -> nn.Module:
    """Moves parameters and buffers to where they lie in every other process: memory of numpy's may begin anywhere.

    Returns the module itself. Whoever computes with a module that was built calls this first.
    """
    for tensor in (*module.parameters(), *module.buffers()):
        held = tensor.detach()
        if (own := as_sent(held)) is not held:
            tensor.data = own
    return module
