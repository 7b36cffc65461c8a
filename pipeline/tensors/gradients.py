"""Each parameter's gradient in memory of its own."""

# Autograd takes a parameter's first gradient as it is, and adds the next ones to it in place. Where only views lie
# between, as of a table of positions that is added to the activations, that memory is also the gradient of something
# else (pytorch issue 34082):
#
#     of the stage's input, or of its output     the next microbatch would change what was sent, and what an heir needs
#     of another parameter                       each would get what is added to the other. Plain PyTorch does that; but
#                                                bits would depend on whether a cut lies between the two

from collections.abc import Iterable

import torch

from culm.pipeline.tensors.as_sent import as_sent


def own_gradients(parameters: Iterable[torch.nn.Parameter], others: Iterable[torch.Tensor] = ()) -> None:
    """Copies the gradient of each parameter that has the memory of one before it, or of one of the others.

    A gradient that torch has put off, such as a conjugate, becomes numbers in memory.

    ``parameters``: those that had no gradient before the backward that is over.
    """
    taken = {other.untyped_storage().data_ptr() for other in others}
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is None or gradient.layout != torch.strided or not gradient.numel():
            continue
        memory = gradient.untyped_storage().data_ptr()
        own = gradient.clone() if memory in taken else as_sent(gradient)
        if own is not gradient:
            parameter.grad = own
        taken.add(memory)
