"""A backward in two halves: the gradient of the input first, for which another stage waits, those of parameters later.

torch.distributed.pipelining walks the graph and takes the first half. The second one is here.
"""

# The first half notes what each node was given at which a parameter's way to the output meets the input's:
#
#     output ──▶ Addmm ──▶ Tanh ──▶ Addmm ──▶ x      first half: along here, to x
#                  │                  │
#                weight             weight           second half: from the two Addmm, with what was noted, down here
#
# Parameters that meet the input's way at the same nodes are a group, and each group has a backward of its own. That of
# a parameter used twice passes the nodes between its two uses again, which may be another group's: so no backward
# frees the graph, and it goes when all groups are through.

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from culm.stage_server.compute.torch_private import first_half, is_view

Noted = tuple[torch.Tensor | None, ...]  # the gradients that a node was given, one for each output of its forward


@dataclass(frozen=True, slots=True)
class ParameterGroup:
    """Parameters, as the nodes that accumulate their gradients, and what was noted where these meet the input's way."""

    parameters: set[Node]
    noted: dict[Node, Noted]

    def meets(self, other: "ParameterGroup") -> bool:
        return not self.parameters.isdisjoint(other.parameters) or not self.noted.keys().isdisjoint(other.noted)


class SplitBackward:
    """Of one stage in one pipeline. The gradients are those of a whole backward, bit for bit: the same kernels on the
    same operands.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        self._parameters = parameters
        self._first_half = first_half()
        self._groups: dict[int, list[ParameterGroup]] = {}
        self._whole: dict[int, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
        self._twice: dict[int, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}

    def clear(self) -> None:
        self._groups.clear()
        self._whole.clear()
        self._twice.clear()

    def of_input(
        self,
        microbatch: int,
        inputs: Sequence[torch.Tensor],
        outputs: list[torch.Tensor],
        gradients: list[torch.Tensor],
    ) -> dict[int, torch.Tensor]:
        """The gradients of inputs, by their places; those that get none are left out.

        outputs: some that require gradients; gradients: of each of these, shaped like it.
        """
        if not outputs:
            return {}
        each = [_reached(output, inputs) for output in outputs]
        reached = sorted(set().union(*each))
        if not reached:
            self._whole[microbatch] = (outputs, gradients)  # nobody waits, and no parameter meets an input's way
            return {}
        if not all(each):
            # Parameters of an output that reaches no input meet no input's way, and may be another output's as well:
            # their sum would come in two parts. So the second half is a whole backward, for parameters alone.
            wanted = [inputs[i] for i in reached]
            some = torch.autograd.grad(outputs, wanted, gradients, retain_graph=True, allow_unused=True)
            self._twice[microbatch] = (outputs, gradients)
            found_of: Sequence[torch.Tensor | None] = some  # torch leaves out that it may give None
            return {i: gradient for i, gradient in zip(reached, found_of, strict=True) if gradient is not None}
        # torch detaches them in place, which neither a view allows, nor an input that is handed on as it is, nor one of
        # several outputs from which another one was made.
        several = len(outputs) > 1
        own = [output.clone() if several or is_view(output) or output.is_leaf else output for output in outputs]
        made, found = self._first_half(own, gradients, [inputs[i] for i in reached], iter(self._parameters))
        self._groups[microbatch] = _apart(found)
        return {i: gradient for i, gradient in zip(reached, made, strict=True) if gradient is not None}

    def of_parameters(self, microbatch: int) -> None:
        """Adds to the accumulated gradients and frees the graph."""
        fresh = [parameter for parameter in self._parameters if parameter.grad is None]
        if microbatch in self._whole:
            torch.autograd.backward(*self._whole.pop(microbatch))
        if microbatch in self._twice:
            torch.autograd.backward(*self._twice.pop(microbatch), inputs=list(self._parameters))
        for group in self._groups.pop(microbatch, ()):
            _second_half(group)
        for parameter in fresh:
            if parameter.grad is not None:
                # It may be the memory of a gradient that was sent, and the next one is added to it in place.
                parameter.grad = torch.empty_like(parameter).copy_(parameter.grad)


def _reached(output: torch.Tensor, inputs: Sequence[torch.Tensor]) -> set[int]:
    """The places of inputs on which the output depends by a gradient: not if a layer between them detaches."""
    wanted = {get_gradient_edge(x).node: i for i, x in enumerate(inputs) if x.requires_grad}
    found: set[int] = set()
    seen: set[Node] = set()
    left = [get_gradient_edge(output).node]
    while left and len(found) < len(wanted):
        node = left.pop()
        if node in wanted:
            found.add(wanted[node])
        if node not in seen:
            seen.add(node)
            left.extend(following for following, _ in node.next_functions if following is not None)
    return found


def _apart(found: Sequence[dict[str, Any]]) -> list[ParameterGroup]:
    """torch's groups, none of which has anything in common with another one.

    torch puts a parameter that meets two groups into both: its gradient would count twice.
    """
    groups: list[ParameterGroup] = []
    for each in found:
        noted = zip(each["intermediates"], each["grads"], strict=True)
        group = ParameterGroup(set(each["params"]), {node: given for node, given in noted if given is not None})
        for other in [other for other in groups if group.meets(other)]:
            groups.remove(other)
            group = ParameterGroup(group.parameters | other.parameters, group.noted | other.noted)
        groups.append(group)
    return groups


def _second_half(group: ParameterGroup) -> None:
    """As a whole backward goes on from these nodes to the parameters, with all hooks that these have."""
    given = [(GradientEdge(n, i), g) for n, noted in group.noted.items() for i, g in enumerate(noted) if g is not None]
    if not given:
        return
    # What was noted counts: hooks of a tensor have changed it once, and what comes from a later use is in it.
    handles = [node.register_prehook(lambda _, noted=noted: noted) for node, noted in group.noted.items()]
    try:
        torch.autograd.backward(
            [edge for edge, _ in given],
            [gradient for _, gradient in given],
            retain_graph=True,
            inputs=[node.variable for node in group.parameters],  # type: ignore[attr-defined]
        )
    finally:
        for handle in handles:
            handle.remove()
