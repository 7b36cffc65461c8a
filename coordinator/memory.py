"""Which node has less memory than a plan asks of it. Pure, with a reason in words."""

# What a plan asks of a node tells ``culm.pipeline.layer_bytes``, from what the first node has told of the layers. What
# nobody has told binds nothing.
#
# A node that writes kept tensors to disk needs memory for as many as it says, and no more.

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from culm.pipeline.layer_bytes import LayerBytes, at_boundaries, of_layers
from culm.pipeline.plan import Stages


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What layers take, and what nodes have: bytes by node. A node that is missing, or has 0, has told nothing."""

    layers: tuple[LayerBytes, ...] = ()  # empty: not known
    microbatches: int = 1  # of a step, each pipeline
    told: Mapping[str, int] = field(default_factory=dict)  # what a node may use
    kept: Mapping[str, int] = field(default_factory=dict)  # what it uses for boundary tensors before it spills

    def asked(self, stages: Stages, before: Stages = ()) -> Mapping[str, int]:
        """Bytes by node; ``before``: the stages that are still held while these are prepared."""
        needed = dict(of_layers(stages, self.layers, before))
        cuts = [at_boundaries(each, self.layers, self.microbatches) for each in (stages, before)]
        for node in {*cuts[0], *cuts[1]}:
            size = max(cut.get(node, 0) for cut in cuts)
            needed[node] = needed.get(node, 0) + min(size, self.kept.get(node) or size)
        return needed

    def too_small(self, stages: Stages, before: Stages = ()) -> tuple[str, ...]:
        """The nodes that have less than is asked of them, the one that lacks most first."""
        if not self.layers:
            return ()
        needed = self.asked(stages, before)
        lacking = {node: size - self.told[node] for node, size in needed.items() if 0 < self.told.get(node, 0) < size}
        return tuple(sorted(lacking, key=lambda node: (-lacking[node], node)))

    def in_words(self, nodes: Collection[str], stages: Stages, before: Stages = ()) -> str:
        """What the first of the nodes lacks."""
        first, *others = nodes
        needed = self.asked(stages, before)
        more = f", and {len(others)} more lack memory" if others else ""
        return f"{first} would need {_size(needed[first])} and has {_size(self.told[first])}{more}"


UNBOUND = Budget()  # nobody has told anything


def _size(size: int) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.2f} MB"
