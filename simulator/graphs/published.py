"""The graphs, clusters and results of Thorpe et al., Dorylus (OSDI 2021)."""

from dataclasses import dataclass
from typing import Literal

# Graphs, layer sizes and machines are the paper's and its released source's. The results below are quoted from memory:
# the paper was not at hand. Arithmetic bears them out: time, number of machines and on-demand price come to the cost of
# each row of servers alone, within a cent or 0.3 %, and the abstract's ratios follow from the rows.

Way = Literal["workers", "cpu", "gpu"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphJob:
    """One of the published trainings."""

    name: str
    vertices: float
    edges: float  # as they are followed: both directions
    sizes: tuple[int, ...]  # of features, hidden layers, classes
    attention: bool  # a GAT: it has work of edges
    instance_type: str
    servers: int

    @property
    def degree(self) -> float:
        return self.edges / self.vertices

    @property
    def layers(self) -> int:
        return len(self.sizes) - 1


def _job(name: str, graph: str, attention: bool, instance_type: str, servers: int) -> GraphJob:
    vertices, edges, sizes = GRAPHS[graph]
    return GraphJob(
        name=name,
        vertices=vertices,
        edges=edges,
        sizes=sizes,
        attention=attention,
        instance_type=instance_type,
        servers=servers,
    )


# Vertices, edges, sizes of layers. Assumed: that Reddit-large's hidden layer has 128 values, as Reddit-small's has.
GRAPHS: dict[str, tuple[float, float, tuple[int, ...]]] = {
    "Reddit-small": (232.9e3, 114.8e6, (602, 128, 41)),
    "Reddit-large": (1.1e6, 1.3e9, (301, 128, 50)),
    "Amazon": (9.2e6, 313.9e6, (300, 64, 25)),
    "Friendster": (65.6e6, 3.6e9, (32, 48, 51)),
}
JOBS = {
    job.name: job
    for job in (
        _job("GCN Reddit-small", "Reddit-small", False, "c5.2xlarge", 2),
        _job("GCN Reddit-large", "Reddit-large", False, "c5n.2xlarge", 12),
        _job("GCN Amazon", "Amazon", False, "c5n.2xlarge", 8),
        _job("GCN Friendster", "Friendster", False, "c5n.4xlarge", 32),
        _job("GAT Reddit-small", "Reddit-small", True, "c5.2xlarge", 10),
        _job("GAT Amazon", "Amazon", True, "c5n.2xlarge", 12),
    )
}
SPARSE = ("GCN Amazon", "GCN Friendster", "GAT Amazon")

# Seconds and dollars of a whole training.
RESULTS: dict[str, dict[Way, tuple[float, float]]] = {
    "GCN Reddit-small": {"workers": (860.6, 0.20), "cpu": (1005.4, 0.19), "gpu": (162.9, 0.28)},
    "GCN Reddit-large": {"workers": (1020.1, 1.69), "cpu": (1290.5, 1.85), "gpu": (324.9, 3.31)},
    "GCN Amazon": {"workers": (512.7, 0.79), "cpu": (710.2, 0.68), "gpu": (385.3, 2.62)},
    "GCN Friendster": {"workers": (1133.3, 13.0), "cpu": (1990.8, 15.3), "gpu": (1490.4, 40.5)},
    "GAT Reddit-small": {"workers": (496.3, 1.15), "cpu": (1270.4, 1.20), "gpu": (130.9, 1.11)},
    "GAT Amazon": {"workers": (853.4, 2.67), "cpu": (2092.7, 3.01), "gpu": (1039.2, 10.60)},
}
# To a fixed accuracy: the workers' seconds and dollars, and those of a system that samples.
SAMPLED: dict[str, dict[str, tuple[float, float]]] = {
    "GCN Reddit-small": {"workers": (165.8, 0.045), "DGL, on p3": (566.3, 0.480)},
    "GCN Amazon": {"workers": (415.2, 0.654), "DGL, on p3": (842.5, 5.728), "AliGraph, on c5n": (1560.5, 1.498)},
}


def value(result: tuple[float, float]) -> float:
    """As the paper has it: 1 / (time x cost). Time counts twice, since it is also in the cost."""
    seconds, dollars = result
    return 1.0 / (seconds * dollars)
