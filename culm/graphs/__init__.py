"""Graph neural networks: graphs, layers of GCN and GAT, and what a layer of one's own is made of.

A job trains on a graph where its file has a [graph] section: docs/graphs.md.
"""

from culm.graphs.layers import GAT, GCN, gat, gcn
from culm.graphs.losses import accuracy, cross_entropy, test_accuracy, valid_accuracy
from culm.pipeline.user_code.graph.chunks import Chunk
from culm.pipeline.user_code.graph.graph import Graph
from culm.pipeline.user_code.graph.layer import GraphLayer, add_up, add_up_messages, softmax_by_target

__all__ = [
    "GAT",
    "GCN",
    "Chunk",
    "Graph",
    "GraphLayer",
    "accuracy",
    "add_up",
    "add_up_messages",
    "cross_entropy",
    "gat",
    "gcn",
    "softmax_by_target",
    "test_accuracy",
    "valid_accuracy",
]
