"""What it takes to move state to who is to hold it. Pure."""

# Every holder gives at ``seed_bytes_per_second`` at most, whoever receives: so holders give side by side, and a move
# takes as long as the one that gives most. Whoever needs a layer asks the first owner of its stage
# (``stage_server.worker.holdings``).

from collections.abc import Sequence

from culm.coordinator.shapes import held_layers
from culm.pipeline.plan import Stages

STATE_BYTES = 12  # of a parameter with two optimizer moments, in float32
# The part of training's speed that is lost while state moves: ``seed_bytes_per_second`` is chosen so that it is no
# more.
SLOWDOWN = 0.1


def given(better: Stages, before: Stages, parameters: Sequence[float]) -> dict[str, float]:
    """Bytes by who gives them, where ``better`` takes the place of ``before``."""
    giver = {layer: stage.owners[0] for stage in before for layer in stage.layers}
    held = held_layers(before)
    nothing: frozenset[int] = frozenset()
    found: dict[str, float] = {}
    for stage in better:
        for node in stage.holders():
            has = held.get(node, nothing)
            for layer in stage.layers:
                if layer not in has:
                    found[giver[layer]] = found.get(giver[layer], 0.0) + STATE_BYTES * parameters[layer]
    return found
