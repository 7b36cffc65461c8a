"""The names of tensors. Who produces and who consumes one is told by ``culm.pipeline.flow``."""

from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

from culm.pipeline.instruction import Duty
from culm.pipeline.tree import Block


class Kind(IntEnum):
    """What a tensor is for; the numbers are those of the wire."""

    __hash__ = int.__hash__  # an enum's own is a function in Python, called for every look at a key

    ACTIVATION = 1
    GRADIENT = 2
    PARTIAL = 3
    REDUCED = 4
    ACCUMULATED = 5
    EVALUATED = 7


ACROSS = 0  # in place of a pipeline: the tensor belongs to a stage, whatever pipelines there are

ACTIVATION, GRADIENT, PARTIAL, REDUCED, ACCUMULATED, EVALUATED = Kind  # Kind.NAME calls a function in Python (3.11)


#     kind          pipeline   index                 given by                             needed by
#     ACTIVATION    its own    microbatch            a stage's forward                    the next stage's owner
#     GRADIENT      its own    microbatch            a stage's backward                   the owner of the stage before
#     PARTIAL       first..end bucket, use           an owner of all of the block         the bucket's reducer
#     REDUCED       ACROSS     bucket                the bucket's reducer                 every other holder
#     ACCUMULATED   its own    microbatches in it    the owner, every so many of them     the hot standby
#     EVALUATED     its own    microbatch            a stage's forward, in an evaluation  the next stage's owner


BucketOfStage = tuple[int, int]  # the stage and the bucket of a REDUCED, in a step that is known


class Key(NamedTuple):
    """Names one tensor of the run; its value never changes.

    ``index`` is a microbatch; for PARTIAL and REDUCED a bucket, as they are numbered through the model: a layer, or a
    part of one (``culm.pipeline.buckets``); for ACCUMULATED the number of microbatches that are in it. ``pipeline`` is
    ACROSS for REDUCED; for PARTIAL it is the first one of a block, and ``end`` the block's end. ``stage`` is the one
    that the bucket is of, also where another stage's layer adds to it (``culm.pipeline.ties``).
    """

    era: int
    step: int
    pipeline: int
    kind: Kind
    stage: int
    index: int  # type: ignore[assignment]  # tuple.index goes: nobody looks for a place in a key
    end: int = 0  # of PARTIAL alone
    # Of PARTIAL: the layer whose gradient it is, if not the bucket's own. Of GRADIENT, on a graph: the pipeline whose
    # output it is the gradient of.
    use: int = 0

    @property
    def duty(self) -> Duty:
        """The duty whose instruction gives it; of no meaning for PARTIAL and REDUCED."""
        return Duty(self.pipeline, self.stage)

    @property
    def block(self) -> Block:
        """The pipelines that a PARTIAL is the sum of."""
        return Block(self.pipeline, self.end)

    def __str__(self) -> str:
        where = f"{self.block}/{self.stage}" if self.kind is PARTIAL else str(Duty(self.pipeline, self.stage))
        used = f" of layer {self.use}" if self.use else ""
        return f"{self.kind.name}({where},{self.index}{used})@{self.era}.{self.step}"


def reduced(era: int, step: int, stage: int, bucket: int) -> Key:
    """The key of the reduced gradient of one of the stage's buckets."""
    return Key(era, step, ACROSS, REDUCED, stage, bucket)


def partial(era: int, step: int, stage: int, bucket: int, block: Block, use: int = 0) -> Key:
    """The key of a block's gradient of one of the stage's buckets; ``use``: see Key."""
    return Key(era, step, block.first, PARTIAL, stage, bucket, block.end, use)


def superseded(key: Key, others: Iterable[Key]) -> set[Key]:
    """The keys that nobody wants once this one is here.

    Of a duty's ACCUMULATED in a step the latest is enough; of a bucket's gradient the whole sum.
    """
    if key.kind is ACCUMULATED:
        # Keys of one duty and step differ in their index alone, so the smaller key has fewer microbatches in it.
        return {k for k in others if k < key and k._replace(index=key.index) == key}
    if key.kind is REDUCED:
        return {k for k in others if k.kind is PARTIAL and reduced(k.era, k.step, k.stage, k.index) == key}
    return set()
