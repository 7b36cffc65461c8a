"""The names of tensors: what a key is, who produces it and who consumes it under a plan."""

from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

from culm.pipeline.plan import Plan


class Kind(IntEnum):
    """What a tensor is for; the numbers are those of the wire."""

    __hash__ = int.__hash__  # an enum's own is a function in Python, called for every look at a key

    ACTIVATION = 1
    GRADIENT = 2
    PARTIAL = 3
    REDUCED = 4
    ACCUMULATED = 5


ACTIVATION, GRADIENT, PARTIAL, REDUCED, ACCUMULATED = Kind  # Kind.NAME calls a function in Python (3.11)


class Key(NamedTuple):
    """Names one tensor of the run; its value never changes.

    ``index`` is a microbatch; for REDUCED a bucket, which is one layer by its index in the model; for ACCUMULATED the
    number of microbatches that are in it.
    """

    era: int
    step: int
    pipeline: int
    kind: Kind
    stage: int
    index: int  # type: ignore[assignment]  # tuple.index goes: nobody looks for a place in a key

    def __str__(self) -> str:
        return f"{self.kind.name}({self.stage},{self.index})@{self.era}.{self.step}"


def superseded(key: Key, others: Iterable[Key]) -> set[Key]:
    """What nobody wants once this key is here: of a stage's ACCUMULATED in a step the latest is enough."""
    if key.kind is not ACCUMULATED:
        return set()
    return {k for k in others if k < key and k._replace(index=key.index) == key}


def producer(key: Key, plan: Plan) -> str | None:
    """The node whose value of this key counts under the plan, or None if the plan knows no such stage."""
    if key.stage >= len(plan.stages) or key.pipeline >= len(plan.stages[key.stage].owners):
        return None
    return plan.stages[key.stage].owners[key.pipeline]


def consumers(key: Key, plan: Plan) -> tuple[str, ...]:
    """The nodes that need this key under the plan; may include the producer when it hosts both sides."""
    last = len(plan.stages) - 1
    if key.kind is ACTIVATION:
        return (plan.stages[key.stage + 1].owners[key.pipeline],) if key.stage < last else ()
    if key.kind is GRADIENT:
        return (plan.stages[key.stage - 1].owners[key.pipeline],) if key.stage > 0 else ()
    if key.kind is REDUCED:
        return plan.receivers(key.stage, key.index)
    if key.kind is ACCUMULATED:
        standby = plan.stages[key.stage].hot_standby()
        return (standby,) if standby is not None else ()
    return ()
