"""Two layers that many use, and models made of them."""

from functools import partial
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

from culm.pipeline.user_code.graph.chunks import Chunk
from culm.pipeline.user_code.graph.layer import GraphLayer, add_up_messages, softmax_by_target


class GCN(GraphLayer):
    """Kipf and Welling, Semi-Supervised Classification with Graph Convolutional Networks (ICLR 2017).

    The weighted sum over neighbours, times a matrix; then ReLU and dropout but in a model's last layer. The graph gives
    the weights: see ``Graph.normalized``.
    """

    def __init__(self, inputs: int, outputs: int, last: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        nn.init.xavier_uniform_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)
        self.last, self.dropout = last, dropout

    def apply_vertex(self, *values: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.linear(*values)
        return out if self.last else functional.dropout(functional.relu(out), self.dropout, self.training)


class GAT(GraphLayer):
    """Velickovic et al., Graph Attention Networks (ICLR 2018): neighbours count by how well they fit.

    Heads are concatenated, in a model's last layer averaged.
    """

    by_edge = True

    def __init__(self, inputs: int, outputs: int, heads: int = 1, last: bool = False, dropout: float = 0.0) -> None:
        """``outputs``: of each head."""
        super().__init__()
        self.linear = nn.Linear(inputs, heads * outputs, bias=False)
        self.source = nn.Parameter(torch.empty(heads, outputs))
        self.target = nn.Parameter(torch.empty(heads, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs if last else heads * outputs))
        for weight in (self.linear.weight, self.source, self.target):
            nn.init.xavier_uniform_(weight)
        self.heads, self.outputs, self.last, self.dropout = heads, outputs, last, dropout

    def apply_edge(self, *ends: torch.Tensor) -> torch.Tensor:
        source, target = (self.linear(x).view(-1, self.heads, self.outputs) for x in ends)
        logits = functional.leaky_relu((source * self.source + target * self.target).sum(-1), 0.2)
        return torch.cat([logits[:, :, None], source], dim=-1)  # [E, heads, 1 + outputs]

    def gather(self, chunk: Chunk, values: torch.Tensor) -> torch.Tensor:
        shares = softmax_by_target(chunk, values[:, :, 0])
        return add_up_messages(chunk, shares[:, :, None] * values[:, :, 1:])

    def apply_vertex(self, *values: torch.Tensor) -> torch.Tensor:
        (gathered,) = values
        out = gathered.mean(1) if self.last else gathered.flatten(1)
        out = out + self.bias
        return out if self.last else functional.dropout(functional.elu(out), self.dropout, self.training)


def gcn(sizes: list[int], dropout: float = 0.0) -> list[partial[GCN]]:
    """``sizes``: of the features, of each hidden layer, and the number of classes."""
    last = len(sizes) - 2
    return [partial(GCN, a, b, i == last, dropout) for i, (a, b) in enumerate(pairwise(sizes))]


def gat(sizes: list[int], heads: int = 1, dropout: float = 0.0) -> list[partial[GAT]]:
    """``sizes``: of the features, of each hidden layer's heads together, and the number of classes."""
    last = len(sizes) - 2
    return [
        partial(GAT, a, b if i == last else b // heads, heads, i == last, dropout)
        for i, (a, b) in enumerate(pairwise(sizes))
    ]
