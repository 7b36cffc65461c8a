"""A backward in two halves: the gradient of the input first, for which another stage waits, those of parameters later.

torch.distributed.pipelining walks the graph; what it leaves to its caller is that no two gradients share memory.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.graph import Node, get_gradient_edge

from culm.stage_server.compute.torch_private import halves, is_view


class SplitBackward:
    """Of one stage in one pipeline. The gradients are those of a whole backward, bit for bit: the same kernels on the
    same operands.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        self._parameters = parameters
        self._backward_input, self._backward_weight = halves()
        self._groups: dict[int, list[dict[str, Any]]] = {}
        self._whole: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def clear(self) -> None:
        self._groups.clear()
        self._whole.clear()

    def of_input(
        self, microbatch: int, x: torch.Tensor, output: torch.Tensor, gradient: torch.Tensor | None
    ) -> torch.Tensor | None:
        """The gradient of x, shaped like it, or None where it has none.

        gradient: of the output, shaped like it; None where the next stage has none.
        """
        if gradient is None or not output.requires_grad:
            return None
        if not x.requires_grad or not _reaches(output, x):
            self._whole[microbatch] = (output, gradient)  # nobody waits, and no parameter meets the input's way
            return None
        if is_view(output):
            output = output.clone()  # torch detaches it in place, which a view does not allow
        _, self._groups[microbatch] = self._backward_input([output], [gradient], [x], iter(self._parameters))
        return x.grad

    def of_parameters(self, microbatch: int) -> None:
        """Adds to the accumulated gradients and frees the graph."""
        fresh = [parameter for parameter in self._parameters if parameter.grad is None]
        if microbatch in self._whole:
            torch.autograd.backward(*self._whole.pop(microbatch))
        elif microbatch in self._groups:
            self._backward_weight(iter(self._parameters), self._groups.pop(microbatch))
        for parameter in fresh:
            if parameter.grad is not None:
                # It may be the memory of a gradient that was sent, and the next one is added to it in place.
                parameter.grad = torch.empty_like(parameter).copy_(parameter.grad)


def _reaches(output: torch.Tensor, x: torch.Tensor) -> bool:
    """Whether the output depends on x by a gradient: not if a layer between them detaches."""
    wanted = get_gradient_edge(x).node
    seen: set[Node] = set()
    left = [get_gradient_edge(output).node]
    while left:
        node = left.pop()
        if node is wanted:
            return True
        if node not in seen:
            seen.add(node)
            left.extend(following for following, _ in node.next_functions if following is not None)
    return False
