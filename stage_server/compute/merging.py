"""The blocks of pipelines into which a node has merged one layer's gradients, in the running step (rule 19)."""

# What becomes of gradients on a node that runs four of eight pipelines:
#
#     0 and 1 are done     merged into [0,2), which stays: it is to be a half of [0,4)
#     2 and 3 are done     merged into [0,4), which leaves: no other pipeline of [0,8) is run here
#     4 to 7 come here     their owners were lost. [0,8) is merged from [0,4), which the outbox gives back, and from the
#                          gradients of these
#
# Of a block that has left nothing is kept here. The outbox has it until the whole sum is here, and a second copy would
# be as much memory as the gradient itself.

from collections.abc import Callable, Mapping, Sequence

from culm.pipeline import tree
from culm.pipeline.tensors.values import Value
from culm.pipeline.ties import Addend
from culm.pipeline.tree import Block
from culm.stage_server.compute import blocks

Given = Sequence[tuple[Addend, Block, Value]]


class Merging:
    """Of one layer."""

    def __init__(self) -> None:
        # By addend; of those that have left nothing. Invariant: disjoint.
        self._blocks: dict[Block, Mapping[Addend, Value]] = {}

    def merge(
        self,
        block: Block,
        pipelines: int,
        take: Callable[[int], Mapping[Addend, Value]],
        leaves: bool,
        given: Given,
    ) -> dict[Addend, Value]:
        """The block's value by addend, of those that every piece has.

        ``pipelines``: how many the tree is over; ``take``: gives what a pipeline has accumulated, and is called for
        those that are in no block yet; ``leaves``: nothing is kept of the block; ``given``: what has left in smaller
        blocks, of this layer.
        """
        pieces = {piece: dict(values) for piece, values in self._blocks.items() if block.holds(piece)}
        in_blocks = {p for piece in pieces for p in piece.pipelines}
        for addend, piece, value in given:
            pieces[piece][addend] = value
        pieces |= {tree.one(p): dict(take(p)) for p in block.pipelines if p not in in_blocks}
        first, *others = pieces.values()
        there = [addend for addend in first if all(addend in values for values in others)]
        found = {a: blocks.merged({b: values[a] for b, values in pieces.items()}, block, pipelines) for a in there}
        self._blocks = {piece: values for piece, values in self._blocks.items() if piece not in pieces}
        self._blocks[block] = {} if leaves else found
        return found

    def drop(self, pipeline: int) -> None:
        """It begins the step again."""
        self._blocks = {block: x for block, x in self._blocks.items() if pipeline not in block.pipelines}

    def clear(self) -> None:
        self._blocks = {}
