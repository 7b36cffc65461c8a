"""How backwards become a duty's gradient, duties' gradients blocks, and blocks the whole sum. Pure."""

# A node sends the largest blocks of what it sums up in this step, not of what it owns: an heir need not sum a pipeline
# that every reducer has already, so a block of all that it owns may never be whole.

from collections.abc import Collection, Container, Sequence

from culm.pipeline import tree
from culm.pipeline.instruction import Instruction
from culm.pipeline.schedule import Schedule
from culm.pipeline.tree import Block


def accumulates(instruction: Instruction, inherited: int) -> bool:
    """Whether the duty's gradient lacks what this gives; ``inherited``: the microbatches that are in it already.

    What is evaluated rides with the whole gradient alone, so no prefix has it.
    """
    return instruction.op == "E" or instruction.microbatch >= inherited


def is_complete(order: Sequence[Instruction], done: Collection[Instruction], inherited: int) -> bool:
    """Whether all that the duty's whole gradient needs is done."""
    # The last one first: until it is done nothing else has to be looked at.
    return all(i in done for i in reversed(order) if accumulates(i, inherited))


def prefix_after(instruction: Instruction, schedule: Schedule, every: int, inherited: int) -> int:
    """Microbatches in the gradients after this instruction, where they go to the hot standby then; else 0.

    ``every``: after how many microbatches they go; 0: never. The whole gradient goes as REDUCED.
    """
    count = instruction.microbatch + 1
    due = every and count % every == 0 and count < schedule.microbatches
    closes = due and instruction.op == schedule.closes(instruction.stage)
    return count if closes and accumulates(instruction, inherited) else 0


def next_block(
    done: Collection[int], expected: Collection[int], merged: Container[Block], sent: Container[Block], pipelines: int
) -> tuple[Block, bool] | None:
    """Which block of pipelines to merge next, and whether it leaves: it is the largest that the node will have.

    ``done``: pipelines whose gradient is whole here; ``expected``: these, and those that will be in this step.
    ``merged`` and ``sent``: blocks that were merged, and put out. A block that does not leave yet is merged all the
    same, so that a node with k pipelines keeps 1 + log2(k) gradients at most.
    """
    last = tree.largest(expected, pipelines)
    for block in tree.largest(done, pipelines):
        leaves = block in last
        if leaves and block not in sent:
            return block, True
        if not leaves and block.end - block.first > 1 and block not in merged:
            return block, False
    return None
