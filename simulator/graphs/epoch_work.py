"""What one chunk does in an epoch: its tasks in order, with the work and the bytes of each. Pure."""

# GCN, layer by layer: gather (over edges), apply vertex (a product), scatter (to ghosts, where another layer follows).
# GAT has apply vertex first and then scatter, apply edge (a score an edge) and gather, as the published system has it:
# vertices are multiplied once, and not once for each of their edges. Backwards are the same tasks in reverse.
#
#     GCN, two layers    gather0 vertex0 scatter0 | gather1 vertex1 loss vertex1' scatter1' | gather1' vertex0'
#     GAT, two layers    vertex0 scatter0 | edge0 gather0 vertex1 scatter1 | edge1 gather1 scatter1' | gather1' ...
#
# A bar is where a chunk waits for its neighbours' values: that scatter *publishes*, and the task behind it *awaits*.
# Nobody needs the gradient of the features, so the last gather of a GCN's backward is left out.
#
#     work                       operations                        bytes to a worker         back
#     gather                     e x d adds                        (graph work)
#     apply vertex               2 x n x d x k                     n x d                     n x k
#     its backward               4 x n x d x k (2 for features)    n x d, n x k              n x d (none for features)
#     apply edge                 EDGE_OPERATIONS x e               two scores an edge        one an edge
#     its backward               twice that                        three an edge             two an edge
#     loss                       LOSS_OPERATIONS x n x k           with the last apply vertex
#
# Assumed: a score of one head; weights are small and stay with a worker; all values have four bytes. A GAT's loss is
# left out: it is little beside the gather before it.

from dataclasses import dataclass
from typing import Literal

BYTES = 4
EDGE_OPERATIONS = 40.0  # two scores added, leaky ReLU, an exponential, a division: few of them vectorise
LOSS_OPERATIONS = 20.0  # softmax, of each class
Place = Literal["graph", "tensor", "network"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """``work``: adds of graph work, operations of tensor work, bytes of the network."""

    kind: str
    layer: int
    place: Place
    work: float
    to_worker: float = 0.0  # bytes
    from_worker: float = 0.0  # bytes
    awaits: int | None = None  # an exchange of values between chunks, numbered in an epoch
    publishes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkSize:
    """``ghosts``: rows that go to other servers, each as often as there are servers that want it."""

    vertices: float
    edges: float
    ghosts: float


def copies(others: int, degree: float, apart: float) -> float:
    """To how many other servers a vertex's values go, in the mean. ``apart``: the share of edges between servers.

    Degrees are taken to be geometric, and edges that leave a server to lead to any other one.
    """
    leaving = degree * apart
    return others * leaving / (others + leaving) if leaving else 0.0


def tasks(size: ChunkSize, sizes: tuple[int, ...], attention: bool, features_gathered: bool = True) -> list[Task]:
    """Of an epoch, in order. ``features_gathered``: False if the first layer's sums, which never change, are kept."""
    return _attention(size, sizes) if attention else _convolution(size, sizes, features_gathered)


def _convolution(size: ChunkSize, sizes: tuple[int, ...], features_gathered: bool) -> list[Task]:
    last = len(sizes) - 2
    found: list[Task] = []
    for layer in range(last + 1):
        if layer or features_gathered:
            found.append(_gather(size, layer, sizes[layer], awaits=layer - 1 if layer else None))
        found.append(_vertex(size, layer, sizes, loss=layer == last))
        if layer < last:
            found.append(_scatter(size, layer, sizes[layer + 1], publishes=layer))
    exchange = last
    for layer in range(last, -1, -1):
        found.append(_vertex_back(size, layer, sizes))
        if layer:
            found.append(_scatter(size, layer, sizes[layer], publishes=exchange, back=True))
            found.append(_gather(size, layer, sizes[layer], awaits=exchange, back=True))
            exchange += 1
    return found


def _attention(size: ChunkSize, sizes: tuple[int, ...]) -> list[Task]:
    last = len(sizes) - 2
    found: list[Task] = []
    for layer in range(last + 1):
        found.append(_vertex(size, layer, sizes))
        found.append(_scatter(size, layer, sizes[layer + 1], publishes=layer))
        found.append(_edge(size, layer, awaits=layer))
        found.append(_gather(size, layer, sizes[layer + 1]))
    exchange = last + 1
    for layer in range(last, -1, -1):
        found.append(_scatter(size, layer, sizes[layer + 1], publishes=exchange, back=True))
        found.append(_gather(size, layer, sizes[layer + 1], awaits=exchange, back=True))
        found.append(_edge(size, layer, back=True))
        found.append(_vertex_back(size, layer, sizes))
        exchange += 1
    return found


def _gather(size: ChunkSize, layer: int, width: int, awaits: int | None = None, back: bool = False) -> Task:
    kind = "gather'" if back else "gather"
    return Task(kind=kind, layer=layer, place="graph", work=size.edges * width, awaits=awaits)


def _vertex(size: ChunkSize, layer: int, sizes: tuple[int, ...], loss: bool = False) -> Task:
    n, d, k = size.vertices, sizes[layer], sizes[layer + 1]
    return Task(
        kind="apply vertex",
        layer=layer,
        place="tensor",
        work=2 * n * d * k + (LOSS_OPERATIONS * n * k if loss else 0.0),
        to_worker=BYTES * n * d,
        from_worker=BYTES * n * k,
    )


def _vertex_back(size: ChunkSize, layer: int, sizes: tuple[int, ...]) -> Task:
    n, d, k = size.vertices, sizes[layer], sizes[layer + 1]
    return Task(
        kind="apply vertex'",
        layer=layer,
        place="tensor",
        work=(4 if layer else 2) * n * d * k,
        to_worker=BYTES * n * (d + k),
        from_worker=BYTES * n * d if layer else 0.0,
    )


def _scatter(size: ChunkSize, layer: int, width: int, publishes: int, back: bool = False) -> Task:
    return Task(
        kind="scatter'" if back else "scatter",
        layer=layer,
        place="network",
        work=BYTES * size.ghosts * width,
        publishes=publishes,
    )


def _edge(size: ChunkSize, layer: int, awaits: int | None = None, back: bool = False) -> Task:
    return Task(
        kind="apply edge'" if back else "apply edge",
        layer=layer,
        place="tensor",
        work=(2 if back else 1) * EDGE_OPERATIONS * size.edges,
        to_worker=(3 if back else 2) * BYTES * size.edges,
        from_worker=(2 if back else 1) * BYTES * size.edges,
        awaits=awaits,
    )
