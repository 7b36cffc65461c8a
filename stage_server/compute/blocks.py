"""A layer's gradient over blocks of pipelines: what a node merges of its own, and what a reducer adds up (rule 19)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from culm.pipeline import tree
from culm.pipeline.buckets import Slice
from culm.pipeline.clip import NORM_CHUNK
from culm.pipeline.tensors.values import Value
from culm.pipeline.tree import Block

# A value of a block has a tensor "grad.NAME" for each parameter that got a gradient in one of its pipelines,
# "buffer.NAME" for each buffer that forwards of pipeline 0 changed, and the tallies of its microbatches, in order.
# Where a layer is cut into buckets each has a value of its own, with slices of the gradients.


def merged(pieces: Mapping[Block, Value], block: Block, pipelines: int) -> Value:
    """The block's value, of the pieces that make it up."""
    return tree.merged(pieces, pipelines, added)[block]


def added(left: Value, right: Value) -> Value:
    """Of two halves of a block. A parameter without gradient in one adds nothing: 0.0 would turn a -0.0 into 0.0."""
    others = dict(right.tensors)
    tensors = []
    for name, tensor in left.tensors:
        other = others.pop(name, None)
        tensors.append((name, tensor if other is None else tensor + other))
    return Value((*tensors, *others.items()), tallies=(*left.tallies, *right.tallies))


def whole(value: Value, names: tuple[str, ...], with_norm: bool) -> Value:
    """The same of all pipelines, as the reduced gradient: in the order of the layer's parameters, and with its norms.

    ``with_norm``: else it has none, or a NaN where an element is not finite, which is found sooner.
    """
    given = dict(value.tensors)
    gradients = [(f"grad.{name}", given.pop(f"grad.{name}")) for name in names if f"grad.{name}" in given]
    each = [tensor for _, tensor in gradients]
    norms = squared_norms(each) if with_norm else () if all_finite(each) else (math.nan,)
    return replace(value, tensors=(*gradients, *given.items()), squared_norms=norms)


def in_buckets(value: Value, names: Sequence[str], cut: Sequence[Sequence[Slice]]) -> tuple[Value, ...]:
    """A layer's value in its buckets: of each gradient, flattened, the slices that are in the bucket.

    ``names``: of the layer's parameters. All else rides with the first bucket. One bucket is the value as it is.
    """
    if len(cut) == 1:
        return (value,)
    given = dict(value.tensors)
    flat = {name: given.pop(f"grad.{name}").reshape(-1) for name in names if f"grad.{name}" in given}
    found = []
    for slices in cut:
        named = ((names[x.parameter], x) for x in slices)
        found.append(tuple((f"grad.{name}", flat[name][x.start : x.end]) for name, x in named if name in flat))
    first, *others = found
    return (replace(value, tensors=(*first, *given.items())), *map(Value, others))


def joined(values: Sequence[Value]) -> Value:
    """The layer's value of those of its buckets; of several, gradients are flat."""
    if len(values) == 1:
        return values[0]
    pieces: dict[str, list[torch.Tensor]] = {}
    for value in values:
        for name, tensor in value.tensors:
            pieces.setdefault(name, []).append(tensor)
    return Value(tuple((name, each[0] if len(each) == 1 else torch.cat(each)) for name, each in pieces.items()))


def all_finite(gradients: list[torch.Tensor]) -> bool:
    """Whether every element is finite, in one pass over each tensor and one answer for all.

    A NaN or an infinity never leaves a sum again. A sum of finite numbers may overflow, so one that is not finite is no
    proof: only then every element is looked at.
    """
    real = [torch.view_as_real(g) if g.is_complex() else g for g in gradients]
    sums = [g.sum(dtype=torch.float32 if g.element_size() < 4 else g.dtype) for g in real]
    return not sums or math.isfinite(float(sum(sums))) or all(bool(torch.isfinite(g).all()) for g in real)


def squared_norms(gradients: list[torch.Tensor]) -> tuple[float, ...]:
    """The squared L2 norm of each chunk of each tensor, in float64, in the order given."""
    chunks = [chunk for gradient in gradients for chunk in _chunks(gradient.reshape(-1))]
    real = [torch.view_as_real(chunk) if chunk.is_complex() else chunk for chunk in chunks]
    norms = [torch.linalg.vector_norm(chunk, dtype=torch.float64) for chunk in real]
    # A card is waited for once.
    return tuple([norm * norm for norm in torch.stack(norms).tolist()]) if norms else ()


def _chunks(flat: torch.Tensor) -> Sequence[torch.Tensor]:
    return (flat,) if flat.numel() <= NORM_CHUNK else torch.split(flat, NORM_CHUNK)
