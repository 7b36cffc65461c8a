"""How many bytes of gradients nodes send in a calm step, by the tree over the pipelines. Pure."""

from culm.pipeline import tree


def predicted(pipelines: int, replicas: int, layers: int) -> float:
    """By a node in a step, on average, in units of one layer's bytes. One stage of equal layers.

    Every owner sends its blocks of a layer to the layer's reducer, and the reducer the sum to every other owner.
    The layers are given out to reducers in turn.
    """
    replica_of = tree.divided(pipelines, replicas)
    owned = [[p for p, replica in enumerate(replica_of) if replica == r] for r in range(replicas)]
    blocks = [len(tree.largest(each, pipelines)) for each in owned]
    partial = sum(sum(blocks) - blocks[layer % replicas] for layer in range(layers))
    reduced = layers * (replicas - 1)
    return (partial + reduced) / replicas


def of_a_ring(replicas: int, layers: int) -> float:
    """The same of a ring all-reduce, which no all-reduce beats."""
    return 2 * (replicas - 1) / replicas * layers
