"""The tensors of each layer by name, as the job's code makes them. What other nodes send is compared with these."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from culm.pipeline import buckets
from culm.pipeline.tensors.tensor_bounds import problem
from culm.pipeline.user_code.entries import entries_of
from culm.protos import tensor_pb2

Shape = tuple[str, tuple[int, ...]]  # dtype by name, and shape
OF_THE_MODEL = ("parameter", "buffer", "transient")  # kinds of a layer's state; the others are its optimizer's


@dataclass(frozen=True, slots=True)
class LayerShapes:
    """The tensors that may be sent of a layer, by name, for each kind of value."""

    parameters: Mapping[str, Shape]  # each once, though it may have several names
    reduced: Mapping[str, Shape]
    state: Mapping[str, Shape]

    @staticmethod
    def of(module: nn.Module) -> "LayerShapes":
        """``module`` may lie on the meta device."""
        parameters, buffers = _shapes(module.named_parameters()), _shapes(module.named_buffers())
        return LayerShapes(
            parameters,
            _under("grad", parameters) | _under("buffer", buffers),
            _shapes(entries_of(module).items()),
        )


def _shapes(named: Iterable[tuple[str, Tensor]]) -> dict[str, Shape]:
    return {name: (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)) for name, tensor in named}


def _under(kind: str, shapes: Mapping[str, Shape]) -> dict[str, Shape]:
    return {f"{kind}.{name}": shape for name, shape in shapes.items()}


def of_buckets(layer: LayerShapes, pipelines: int, tied: Collection[str] = ()) -> list[Mapping[str, Shape]]:
    """What may be sent of each of the layer's buckets, in a job of so many pipelines.

    ``tied``: the names of parameters that are an earlier layer's: their gradients are in the buckets of that one.
    """
    into = buckets.count(sum(math.prod(shape) for _, shape in layer.parameters.values()), pipelines)
    names = [name for name in layer.parameters if name not in tied]
    sizes = [math.prod(layer.parameters[name][1]) for name in names]
    if into == 1:
        elsewhere = {f"grad.{name}" for name in tied}
        return [{name: shape for name, shape in layer.reduced.items() if name not in elsewhere}]
    beside = {name: shape for name, shape in layer.reduced.items() if not name.startswith("grad.")}
    found: list[Mapping[str, Shape]] = []
    for slices in buckets.cut(sizes, into):
        flat = {f"grad.{names[x.parameter]}": (x.end - x.start, names[x.parameter]) for x in slices}
        own = {name: (layer.parameters[of][0], (length,)) for name, (length, of) in flat.items()}
        found.append(own if found else beside | own)
    return found


def accumulated(layers: Sequence[LayerShapes]) -> Mapping[str, Shape]:
    """What a stage's gradients may have come to: those of its parameters, by layer and name."""
    return {f"{i}.{name}": shape for i, layer in enumerate(layers) for name, shape in layer.parameters.items()}


def state_problem(header: tensor_pb2.ValueHeader, layer: LayerShapes) -> str:
    """What is wrong with the header of a layer's whole state. Only the optimizer knows its own tensors: they pass."""
    own = tensor_pb2.ValueHeader(tensors=[s for s in header.tensors if s.name.partition(".")[0] in OF_THE_MODEL])
    if wrong := problem(header) or unknown(own, layer.state):
        return wrong
    names = {spec.name for spec in own.tensors}
    lacking = [name for name in layer.state if name.startswith("parameter.") and name not in names]
    return f"the state lacks the {lacking[0].replace('.', ' ', 1)}" if lacking else ""


def unknown(header: tensor_pb2.ValueHeader, known: Mapping[str, Shape]) -> str:
    """The first tensor that is not among the known ones, comes twice, or has another dtype or shape."""
    seen: set[str] = set()
    for spec in header.tensors:
        if spec.name in seen:
            return f"the tensor {spec.name[:80]!r} comes twice"
        seen.add(spec.name)
        wanted = known.get(spec.name)
        if wanted is None:
            return f"the tensor {spec.name[:80]!r} is not one that the job's code has there"
        if wanted != (spec.dtype, tuple(spec.shape)):
            said = f"{spec.dtype[:32]} {list(spec.shape)[:8]}"
            return f"the tensor {spec.name[:80]!r} is {said}; in the job's code it is {wanted[0]} {list(wanted[1])}"
    return ""
