"""Tensors received, by key, until their step commits. The first value of a key wins. Knows nothing of plans."""

from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from typing import Generic, TypeVar

from culm.pipeline.instruction import Duty
from culm.pipeline.keys import ACCUMULATED, PARTIAL, REDUCED, BucketOfStage, Key, reduced, superseded
from culm.pipeline.tree import Block, outermost

# Let t be the first step that is not committed, as far as this node knows. Invariant: every key is of the node's era
# (rule 1) and of a step from the running one to t + 1 (rule 5), but for values of epochs before on a graph, which stay
# as long as others take them (``Position.keeps``). A neighbour may hear of commit t before this node does, and begin
# step t + 1. What is of later steps waits in ``Early``.
#
# Reduced gradients that this node itself produced are here, too: so an owner is ready by the same test as a standby.

V = TypeVar("V")
NOTHING: AbstractSet[BucketOfStage] = frozenset()


class Mailbox(Generic[V]):
    """Keeps every value of the running step, also one that was used: work may have to be done again (rule 5)."""

    def __init__(self) -> None:
        # Invariant: of ACCUMULATED at most one a duty and step, the longest prefix; no PARTIAL beside its REDUCED.
        self._values: dict[Key, V] = {}
        # By the REDUCED that they are to become, and by use: the blocks whose PARTIAL is here. Asked before every
        # instruction.
        self._blocks: dict[Key, dict[int, set[Block]]] = {}
        # By step: the buckets whose REDUCED is here. Asked before every instruction, so that no key is made for it.
        self._whole: dict[int, set[BucketOfStage]] = {}

    def put(self, key: Key, value: V) -> bool:
        """Takes a value; False if the key was here already, in which case the first one stays (rule 4)."""
        if key in self._values or (key.kind is PARTIAL and _whole(key) in self._values):
            return False
        self._values[key] = value
        for old in superseded(key, self._values):
            del self._values[old]
        if key.kind is PARTIAL:
            self._blocks.setdefault(_whole(key), {}).setdefault(key.use, set()).add(key.block)
        elif key.kind is REDUCED:
            self._blocks.pop(key, None)
            self._whole.setdefault(key.step, set()).add((key.stage, key.index))
        return True

    def get(self, key: Key) -> V:
        return self._values[key]

    def exchange(self, key: Key, value: V, same: V) -> None:
        """The same value from another place, if it is still here."""
        if self._values.get(key) is value:
            self._values[key] = same

    def whole(self, step: int) -> AbstractSet[BucketOfStage]:
        """The buckets whose reduced gradient of the step is here."""
        return self._whole.get(step, NOTHING)

    def reduced(self, step: int) -> set[Key]:
        """The keys of the reduced gradients of a step."""
        return {key for key in self._values if key.kind is REDUCED and key.step == step}

    def partials(self, step: int) -> list[tuple[Key, dict[int, tuple[Block, ...]]]]:
        """By the REDUCED that it is to become: the outermost blocks that have come of a bucket, by use, ascending."""
        if not self._blocks:
            return []
        return [
            (whole, {use: outermost(blocks) for use, blocks in by_use.items()})
            for whole, by_use in self._blocks.items()
            if whole.step == step
        ]

    def covers(self, whole: Key, use: int, pipelines: int) -> frozenset[int]:
        """The pipelines in what has come of one use of a bucket."""
        if whole in self._values:
            return frozenset(range(pipelines))
        return frozenset(p for block in self._blocks.get(whole, {}).get(use, ()) for p in block.pipelines)

    def accumulated(self, step: int, duty: Duty) -> Key | None:
        """The key of what the duty's gradients have come to, as far as its owner has told."""
        found = (k for k in self._values if k.kind is ACCUMULATED and k.step == step and k.duty == duty)
        return max(found, default=None)

    def __contains__(self, key: Key) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[Key]:
        return iter(tuple(self._values))

    def __len__(self) -> int:
        return len(self._values)

    def forget_before(self, step: int, keeps: Callable[[Key], bool]) -> None:
        """Drops what belongs to committed steps. ``keeps``: whether a tensor is still of use."""
        self._values = {k: v for k, v in self._values.items() if keeps(k)}
        self._blocks = {k: v for k, v in self._blocks.items() if k.step >= step}
        self._whole = {s: buckets for s, buckets in self._whole.items() if s >= step}

    def clear(self) -> None:
        self._values.clear()
        self._blocks.clear()
        self._whole.clear()


def _whole(partial: Key) -> Key:
    """The REDUCED that a PARTIAL is a part of."""
    return reduced(partial.era, partial.step, partial.stage, partial.index)
