"""Tries a graph's job on one epoch's forward, so that a mistake in it shows before anything starts."""

# Each chunk is tried alone, through all layers, and let go of: all chunks, or one layer's values of all vertices, may
# not fit into this machine's memory. So what a chunk takes of others after the first layer are values of its own.
#
# A chunk is kept from epoch to epoch, and what a function of parameters is given may be sent to a tensor worker, or be
# needed by its backward. So nobody may write there. There may be no memory for copies, so checksums are compared.

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import partial

import torch

from culm.pipeline.errors import JobError
from culm.pipeline.job import Job
from culm.pipeline.tensors.bits import checksum
from culm.pipeline.user_code.graph.chunks import Chunk, Chunks
from culm.pipeline.user_code.graph.layer import EDGE, VERTEX, GraphLayer, Runs
from culm.pipeline.user_code.graph.tasks import loss_seed, seeded, task_seed
from culm.pipeline.user_code.imports import RAISED, described
from culm.pipeline.user_code.losses import refuse_parameters, taken, tally_of
from culm.pipeline.user_code.model import ModelSource
from culm.pipeline.user_code.streams import seed_all


@torch.no_grad()
def check_graph(source: ModelSource, job: Job, graph: Chunks) -> None:
    """Raises JobError naming the layer."""
    assert job.graph is not None, "the job has no graph"
    if source.layer_count != job.graph.layers:
        what = f"graph.layers is {job.graph.layers}, and the model has {source.layer_count} layers"
        raise JobError(what, "graph.layers", f"set it to {source.layer_count}")
    layers = [_built(source, index) for index in range(source.layer_count)]
    for number in range(len(graph)):
        _try_chunk(source, job, layers, graph.chunk(number))
        graph.keep(())


def _try_chunk(source: ModelSource, job: Job, layers: Sequence[GraphLayer], chunk: Chunk) -> None:
    x = output = chunk.inputs
    for index, layer in enumerate(layers):
        output = _tried(job, layer, index, chunk, x)
        x = _with_others(chunk, output)
    seed_all(loss_seed(job.job.seed, 0, chunk.number, len(layers) - 1))
    try:
        with _unwritten(_tensors_of(chunk), "the loss writes into its chunk", "train.loss"), torch.enable_grad():
            leaf = output.detach().requires_grad_()
            loss, counts = taken(source.loss(leaf.clone(), chunk), job)
        tally_of(loss, counts)
        refuse_parameters(loss, [leaf])
    except JobError:
        raise
    except RAISED as error:
        what = f"the loss raised {described(error)}"
        raise JobError(what, "train.loss", "call it with (output, chunk)") from error


def _built(source: ModelSource, index: int) -> GraphLayer:
    layer = source.build(index)
    if not isinstance(layer, GraphLayer):
        what = f"layer {index} is a {type(layer).__name__}, and the job trains on a graph"
        raise JobError(what, "model.layers", "make it a culm.graphs.GraphLayer")
    if next(layer.named_buffers(), None) is not None:
        what = f"layer {index} ({type(layer).__name__}) has buffers, which chunks cannot share"
        raise JobError(what, "model.layers", "use layers without buffers, such as LayerNorm")
    return layer


def _tried(job: Job, layer: GraphLayer, index: int, chunk: Chunk, x: torch.Tensor) -> torch.Tensor:
    where, name = f"model.layers, layer {index}", f"layer {index} ({type(layer).__name__})"
    run, used = seeded(partial(task_seed, job.job.seed, 0, chunk.number, index)), dict[str, set[str]]()
    telling = _telling(run, used) if layer.by_edge else run

    def watched(of: GraphLayer, function: str, arguments: tuple[torch.Tensor, ...]) -> torch.Tensor:
        with _unwritten(arguments, f"{function} of {name} writes into what it is given", where):
            return telling(of, function, arguments)

    try:
        with _unwritten([*_tensors_of(chunk), x], f"{name} writes into its chunk or its input", where):
            found: torch.Tensor = layer(chunk, x, watched)
    except JobError:
        raise
    except RAISED as error:
        what = f"{name} raised {described(error)} on chunk {chunk.number}"
        raise JobError(what, where, "correct it, or the sizes of the layers") from error
    shape = getattr(found, "shape", None)
    if shape is None or len(shape) != 2 or shape[0] != chunk.size:
        what = f"layer {index} gave {list(shape) if shape is not None else 'no tensor'} for {chunk.size} vertices"
        raise JobError(what, where, "let apply_vertex return a row for each vertex, [n, k]")
    # A server adds up what each use of it gives; where a worker does a function, that function's sum comes as one.
    if both := sorted(used.get(EDGE, set()) & used.get(VERTEX, set())):
        what = f"{name} uses its parameter {both[0]} in {EDGE} and in {VERTEX}"
        raise JobError(what, where, "give each of the two functions parameters of its own")
    return found


@contextmanager
def _unwritten(tensors: Sequence[torch.Tensor], what: str, where: str) -> Iterator[None]:
    """Raises JobError where one of these is another afterwards. ``what``: in words."""
    before = _state_of(tensors)
    yield
    if _state_of(tensors) != before:
        raise JobError(what, where, "write nothing in place there (inplace=False), or into a copy (clone())")


def _state_of(tensors: Sequence[torch.Tensor]) -> list[tuple[int, int]]:
    return [(tensor._version, int(checksum(tensor))) for tensor in tensors]  # writes through .data count no version


def _tensors_of(chunk: Chunk) -> list[torch.Tensor]:
    values = (getattr(chunk, field.name) for field in fields(chunk))
    return [value for value in values if isinstance(value, torch.Tensor)]


def _telling(run: Runs, used: dict[str, set[str]]) -> Runs:
    """Does the same, and notes of each function which parameters it gives gradients of, by name."""

    def tell(layer: GraphLayer, function: str, arguments: tuple[torch.Tensor, ...]) -> torch.Tensor:
        named = {name: parameter for name, parameter in layer.named_parameters() if parameter.requires_grad}
        with torch.enable_grad():
            found = run(layer, function, tuple(x.detach() for x in arguments))
            if not getattr(found, "requires_grad", False) or not named:
                return found  # also what is no tensor: the caller says so
            gradients: Sequence[torch.Tensor | None] = torch.autograd.grad(
                found.sum(), [*named.values()], allow_unused=True
            )
        used[function] = {name for name, gradient in zip(named, gradients, strict=True) if gradient is not None}
        return found.detach()

    return tell


def _with_others(chunk: Chunk, own: torch.Tensor) -> torch.Tensor:
    """own: [n, k] -> [S, k], its rows once more for the vertices of other chunks."""
    others = torch.arange(chunk.source_count - chunk.size) % chunk.size
    return torch.cat([own, own.index_select(0, others)])
