"""How a duty's backwards become its reduced gradient, and what a prefix of them is worth to a standby. Pure."""

from collections.abc import Container, Sequence

from culm.pipeline.instruction import Instruction
from culm.pipeline.schedule import Schedule


def accumulates(instruction: Instruction, inherited: int) -> bool:
    """Whether this backward adds to the duty's gradients; ``inherited``: the microbatches that are in them already."""
    return instruction.microbatch >= inherited


def is_complete(order: Sequence[Instruction], done: Container[Instruction], inherited: int) -> bool:
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
