"""A graph cut into chunks: what each chunk takes of which other, and where it lies in memory."""

# Chunks are the job's, as pipelines are: how many servers there are changes none of them. A chunk of n vertices takes
# values of S vertices, its *sources*: its own n first, in their order, then those of other chunks that have edges into
# it, chunk by chunk and each once. What a chunk computes of these is a function of the chunk alone, so every bit of it
# is the same on whatever server.
#
#     chunk 1 takes of             its own n        chunk 0      chunk 2
#     rows of x [S, d]        0 .. n - 1       n .. n + 2   n + 3 ..
#     of chunk q it takes          all              ``taken[0]``, rows of chunk 0's output
#
# Edges lie in the order of their targets, and those of one target in the order of their sources' numbers in the graph.
# So a vertex's neighbours are added in one order.

import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import torch
import xxhash

from culm.pipeline.errors import JobError
from culm.pipeline.neighbours import Neighbours
from culm.pipeline.user_code.graph.graph import Graph
from culm.pipeline.user_code.graph.partition import parted


class Rows(NamedTuple):
    """Which rows of another chunk's output a chunk takes, and from which row of its own sources on they lie."""

    rows: torch.Tensor  # int64
    first: int


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """``starts`` [n + 1]: where each target's edges begin; ``sources`` [E]: rows of what the chunk takes."""

    number: int
    vertices: torch.Tensor  # int64 [n]: their numbers in the graph, ascending
    taken: Mapping[int, Rows]  # by other chunk, ascending: what of it is among the sources
    starts: torch.Tensor
    sources: torch.Tensor
    weights: torch.Tensor  # float32 [E]
    inputs: torch.Tensor  # [S, F]: the features of its sources
    labels: torch.Tensor  # [n]
    train: torch.Tensor  # bool [n], as the next two
    valid: torch.Tensor
    test: torch.Tensor

    @property
    def features(self) -> torch.Tensor:
        """Of its own vertices, [n, F]."""
        return self.inputs[: self.size]

    @property
    def size(self) -> int:
        """Its vertices."""
        return len(self.vertices)

    @cached_property
    def source_count(self) -> int:
        return self.size + sum(len(rows) for rows, _ in self.taken.values())

    @cached_property
    def targets(self) -> torch.Tensor:
        """The row of each edge's target. int64 [E]"""
        return self._each_target()

    def _each_target(self) -> torch.Tensor:
        return torch.repeat_interleave(torch.arange(self.size), self.starts.diff())

    @cached_property
    def matrix(self) -> torch.Tensor:
        """[n, S], of the edges' weights, in rows."""
        return _in_rows(self.starts, self.sources, self.weights, (self.size, self.source_count))

    @cached_property
    def transposed(self) -> torch.Tensor:
        """[S, n], the same: of each source the edges that begin there, in the order of their targets."""
        order = torch.argsort(self.sources, stable=True)
        counts = torch.bincount(self.sources, minlength=self.source_count)
        starts = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
        targets = self._each_target()[order]  # kept by nobody else: an edge is to take little memory
        return _in_rows(starts, targets, self.weights[order], (self.source_count, self.size))


def _in_rows(starts: torch.Tensor, columns: torch.Tensor, values: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(starts, columns, values, size, check_invariants=False)


class Chunks(Protocol):
    """A graph's chunks, wherever they lie. As a dataset its samples are ``(features, labels)`` of each, in order."""

    @property
    def contents(self) -> str:
        """A hash of the whole graph and of its chunks: nodes compare it, beside some of the samples (rule 23)."""

    @property
    def neighbours(self) -> Neighbours:
        """Which chunks have edges into which."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]: ...

    def chunk(self, number: int) -> Chunk:
        """It is made, or read, when it is first asked for, and kept. Raises JobError where it cannot be read."""

    def rows(self, taker: int, of: int) -> torch.Tensor:
        """Which rows of a chunk's output another chunk takes; of its own it takes all. int64"""

    def keep(self, numbers: Collection[int]) -> None:
        """Lets go of what is kept of all other chunks."""


class ChunkedGraph:
    """The chunks of a graph that lies in memory, which makes them."""

    def __init__(self, graph: Graph, chunks: int, partitioner: str = "range") -> None:
        """Raises JobError where there are more chunks than vertices."""
        graph.check()
        if chunks > graph.vertices:
            what = f"{chunks} chunks are asked for, and the graph has {graph.vertices} vertices"
            raise JobError(what, "graph.chunks", f"set it to {graph.vertices} or less")
        self.graph = graph
        self._chunk_of = parted(graph, chunks, partitioner)
        order = torch.argsort(self._chunk_of, stable=True)
        self._vertices = torch.split(order, torch.bincount(self._chunk_of, minlength=chunks).tolist())
        self._row = torch.empty_like(order)  # of each vertex in its chunk
        for vertices in self._vertices:
            self._row[vertices] = torch.arange(len(vertices))
        # Edges by chunk, target and source: each chunk's lie end to end.
        into = self._chunk_of[graph.targets]
        by_source = torch.argsort(graph.sources, stable=True)
        by_chunk = (into * graph.vertices + graph.targets)[by_source]
        self._edges = by_source[torch.argsort(by_chunk, stable=True)]
        self._counts = torch.bincount(into, minlength=chunks).tolist()
        self._made: dict[int, Chunk] = {}
        self._rows: dict[tuple[int, int], torch.Tensor] = {}

    def __len__(self) -> int:
        return len(self._vertices)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        vertices = self._vertices[number]
        return self.graph.features[vertices], self.graph.labels[vertices]

    @cached_property
    def contents(self) -> str:
        graph, digest = self.graph, xxhash.xxh3_128()
        parts = (graph.sources, graph.targets, graph.weights, graph.features, graph.labels)
        for part in (*parts, graph.train, graph.valid, graph.test, self._chunk_of):
            said = "none" if part is None else f"{part.dtype} {list(part.shape)}"
            digest.update(f"{said}\n".encode())
            if part is not None and part.numel():
                digest.update(part.contiguous().view(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def chunk(self, number: int) -> Chunk:
        if number not in self._made:
            self._made[number] = self._make(number)
        return self._made[number]

    @cached_property
    def neighbours(self) -> Neighbours:
        count = len(self)
        pairs = self._chunk_of[self.graph.targets] * count + self._chunk_of[self.graph.sources]
        linked = torch.unique(pairs).tolist()
        before: list[set[int]] = [{p} for p in range(count)]
        for pair in linked:
            before[pair // count].add(pair % count)
        return Neighbours(tuple(tuple(sorted(of)) for of in before))

    def rows(self, taker: int, of: int) -> torch.Tensor:
        if taker == of:
            return torch.arange(len(self._vertices[of]))
        if taker in self._made:
            return self._made[taker].taken[of].rows
        if (taker, of) not in self._rows:
            sources = self.graph.sources[self._edges_into(taker)]
            self._rows[taker, of] = torch.unique(self._row[sources[self._chunk_of[sources] == of]])
        return self._rows[taker, of]

    def keep(self, numbers: Collection[int]) -> None:
        self._made = {number: made for number, made in self._made.items() if number in numbers}
        self._rows = {pair: rows for pair, rows in self._rows.items() if pair[1] in numbers}

    def _edges_into(self, number: int) -> torch.Tensor:
        first = sum(self._counts[:number])
        return self._edges[first : first + self._counts[number]]

    def _make(self, number: int) -> Chunk:
        graph, vertices = self.graph, self._vertices[number]
        edges = self._edges_into(number)
        sources, rows = graph.sources[edges], self._row[graph.targets[edges]]
        of = self._chunk_of[sources]
        place, size = self._row[sources], graph.vertices
        others = of != number
        # By chunk and row, each once: that is their order among the sources, behind the chunk's own.
        found, inverse = torch.unique(of[others] * size + place[others], return_inverse=True)
        place[others] = inverse + len(vertices)
        firsts = torch.searchsorted(found, torch.arange(len(self) + 1) * size).tolist()
        taken = {
            other: Rows(found[firsts[other] : firsts[other + 1]] - other * size, firsts[other] + len(vertices))
            for other in self.neighbours.before[number]
            if other != number
        }
        starts = torch.cat([torch.zeros(1, dtype=torch.int64), torch.bincount(rows, minlength=len(vertices)).cumsum(0)])
        return Chunk(
            number=number,
            vertices=vertices,
            taken=taken,
            starts=starts,
            sources=place,
            weights=graph.weights[edges] if graph.weights is not None else torch.ones(len(edges)),
            inputs=graph.features[torch.cat([vertices, *(self._vertices[q][rows] for q, (rows, _) in taken.items())])],
            labels=graph.labels[vertices],
            train=graph.train[vertices],
            valid=_mask(graph.valid, vertices),
            test=_mask(graph.test, vertices),
        )


def _mask(of: torch.Tensor | None, vertices: torch.Tensor) -> torch.Tensor:
    return of[vertices] if of is not None else torch.zeros(len(vertices), dtype=torch.bool)
