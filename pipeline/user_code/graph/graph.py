"""A graph to train on: vertices with features and labels, and directed edges between them."""

from dataclasses import dataclass, field, replace

import torch

from culm.pipeline.errors import JobError

WHERE = "graph.data"
MEND = "let the callable return a culm.graphs.Graph whose tensors fit each other"


@dataclass(frozen=True, kw_only=True)
class Graph:
    """V vertices, numbered from 0, and E edges from ``sources[e]`` to ``targets[e]``.

    sources, targets: int64 [E]. features: float [V, F]. labels: int64 [V] for classes, or as the loss takes them.
    ``weights``: float [E], by which a neighbour's values count in a sum; 1 where it is None. train, valid, test: bool
    [V], the vertices that each is over; none where it is None. ``names``: of classes, for people.
    """

    sources: torch.Tensor
    targets: torch.Tensor
    features: torch.Tensor
    labels: torch.Tensor
    train: torch.Tensor
    weights: torch.Tensor | None = None
    valid: torch.Tensor | None = None
    test: torch.Tensor | None = None
    names: tuple[str, ...] = field(default=())

    @property
    def vertices(self) -> int:
        return len(self.features)

    def check(self) -> "Graph":
        """The graph itself. Raises JobError where its tensors do not fit each other."""
        if self.features.dim() != 2 or not self.features.is_floating_point():
            what = f"the features are {self.features.dtype} {list(self.features.shape)}, not floating point [V, F]"
            raise JobError(what, WHERE, MEND)
        count = self.vertices
        if not count:
            raise JobError("the graph has no vertices", WHERE, MEND)
        if self.sources.shape != self.targets.shape or self.sources.dim() != 1:
            shapes = f"{list(self.sources.shape)} and {list(self.targets.shape)}"
            raise JobError(f"the edges' sources and targets have the shapes {shapes}, not both [E]", WHERE, MEND)
        for name, ends in (("sources", self.sources), ("targets", self.targets)):
            if ends.dtype != torch.int64:
                raise JobError(f"the edges' {name} are {ends.dtype}, not torch.int64", WHERE, MEND)
            if len(ends) and not 0 <= int(ends.min()) <= int(ends.max()) < count:
                what = (
                    f"the edges' {name} go from {int(ends.min())} to {int(ends.max())}, and there are {count} vertices"
                )
                raise JobError(what, WHERE, MEND)
        if self.weights is not None and self.weights.shape != self.sources.shape:
            raise JobError(f"there are {len(self.weights)} weights for {len(self.sources)} edges", WHERE, MEND)
        if self.weights is not None and not self.weights.is_floating_point():
            raise JobError(f"the edges' weights are {self.weights.dtype}, not floating point", WHERE, MEND)
        for name, of_vertices in (
            ("labels", self.labels),
            ("train", self.train),
            ("valid", self.valid),
            ("test", self.test),
        ):
            if of_vertices is not None and len(of_vertices) != count:
                raise JobError(f"{name} has {len(of_vertices)} rows, and there are {count} vertices", WHERE, MEND)
        # Whole numbers would be taken for rows: zeros and ones train on vertices 0 and 1 alone.
        for name, mask in (("train", self.train), ("valid", self.valid), ("test", self.test)):
            if mask is not None and (mask.dtype != torch.bool or mask.dim() != 1):
                raise JobError(f"{name} is {mask.dtype} {list(mask.shape)}, not torch.bool [V]", WHERE, MEND)
        if not bool(self.train.any()):
            raise JobError("no vertex is trained on", WHERE, "set train for some")
        return self

    def undirected(self) -> "Graph":
        """With each edge in both directions, once. Weights are dropped."""
        ends = torch.stack([torch.cat([self.sources, self.targets]), torch.cat([self.targets, self.sources])])
        sources, targets = torch.unique(ends, dim=1)
        return replace(self, sources=sources, targets=targets, weights=None)

    def normalized(self) -> "Graph":
        """With a loop at every vertex, and the weights of Kipf and Welling (ICLR 2017): 1 / sqrt(degree * degree).

        Degrees count edges that come in, loops among them. A loop that is there already is not added again.
        """
        here = self.sources != self.targets
        loops = torch.arange(self.vertices)
        sources, targets = torch.cat([self.sources[here], loops]), torch.cat([self.targets[here], loops])
        degrees = torch.bincount(targets, minlength=self.vertices).to(torch.float64)
        weights = (degrees[sources] * degrees[targets]).rsqrt().to(torch.float32)
        return replace(self, sources=sources, targets=targets, weights=weights)
