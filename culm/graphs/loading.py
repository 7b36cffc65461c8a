"""The dataset of a job with a [graph]: the graph that its callable gives, cut into the job's chunks."""

from copy import deepcopy
from typing import Any

from culm.graphs.chunk_folder import ChunkFolder
from culm.pipeline.errors import JobError
from culm.pipeline.user_code.graph.chunks import ChunkedGraph, Chunks
from culm.pipeline.user_code.graph.graph import MEND, WHERE, Graph
from culm.pipeline.user_code.imports import called, load_callable


def chunked(data: str, args: dict[str, Any], chunks: int, partitioner: str) -> Chunks:
    """As [graph] says. Raises JobError."""
    made = called(load_callable(data, WHERE), deepcopy(args), WHERE)  # it may write into them
    if isinstance(made, ChunkFolder):
        made.check_fits(chunks, partitioner)
        return made
    if not isinstance(made, Graph):
        raise JobError(f"the callable returned a {type(made).__name__}, not a graph", f"{WHERE}, {data}", MEND)
    return ChunkedGraph(made, chunks, partitioner)
