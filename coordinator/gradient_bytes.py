"""How many bytes of gradients each node sends in a step, by who owns and who holds what. Pure."""

# Of a stage with R owners each sends a block's gradient to the reducers, which is all of it but for what it adds up
# itself, and a reducer sends its part of the sum to every other holder. So with S standbys an owner that adds up the
# part r of a stage sends
#
#     1 - r              of the stage's bytes as PARTIAL, in one block
#     r (R - 1 + S)      as REDUCED
#
# The slots divide the stage's buckets evenly: with r = 1 / R that is 2 (R - 1) / R and S / R, and with R = 1 the stage
# once for each standby. Owners of several blocks send more, by what the tree asks for.

from collections.abc import Sequence

from culm.coordinator.replicas import by_bucket
from culm.coordinator.zones import GRADIENT_BYTES
from culm.pipeline.plan import Stages


def most_sent(stages: Stages, parameters: Sequence[float], copies: int = 0) -> float:
    """By the node that sends most. ``parameters[i]`` is the number of layer i's parameters.

    With ``copies`` every stage is taken to have so many, or as many as it has owners, in place of those it has.
    """
    sent: dict[str, float] = {}
    for stage in stages:
        sizes = by_bucket(parameters[stage.first_layer : stage.end_layer], stage.buckets.counts)
        added_up = dict.fromkeys(stage.distinct_owners, 0.0)
        for reducer, size in zip(stage.reducers, sizes, strict=True):
            added_up[reducer] += size
        others = (max(copies, len(added_up)) if copies else len(stage.holders())) - 1
        whole = sum(sizes)
        for owner, own in added_up.items():
            sent[owner] = sent.get(owner, 0.0) + GRADIENT_BYTES * (whole - own + own * others)
    return max(sent.values())
