"""Tensors received, by key, until their step commits. The first value of a key wins. Knows nothing of plans."""

from collections.abc import Iterator
from typing import Generic, TypeVar

from culm.pipeline.instruction import Duty
from culm.pipeline.keys import ACCUMULATED, REDUCED, Key, superseded

# Let t be the first step that is not committed, as far as this node knows. Invariant: every key is of the node's era
# (rule 1) and of a step from the running one to t + 1 (rule 5). A neighbour may hear of commit t before this node does,
# and begin step t + 1. What is of later steps waits in ``Early``.
#
# Reduced gradients that this node itself produced are here, too: so an owner is ready by the same test as a standby.

V = TypeVar("V")


class Mailbox(Generic[V]):
    """Keeps every value of the running step, also one that was used: work may have to be done again (rule 5)."""

    def __init__(self) -> None:
        # Invariant: of ACCUMULATED at most one a duty and step, the longest prefix.
        self._values: dict[Key, V] = {}

    def put(self, key: Key, value: V) -> bool:
        """Takes a value; False if the key was here already, in which case the first one stays (rule 4)."""
        if key in self._values:
            return False
        self._values[key] = value
        for old in superseded(key, self._values):
            del self._values[old]
        return True

    def get(self, key: Key) -> V:
        return self._values[key]

    def reduced(self, step: int) -> set[Key]:
        """The keys of the reduced gradients of a step."""
        return {key for key in self._values if key.kind is REDUCED and key.step == step}

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

    def forget_before(self, step: int) -> None:
        """Drops what belongs to committed steps."""
        self._values = {k: v for k, v in self._values.items() if k.step >= step}

    def clear(self) -> None:
        self._values.clear()
