"""Tensors produced, by key, until their step commits, and who has acknowledged them. Knows nothing of streams."""

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from culm.pipeline.flow import consumers
from culm.pipeline.instruction import Duty
from culm.pipeline.keys import PARTIAL, REDUCED, Key, superseded
from culm.pipeline.plan import Plan

V = TypeVar("V")

# The life of a value:
#
#     put                                    it is sent to its consumers under the present plan
#     a consumer acknowledges it             it stays: the consumer may be lost, and its heir needs it (rule 5)
#     a plan names another consumer          it is sent to that one; acknowledgements of others say nothing about it
#     a plan takes the duty from this node   it goes: the new owner's value is the one that counts (rule 3)
#     its step is committed                  it goes; what a node that is being seeded lacks stays for a while

# How many commits a layer that is being seeded may fall behind and still wait for gradients; its holders keep them as
# long. More would cost memory on every holder; fewer would fetch layers again where a link is slow for a moment.
COMMITS_TO_WAIT = 4


class Outbox(Generic[V]):
    """Keeps every value of the running step, acknowledged or not: a consumer's heir will want it (rule 5)."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._values: dict[Key, V] = {}
        # Key -> (node, incarnation) that have it, or need it no more. A key may be here before its value: an heir hears
        # what the consumers of its lost owner hold before it has computed anything itself.
        self._acknowledged: dict[Key, set[tuple[str, int]]] = {}

    def put(self, key: Key, value: V) -> None:
        # The first value stays: on unequal hardware a second would differ, and consumers may have the first (rule 4).
        self._values.setdefault(key, value)
        for old in superseded(key, self._values):
            del self._values[old]

    def get(self, key: Key) -> V | None:
        """None if the step has committed or the stage has gone to another node."""
        return self._values.get(key)

    def exchange(self, key: Key, value: V, same: V) -> None:
        """The same value from another place, if it is still here."""
        if self._values.get(key) is value:
            self._values[key] = same

    def __contains__(self, key: Key) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[Key]:
        return iter(tuple(self._values))

    def __len__(self) -> int:
        return len(self._values)

    def acknowledge(self, key: Key, node: str, incarnation: int) -> None:
        """This incarnation of the node has the tensor, or needs it no more; the value need not be here yet."""
        self._acknowledged.setdefault(key, set()).add((node, incarnation))

    def has_acknowledged(self, key: Key, node: str, incarnation: int) -> bool:
        return (node, incarnation) in self._acknowledged.get(key, ())

    def unacknowledged(self, key: Key, plan: Plan) -> tuple[str, ...]:
        """The consumers under the plan whose present incarnation has not acknowledged the key."""
        have, members = self._acknowledged.get(key, ()), plan.members
        return tuple([n for n in consumers(key, plan, self._node) if (n, members[n].incarnation) not in have])

    def forget_before(self, step: int, keeps: Callable[[Key], bool], plan: Plan | None = None) -> None:
        """Drops what belongs to committed steps. ``keeps``: whether a tensor is still of use. With a plan, reduced
        gradients that one of its nodes lacks still stay for a while: commits do not wait for a node that is being
        seeded.
        """
        kept = {k for k in self._values if keeps(k) or (plan is not None and self._is_awaited(k, step, plan))}
        self._values = {k: v for k, v in self._values.items() if k in kept}
        self._acknowledged = {k: v for k, v in self._acknowledged.items() if keeps(k) or k in kept}

    def _is_awaited(self, key: Key, step: int, plan: Plan) -> bool:
        if key.kind is not REDUCED or key.step < step - COMMITS_TO_WAIT:
            return False
        required = {node for stage in plan.stages_with(key.index) for node in stage.required()}
        return not required.issuperset(self.unacknowledged(key, plan))

    def forget_duty(self, duty: Duty, layers: range) -> None:
        """Drops what a duty produced: it is another node's now. The whole sum of a layer is nobody's.

        ``layers``: those of the duty's stage.
        """
        self._values = {k: v for k, v in self._values.items() if not _is_of(k, duty, layers)}
        self._acknowledged = {k: v for k, v in self._acknowledged.items() if not _is_of(k, duty, layers)}

    def clear(self) -> None:
        self._values.clear()
        self._acknowledged.clear()


def _is_of(key: Key, duty: Duty, layers: range) -> bool:
    if key.kind is PARTIAL:
        is_its = key.use in layers if key.use else key.stage == duty.stage
        return is_its and duty.pipeline in key.block.pipelines
    return key.duty == duty and key.kind is not REDUCED
