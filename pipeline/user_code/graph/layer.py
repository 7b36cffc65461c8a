"""A layer on a graph, as four functions: two that follow edges, and two that compute with parameters."""

# After Thorpe et al., Dorylus (OSDI 2021). A layer gives new values for a chunk's vertices:
#
#     scatter         x [S, d] -> of each edge what ``apply_edge`` takes      graph work: memory, no parameters
#     apply_edge      of each edge, with parameters -> messages [E, ...]      tensor work
#     gather          messages or x -> sums [n, d] by target                  graph work
#     apply_vertex    sums [n, d] and own values, with parameters -> [n, k]   tensor work
#
# Graph work is done where the chunk lies. Tensor work depends on nothing but its arguments, the parameters and a seed,
# so anybody may do it, and do it again (``tasks``): ``run`` says who. A layer without ``apply_edge`` skips the first
# two.

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import nn

from culm.pipeline.user_code.graph.chunks import Chunk

EDGE, VERTEX = "apply_edge", "apply_vertex"
# Called with the layer, the name of one of its functions of parameters, and its arguments; gives what it gives.
Runs = Callable[["GraphLayer", str, tuple[torch.Tensor, ...]], torch.Tensor]


def here(layer: "GraphLayer", name: str, arguments: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Does tensor work in this very place."""
    found: torch.Tensor = getattr(layer, name)(*arguments)
    return found


class GraphLayer(nn.Module):
    """Subclasses give ``apply_vertex``, and ``apply_edge`` where ``by_edge`` is set."""

    by_edge: ClassVar[bool] = False
    wants_own: ClassVar[bool] = False  # whether ``apply_vertex`` takes the vertices' own values beside the sums

    def scatter(self, chunk: Chunk, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """x: [S, d], of the chunk's sources. By default the values of each edge's two ends, [E, d] each."""
        return x.index_select(0, chunk.sources), x.index_select(0, chunk.targets)

    def apply_edge(self, *ends: torch.Tensor) -> torch.Tensor:
        """What ``scatter`` gave, row by row of an edge -> a message of each, [E, ...]."""
        raise NotImplementedError

    def gather(self, chunk: Chunk, values: torch.Tensor) -> torch.Tensor:
        """values: x [S, d], or the messages. By default sums by target, [n, d], with the edges' weights."""
        return add_up_messages(chunk, values) if self.by_edge else add_up(chunk, values)

    def apply_vertex(self, *values: torch.Tensor) -> torch.Tensor:
        """What ``gather`` gave, [n, ...], and where the layer ``wants_own`` the chunk's own values, [n, d] -> their new
        ones, [n, k].
        """
        raise NotImplementedError

    def forward(self, chunk: Chunk, x: torch.Tensor, run: Runs = here) -> torch.Tensor:
        """x: [S, d], as ``Chunk`` has its sources -> [n, k]."""
        values = run(self, EDGE, self.scatter(chunk, x)) if self.by_edge else x
        gathered = self.gather(chunk, values)
        return run(self, VERTEX, (gathered, x[: chunk.size]) if self.wants_own else (gathered,))


class _Multiplied(torch.autograd.Function):
    """The chunk's matrix times x; its backward is the transposed one times the gradient."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, chunk: Chunk) -> torch.Tensor:
        context.chunk = chunk
        return chunk.matrix @ x

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        chunk: Chunk = context.chunk
        return chunk.transposed @ gradients[0], None


def add_up(chunk: Chunk, x: torch.Tensor) -> torch.Tensor:
    """x: [S, d] -> [n, d]: of each vertex the sum over its neighbours, by the edges' weights."""
    found: torch.Tensor = _Multiplied.apply(x, chunk)  # type: ignore[no-untyped-call]
    return found


def add_up_messages(chunk: Chunk, messages: torch.Tensor) -> torch.Tensor:
    """messages: [E, ...] -> [n, ...]: the sum over each vertex's edges, in their order."""
    return torch.segment_reduce(messages, "sum", offsets=chunk.starts, initial=0.0)


def softmax_by_target(chunk: Chunk, logits: torch.Tensor) -> torch.Tensor:
    """logits: [E, ...] -> [E, ...]: of each vertex's edges they come to 1."""
    most = torch.segment_reduce(logits.detach(), "max", offsets=chunk.starts)
    raised = (logits - most.index_select(0, chunk.targets)).exp()
    return raised / add_up_messages(chunk, raised).index_select(0, chunk.targets)
