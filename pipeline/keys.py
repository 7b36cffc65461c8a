"""The names of tensors. Who produces and who consumes one is told by ``culm.pipeline.flow``."""

from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

from culm.pipeline.instruction import Duty


class Kind(IntEnum):
    """What a tensor is for; the numbers are those of the wire."""

    __hash__ = int.__hash__  # an enum's own is a function in Python, called for every look at a key

    ACTIVATION = 1
    GRADIENT = 2
    PARTIAL = 3  # never sent as long as a run has one pipeline
    REDUCED = 4
    ACCUMULATED = 5


ACROSS = 0  # in place of a pipeline: the tensor belongs to a stage, whatever pipelines there are

ACTIVATION, GRADIENT, PARTIAL, REDUCED, ACCUMULATED = Kind  # Kind.NAME calls a function in Python (3.11)


#     kind          pipeline   index                 given by                             needed by
#     ACTIVATION    its own    microbatch            a stage's forward                    the next stage's owner
#     GRADIENT      its own    microbatch            a stage's backward                   the owner of the stage before
#     REDUCED       ACROSS     layer                 the owner, after its last backward   every other holder
#     ACCUMULATED   its own    microbatches in it    the owner, every so many of them     the hot standby


class Key(NamedTuple):
    """Names one tensor of the run; its value never changes.

    ``index`` is a microbatch; for REDUCED a bucket, which is one layer by its index in the model; for ACCUMULATED the
    number of microbatches that are in it. ``pipeline`` is ACROSS for REDUCED.
    """

    era: int
    step: int
    pipeline: int
    kind: Kind
    stage: int
    index: int  # type: ignore[assignment]  # tuple.index goes: nobody looks for a place in a key

    @property
    def duty(self) -> Duty:
        """The duty whose instruction gives it."""
        return Duty(self.pipeline, self.stage)

    def __str__(self) -> str:
        where = str(Duty(self.pipeline, self.stage))
        return f"{self.kind.name}({where},{self.index})@{self.era}.{self.step}"


def reduced(era: int, step: int, stage: int, layer: int) -> Key:
    """The key of the reduced gradient of one of the stage's layers."""
    return Key(era, step, ACROSS, REDUCED, stage, layer)


def superseded(key: Key, others: Iterable[Key]) -> set[Key]:
    """The keys that nobody wants once this one is here: of a duty's ACCUMULATED in a step the latest is enough."""
    if key.kind is not ACCUMULATED:
        return set()
    # Keys of one duty and step differ in their index alone, so the smaller key has fewer microbatches in it.
    return {k for k in others if k < key and k._replace(index=key.index) == key}
