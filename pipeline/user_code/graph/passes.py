"""A chunk's forward and backward through one layer: what it takes of others, and what it gives to each of them."""

# Both are functions of the chunk and of what comes from others, so whoever runs them gets the same bits. A chunk has a
# graph of torch's of its own for each layer: what others gave is its leaf.

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from culm.pipeline.tensors.as_sent import as_sent
from culm.pipeline.user_code.graph.chunks import Chunk, Chunks


class Taken(NamedTuple):
    """What a chunk's forward has taken, [S, d], and what came of it."""

    x: torch.Tensor
    output: torch.Tensor


def sources_of(chunk: Chunk, given: Mapping[int, torch.Tensor]) -> torch.Tensor:
    """The values of its sources, [S, d]. ``given``: the outputs of all chunks before it, by number; its own too."""
    return torch.cat([given[chunk.number], *(given[q].index_select(0, rows) for q, (rows, _) in chunk.taken.items())])


def gradient_of(graph: Chunks, number: int, given: Mapping[int, torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    """The gradient of a chunk's output: of all chunks after it, added in their order. ``like``: that output."""
    total = torch.zeros_like(like)
    for q in graph.neighbours.after[number]:
        if q not in given:
            continue  # it gave none
        if q == number:
            total += given[q]
        else:
            total.index_add_(0, graph.rows(q, of=number), given[q])
    return total


def parts_of(chunk: Chunk, before: Sequence[int], gradient: torch.Tensor) -> dict[int, torch.Tensor]:
    """What goes to each chunk before it, by its place among these. ``gradient``: of its sources, [S, d]."""
    found = {}
    for place, q in enumerate(before):
        first, count = (0, chunk.size) if q == chunk.number else (chunk.taken[q].first, len(chunk.taken[q].rows))
        found[place] = as_sent(gradient[first : first + count])
    return found
