"""Which node has less memory than a plan asks of it, and which has room for more. Pure, with reasons in words."""

# What a plan asks of a node tells ``culm.pipeline.layer_bytes``, from what the first node has told of the layers. What
# nobody has told binds nothing. A node that writes kept tensors to disk needs memory for as many as it says.
#
# How far it binds:
#
#     the first placement, another shape     is not chosen where it does not fit
#     a copy to be seeded, or to be moved    goes to a node where it fits, or to none. Where every copy of a stage is
#                                            about to leave one is made whatever it takes, or its state would be lost
#     an heir                                is a node where it fits, if there is one, else any: work goes on
#
# So a run waits for memory before an era alone, as it waits for nodes.

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from culm.coordinator.commands import Record
from culm.pipeline.layer_bytes import LayerBytes, at_boundaries, of_layers
from culm.pipeline.money import kinds
from culm.pipeline.plan import StagePlan, Stages


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What layers take, and what nodes have: bytes by node. A node that is missing, or has 0, has told nothing."""

    layers: tuple[LayerBytes, ...] = ()  # empty: not known
    microbatches: int = 1  # of a step, each pipeline
    told: Mapping[str, int] = field(default_factory=dict)  # what a node may use
    kept: Mapping[str, int] = field(default_factory=dict)  # what it uses for boundary tensors before it spills
    hosted: bool = False  # whether standbys lie elsewhere: in the host's memory, beside accelerators
    target: Stages = ()  # that is prepared, and held beside whatever stages are asked about

    def asked(self, stages: Stages, before: Stages = (), alone: str = "") -> Mapping[str, int]:
        """Bytes by node, of ``alone`` at least; ``before``: the stages that are still held while these are prepared."""
        beside = before or self.target
        cuts = [at_boundaries(each, self.layers, self.microbatches, alone) for each in (stages, beside)]
        if alone:
            stages, beside = _held_by(alone, stages), _held_by(alone, beside)
        needed = dict(of_layers(stages, self.layers, beside, self.hosted))
        for node in {*cuts[0], *cuts[1]}:
            size = max(cut.get(node, 0) for cut in cuts)
            needed[node] = needed.get(node, 0) + min(size, self.kept.get(node) or size)
        return needed

    def lacks(self, node: str, stages: Stages) -> int:
        """Bytes that the node has less than is asked of it; 0 where it fits, or nobody knows."""
        return max(0, self.asked(stages, alone=node).get(node, 0) - self.told[node]) if self.binds(node) else 0

    def binds(self, node: str) -> bool:
        """Whether what the node may use is known, and what layers take."""
        return bool(self.layers) and self.told.get(node, 0) > 0

    @property
    def binds_any(self) -> bool:
        return bool(self.layers) and any(self.told.values())

    def too_small(self, stages: Stages, before: Stages = ()) -> tuple[str, ...]:
        """The nodes that have less than is asked of them, the one that lacks most first."""
        if not self.binds_any:
            return ()  # at once: of a thousand nodes to add up what each is asked for takes its time
        needed = self.asked(stages, before)
        lacking = {node: size - self.told[node] for node, size in needed.items() if 0 < self.told.get(node, 0) < size}
        return tuple(sorted(lacking, key=lambda node: (-lacking[node], node)))

    def in_words(self, nodes: Collection[str], stages: Stages, before: Stages = ()) -> str:
        """What the first of the nodes lacks."""
        first, *others = nodes
        more = f", and {len(others)} more lack memory" if others else ""
        return f"{first} would need {_size(self.asked(stages, before)[first])} and has {_size(self.told[first])}{more}"


UNBOUND = Budget()  # nobody has told anything


def tight(budget: Budget, before: Stages, after: Stages) -> list[Record]:
    """For each heir that has less memory than it needs from now on: it works on, and whoever runs it should know."""
    records = []
    for node in budget.too_small(after):
        if budget.lacks(node, after) > budget.lacks(node, before):
            needed, has = budget.asked(after, alone=node)[node], budget.told[node]
            text = f"{node} takes work over though it would need {_size(needed)} and has {_size(has)}: no copy has room"
            records.append(Record(kinds.Tight(node=node, needed_bytes=needed, memory_bytes=has), text))
    return records


class Room:
    """What further copies find on each node. Counted once for all nodes, and kept up to date with ``add``."""

    def __init__(self, budget: Budget, stages: Stages) -> None:
        self._budget = budget
        self._stages = stages
        self._binds_any = budget.binds_any

    @cached_property
    def _asked(self) -> dict[str, int]:
        # Once somebody wants to know: most commits copy nothing.
        return dict(self._budget.asked(self._stages))

    def lacks(self, node: str, stage: StagePlan) -> int:
        """Bytes that the node has too few to stand by for the stage; 0 where that fits, or nobody knows."""
        if not self._budget.binds(node):
            return 0
        return max(0, self._asked.get(node, 0) + self._size(stage) - self._budget.told[node])

    def fitting(self, nodes: Sequence[str], stage: StagePlan) -> list[str]:
        """Of these those that have room for a copy of the stage."""
        return [node for node in nodes if not self.lacks(node, stage)] if self._binds_any else list(nodes)

    def add(self, node: str, stage: StagePlan) -> None:
        if self._budget.binds(node):
            self._asked[node] = self._asked.get(node, 0) + self._size(stage)

    def least_lacking(self, nodes: Sequence[str], stage: StagePlan) -> str:
        return min(nodes, key=lambda node: self.lacks(node, stage)) if self._binds_any else nodes[0]

    def in_words(self, node: str, stage: StagePlan) -> str:
        """What the node lacks to stand by for the stage."""
        needed = self._asked.get(node, 0) + self._size(stage)
        return f"{node} would need {_size(needed)} and has {_size(self._budget.told[node])}"

    def _size(self, stage: StagePlan) -> int:
        if self._budget.hosted:
            return 0
        return sum(self._budget.layers[layer].state + self._budget.layers[layer].gradient for layer in stage.layers)


def _held_by(node: str, stages: Stages) -> Stages:
    return tuple(stage for stage in stages if node in stage.holders())


def _size(size: int) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.2f} MB"
