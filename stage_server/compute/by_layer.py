"""A backward that tells which layers it is through with, while it goes on to the layers before them."""

# autograd runs the nodes of a graph that are ready in the reverse of the order in which the forward made them, and an
# accumulation into a parameter before all others. So when it comes to the node that made a layer's input, every node of
# that layer and of those after it has run:
#
#     forward     layer 0  ──▶ h1 ──▶  layer 1  ──▶ h2 ──▶  layer 2  ──▶ output
#     backward                                   │ comes to the node that made h2: layer 2 is through
#                             │ comes to the node that made h1: layer 1 is through
#
# That holds for one queue of nodes. autograd has one for each device, each with a thread, unless it is told to run all
# on the calling thread, as here: the same kernels in the same order, on the same stream of the device.
#
# A layer that takes several tensors has several such nodes. All of them come after its own, so the first one tells.
#
# A node that is never come to tells nothing: that of a view that a later layer has written over is in no graph any
# more. Then the layer is through when an earlier one is, or at the end.

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.graph import Node

from culm.pipeline.errors import JobError
from culm.stage_server.compute.layer import HeldLayer

Boundary = tuple[int, Node]  # a layer's place in its stage, and a node that made a tensor of its input


def backward_by_layer(
    outputs: Sequence[torch.Tensor],
    gradients: Sequence[torch.Tensor],
    layers: Sequence[HeldLayer],
    boundaries: Sequence[Boundary],
    through: Callable[[HeldLayer], None],
) -> None:
    """``torch.autograd.backward``; calls ``through`` for layers whose gradients are whole, the last layer first.

    ``layers``: those of the stage, whose first is never among them. Raises JobError if one gets a gradient later.
    """
    to_come = list(layers)

    def hook_of(place: int) -> Callable[[Any], None]:
        def hook(_: Any) -> None:
            while len(to_come) > place:
                through(to_come.pop())

        return hook

    handles = [node.register_prehook(hook_of(place)) for place, node in boundaries]
    try:
        with torch.autograd.set_multithreading_enabled(False):
            torch.autograd.backward(outputs, gradients)
    finally:
        for handle in handles:
            handle.remove()
    for layer in layers[len(to_come) :]:
        if layer.has_gradients():
            what = f"layer {layer.index} gets a gradient after autograd has come to the layers before it"
            raise JobError(what, "model.layers", "let each layer's forward make its graph on its own thread")
