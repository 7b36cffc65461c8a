"""Which chunk each vertex is in."""

import torch

from culm.pipeline.errors import JobError
from culm.pipeline.user_code.graph.graph import Graph

PARTITIONERS = ("range", "hash", "metis")
_SPREAD = 0x9E3779B1  # Knuth's multiplicative hash: 2^32 over the golden ratio


def parted(graph: Graph, chunks: int, by: str) -> torch.Tensor:
    """The chunk of each vertex, int64 [V]; no chunk is empty. Raises JobError.

    range: about as many vertices in each, in their order; hash: the same after they are spread; metis: few edges
    between chunks, by pymetis, the same on every machine that has the same version of it.
    """
    count = graph.vertices
    if by == "metis":
        return _by_metis(graph, chunks)
    places = torch.arange(count)
    if by == "hash":
        places = torch.argsort(torch.argsort((places * _SPREAD) % (1 << 32), stable=True), stable=True)
    return places * chunks // count


def _by_metis(graph: Graph, chunks: int) -> torch.Tensor:
    try:
        import pymetis
    except ImportError as error:
        mend = "pip install 'culm[graphs]', or use range or hash"
        raise JobError("pymetis is not installed", "graph.partitioner", mend) from error
    both = graph.undirected()
    inside = both.sources != both.targets
    sources, targets = both.sources[inside], both.targets[inside]
    order = torch.argsort(targets, stable=True)
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), torch.bincount(targets, minlength=graph.vertices).cumsum(0)])
    adjacency = pymetis.CSRAdjacency(starts.numpy(), sources[order].numpy())
    _, found = pymetis.part_graph(chunks, adjacency=adjacency)
    return _none_empty(torch.tensor(found, dtype=torch.int64), chunks)


def _none_empty(found: torch.Tensor, chunks: int) -> torch.Tensor:
    """Each empty chunk gets the last vertex of the largest one."""
    for chunk in range(chunks):
        counts = torch.bincount(found, minlength=chunks)
        if not counts[chunk]:
            found[torch.nonzero(found == counts.argmax()).flatten()[-1]] = chunk
    return found
