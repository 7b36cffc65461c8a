"""What a plan asks of each node's memory, and which node has less. Pure, with a reason in words."""

# A node keeps until the commit, of every layer that it holds:
#
#     its state       once: parameters, buffers, the optimizer's moments
#     gradients       one, which becomes the reduced one; of a layer that it owns in k pipelines log2(k) more, rounded
#                     up: blocks of the tree of which the other half is not there yet
#
# How large these are the first node tells (``LayerBytes``). What is left out, since nobody has measured it: the tensors
# at the stages' boundaries, the graphs of microbatches under way, copies for checkpoints. So a plan that does not fit
# here fits nowhere, and one that fits here may still be too much.
#
# While copies are seeded for other stages a node holds its layers of both. What nobody has told binds nothing.

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from culm.pipeline.plan import Stages


@dataclass(frozen=True, slots=True)
class LayerBytes:
    """Of one layer on a node that holds it."""

    state: int
    gradient: int  # each time


def asked(stages: Stages, layers: Sequence[LayerBytes], before: Stages = ()) -> Mapping[str, int]:
    """Bytes by node; ``before``: the stages that are still held while these are prepared."""
    needed: dict[str, dict[int, int]] = {}  # by node and layer
    for stage in (*stages, *before) if layers else ():
        for node in stage.holders():
            gradients = 1 + (max(1, stage.owners.count(node)) - 1).bit_length()
            held = needed.setdefault(node, {})
            for layer in stage.layers:
                size = layers[layer].state + gradients * layers[layer].gradient
                held[layer] = max(held.get(layer, 0), size)
    return {node: sum(held.values()) for node, held in needed.items()}


def too_small(needed: Mapping[str, int], told: Mapping[str, int]) -> tuple[str, ...]:
    """The nodes that have less than is asked of them, the one that lacks most first. ``told``: bytes; 0: not known."""
    lacking = {node: size - told[node] for node, size in needed.items() if 0 < told.get(node, 0) < size}
    return tuple(sorted(lacking, key=lambda node: (-lacking[node], node)))


def in_words(nodes: Collection[str], needed: Mapping[str, int], told: Mapping[str, int]) -> str:
    """What the first of the nodes lacks."""
    first, *others = nodes
    more = f", and {len(others)} more lack memory" if others else ""
    return f"{first} would need {_size(needed[first])} and has {_size(told[first])}{more}"


def _size(size: int) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.2f} MB"
