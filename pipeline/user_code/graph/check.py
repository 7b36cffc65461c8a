"""Tries a graph's job on one epoch's forward, so that a mistake in it shows before anything starts."""

from functools import partial

import torch

from culm.pipeline.errors import JobError
from culm.pipeline.job import Job
from culm.pipeline.user_code.graph.chunks import ChunkedGraph
from culm.pipeline.user_code.graph.layer import GraphLayer
from culm.pipeline.user_code.graph.passes import sources_of
from culm.pipeline.user_code.graph.tasks import seeded, task_seed
from culm.pipeline.user_code.imports import RAISED, described
from culm.pipeline.user_code.losses import taken, tally_of
from culm.pipeline.user_code.model import ModelSource


@torch.no_grad()
def check_graph(source: ModelSource, job: Job, graph: ChunkedGraph) -> None:
    """Raises JobError naming the layer."""
    assert job.graph is not None, "the job has no graph"
    if source.layer_count != job.graph.layers:
        what = f"graph.layers is {job.graph.layers}, and the model has {source.layer_count} layers"
        raise JobError(what, "graph.layers", f"set it to {source.layer_count}")
    chunks = [graph.chunk(p) for p in range(len(graph))]
    values = {chunk.number: chunk.features for chunk in chunks}
    for index in range(source.layer_count):
        layer = source.build(index)
        where = f"model.layers, layer {index}"
        if not isinstance(layer, GraphLayer):
            what = f"layer {index} is a {type(layer).__name__}, and the job trains on a graph"
            raise JobError(what, "model.layers", "make it a culm.graphs.GraphLayer")
        if next(layer.named_buffers(), None) is not None:
            what = f"layer {index} ({type(layer).__name__}) has buffers, which chunks cannot share"
            raise JobError(what, "model.layers", "use layers without buffers, such as LayerNorm")
        found = {}
        for chunk in chunks:
            seed_of = partial(task_seed, job.job.seed, 0, chunk.number, index)
            try:
                found[chunk.number] = layer(chunk, sources_of(chunk, values), seeded(seed_of))
            except RAISED as error:
                what = f"layer {index} ({type(layer).__name__}) raised {described(error)} on chunk {chunk.number}"
                raise JobError(what, where, "correct it, or the sizes of the layers") from error
            shape = getattr(found[chunk.number], "shape", None)
            if shape is None or len(shape) != 2 or shape[0] != chunk.size:
                what = (
                    f"layer {index} gave {list(shape) if shape is not None else 'no tensor'} for {chunk.size} vertices"
                )
                raise JobError(what, where, "let apply_vertex return a row for each vertex, [n, k]")
        values = found
    for chunk in chunks:
        try:
            loss, counts = taken(source.loss(values[chunk.number], chunk), job)
            tally_of(loss, counts)
        except RAISED as error:
            raise JobError(
                f"the loss raised {described(error)}", "train.loss", "call it with (output, chunk)"
            ) from error
