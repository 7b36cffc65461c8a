"""The sum of a step over its pipelines: one fixed binary tree, whoever adds what (rule 19). Pure."""

# Floating-point addition is not associative. So a sum that follows the machines, such as a ring's or "each node adds
# what it has", has other bits with other machines. This one follows the pipelines, which the job fixes:
#
#     pipelines    0   1   2   3   4   5   6
#                   \ /     \ /     \ /   |
#                  [0,2)   [2,4)   [4,6)  |       a block is named by its pipelines: first, end (exclusive)
#                     \     /         \   |
#                      [0,4)          [4,7)       halves: the left one has the largest power of two below the whole
#                           \        /
#                             [0,7)
#
# A block's value is a function of its pipelines alone, so it does not matter which nodes computed its halves, or when.
# n pipelines that are aligned to the tree are popcount(n) blocks.

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Block(NamedTuple):
    """Pipelines ``first`` to ``end`` (exclusive), as the tree groups them."""

    first: int
    end: int

    def __str__(self) -> str:
        return f"[{self.first},{self.end})"


def halves(block: Block) -> tuple[Block, Block]:
    """The two blocks of which a block of several pipelines is the sum. ValueError for a single pipeline."""
    size = block.end - block.first
    if size < 2:
        raise ValueError(f"{block} is one pipeline, which has no halves")
    middle = block.first + (1 << ((size - 1).bit_length() - 1))
    return Block(block.first, middle), Block(middle, block.end)


def merged(pieces: Mapping[Block, T], pipelines: int, add: Callable[[T, T], T]) -> dict[Block, T]:
    """The largest blocks that these come to: halves that are both here become their block, and so on up.

    ``pieces``: disjoint blocks of the tree over so many pipelines. ``add(left, right)``.
    """
    found: dict[Block, T] = {}

    def collect(block: Block) -> T | None:
        if block in pieces:
            return pieces[block]
        if block.end - block.first == 1:
            return None
        left, right = halves(block)
        one, other = collect(left), collect(right)
        if one is not None and other is not None:
            return add(one, other)
        found.update((half, value) for half, value in ((left, one), (right, other)) if value is not None)
        return None

    whole = Block(0, pipelines)
    total = collect(whole)
    return found if total is None else {whole: total}


def total(values: Sequence[T], add: Callable[[T, T], T]) -> T:
    """The whole tree over one value a pipeline, of which there is one at least."""

    def of(block: Block) -> T:
        if block.end - block.first == 1:
            return values[block.first]
        left, right = halves(block)
        return add(of(left), of(right))

    return of(Block(0, len(values)))
