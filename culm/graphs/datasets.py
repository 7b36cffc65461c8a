"""Graphs that need no network: drawn ones, and one of Python's own standard library (``culm.graphs.stdlib``)."""

import numpy as np
import torch

from culm.pipeline.user_code.graph.graph import Graph

SHARES = (0.6, 0.2)  # of the vertices: trained on, to choose by; the rest is to test on


def blocks(
    vertices: int = 1000, classes: int = 4, degree: float = 8.0, mixing: float = 0.2, features: int = 16, seed: int = 0
) -> Graph:
    """A stochastic block model: a vertex's class is its block, and most of its neighbours are of the same one.

    ``mixing``: the share of edges that lead anywhere. Features say little of the class; neighbours' say more together.
    """
    draw = np.random.default_rng(seed)
    of = draw.integers(classes, size=vertices)
    count = int(vertices * degree / 2)
    sources = draw.integers(vertices, size=count)
    by_class = [np.flatnonzero(of == c) for c in range(classes)]
    inside = draw.random(count) >= mixing
    places = draw.random(count)
    sizes = np.array([len(each) for each in by_class])
    starts = np.concatenate([[0], sizes.cumsum()])[:-1]
    grouped = np.concatenate(by_class)
    same = grouped[starts[of[sources]] + (places * sizes[of[sources]]).astype(np.int64)]
    targets = np.where(inside, same, draw.integers(vertices, size=count))
    centres = draw.normal(size=(classes, features))
    noisy = centres[of] * 0.5 + draw.normal(size=(vertices, features))
    train, valid, test = split(vertices, seed)
    graph = Graph(
        sources=torch.from_numpy(sources),
        targets=torch.from_numpy(targets),
        features=torch.from_numpy(noisy).to(torch.float32),
        labels=torch.from_numpy(of),
        train=train,
        valid=valid,
        test=test,
    )
    return graph.undirected().normalized()


def rmat(
    scale: int = 14, degree: int = 16, features: int = 32, classes: int = 8, seed: int = 0, piece: int = 1 << 20
) -> Graph:
    """Chakrabarti, Zhan and Faloutsos' R-MAT (SDM 2004) with the Graph500's probabilities: 2^scale vertices, of few of
    which many edges go out. Edges are drawn ``piece`` by piece. Labels say in which part of the numbers a vertex lies,
    and so most of its neighbours.
    """
    draw = np.random.default_rng(seed)
    vertices, count = 1 << scale, (1 << scale) * degree
    sources, targets = np.empty(count, np.int64), np.empty(count, np.int64)
    for first in range(0, count, piece):
        size = min(piece, count - first)
        s, t = np.zeros(size, np.int64), np.zeros(size, np.int64)
        for _ in range(scale):
            place = draw.random(size)
            below = place >= 0.76  # a + b
            right = np.where(below, place >= 0.95, place >= 0.57)
            s, t = s * 2 + below, t * 2 + right
        sources[first : first + size], targets[first : first + size] = s, t
    labels = (np.arange(vertices) * classes) >> scale
    values = draw.standard_normal((vertices, features), dtype=np.float32)
    values[:, :classes] += np.eye(classes, dtype=np.float32)[labels]
    train, valid, test = split(vertices, seed)
    graph = Graph(
        sources=torch.from_numpy(sources),
        targets=torch.from_numpy(targets),
        features=torch.from_numpy(values),
        labels=torch.from_numpy(labels),
        train=train,
        valid=valid,
        test=test,
    )
    return graph.normalized()


def split(vertices: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Which vertices are trained on, chosen by and tested on: bool [V] each."""
    places = torch.from_numpy(np.random.default_rng(seed + 1).random(vertices))
    train, valid = places < SHARES[0], (places >= SHARES[0]) & (places < sum(SHARES))
    return train, valid, ~train & ~valid
