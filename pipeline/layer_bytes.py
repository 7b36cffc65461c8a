"""What a plan asks of each node's memory, in bytes. Pure."""

# A node keeps until the commit:
#
#     state              once for each layer that it holds: parameters, buffers, the optimizer's moments
#     gradients          one for each layer that it holds, which becomes the reduced one; of a layer that it owns in k
#                        pipelines log2(k) more, rounded up: blocks of the tree of which the other half is not there yet
#     boundary tensors   of every microbatch of the pipelines that it runs: the activation and the gradient between two
#                        stages of which it owns one, or both (rule 5); the activation alone of those evaluated
#
# How large these are nodes tell (``LayerBytes``). The bytes at boundaries are measured beside the layers' times, and
# are 0 where nobody has measured. What is left out: the graphs of microbatches under way, what a neighbour sends of the
# next step before this node has applied the commit, copies for checkpoints. So a plan that does not fit here fits
# nowhere, and one that fits here may still be too much.
#
# While copies are seeded for other stages a node holds its layers of both; boundaries are those of one cut at a time.

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from culm.pipeline.plan import Stages


@dataclass(frozen=True, slots=True)
class LayerBytes:
    """Of one layer on a node that holds it."""

    state: int
    gradient: int  # each time
    boundary: int = 0  # of one microbatch, where a stage ends with the layer: its output and the gradient of that


def of_layers(
    stages: Stages, layers: Sequence[LayerBytes], before: Stages = (), hosted: bool = False
) -> Mapping[str, int]:
    """State and gradients by node; ``before``: the stages that are still held while these are prepared.

    ``hosted``: standbys lie in the host's memory, which nobody bounds; on the device there is one layer at a time.
    """
    needed: dict[str, dict[int, int]] = {}  # by node and layer
    for stage in (*stages, *before) if layers else ():
        for node in stage.distinct_owners if hosted else stage.holders():
            gradients = 1 + (max(1, stage.owners.count(node)) - 1).bit_length()
            held = needed.setdefault(node, {})
            for layer in stage.layers:
                size = layers[layer].state + gradients * layers[layer].gradient
                held[layer] = max(held.get(layer, 0), size)
    return {node: sum(held.values()) for node, held in needed.items()}


def at_boundaries(
    stages: Stages, layers: Sequence[LayerBytes], microbatches: int, alone: str = ""
) -> Mapping[str, int]:
    """Boundary tensors of a step by node; ``microbatches``: of each pipeline; ``alone``: of this node at least."""
    kept: dict[str, int] = {}
    for one, other in pairwise(stages) if layers else ():
        if alone and alone not in one.owners and alone not in other.owners:
            continue
        size = microbatches * layers[one.end_layer - 1].boundary
        for owner, next_owner in zip(one.owners, other.owners, strict=True) if size else ():
            for node in {owner, next_owner}:  # a tensor between two stages of one node is kept once
                kept[node] = kept.get(node, 0) + size
    return kept
