"""How many bytes of gradients each node sends in a step, by who owns and who holds what. Pure."""

# Of a stage with R owners each sends a block's gradient to the reducers, which is all of it but for what it adds up
# itself, and a reducer sends its part of the sum to every other holder. With S standbys an owner sends on average
#
#     (R - 1) / R  of the stage's bytes as PARTIAL, in one block
#     (R - 1 + S) / R  as REDUCED
#
# With R = 1 that is the stage once for each standby. Owners of several blocks send more, by what the tree asks for.

from collections.abc import Sequence

from culm.coordinator.zones import GRADIENT_BYTES
from culm.pipeline.plan import Stages


def most_sent(stages: Stages, parameters: Sequence[float]) -> float:
    """By the node that sends most. ``parameters[i]`` is the number of layer i's parameters."""
    sent: dict[str, float] = {}
    for stage in stages:
        size = GRADIENT_BYTES * sum(parameters[layer] for layer in stage.layers)
        owners = len(stage.distinct_owners)
        each = size * (2 * (owners - 1) + len(stage.standbys)) / owners
        for owner in stage.distinct_owners:
            sent[owner] = sent.get(owner, 0.0) + each
    return max(sent.values())
