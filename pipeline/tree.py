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

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Block(NamedTuple):
    """Pipelines ``first`` to ``end`` (exclusive), as the tree groups them."""

    first: int
    end: int

    @property
    def pipelines(self) -> range:
        return range(self.first, self.end)

    def holds(self, other: "Block") -> bool:
        """Whether all of the other's pipelines are among this one's."""
        return self.first <= other.first and other.end <= self.end

    def __str__(self) -> str:
        return f"[{self.first},{self.end})"


def one(pipeline: int) -> Block:
    """The block of a single pipeline."""
    return Block(pipeline, pipeline + 1)


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
    whole = Block(0, pipelines)
    total = _collected(whole, pieces, add, found)
    return found if total is None else {whole: total}


# A function of the module, and none inside ``merged``. One that calls itself from there would be in a circle with what
# it knows, and the gradients of a step would wait for Python's collector.
def _collected(block: Block, pieces: Mapping[Block, T], add: Callable[[T, T], T], found: dict[Block, T]) -> T | None:
    """The block's value; None where pieces are missing: ``found`` has what the others come to then."""
    if block in pieces:
        return pieces[block]
    if block.end - block.first == 1:
        return None
    left, right = halves(block)
    of_left, of_right = _collected(left, pieces, add, found), _collected(right, pieces, add, found)
    if of_left is not None and of_right is not None:
        return add(of_left, of_right)
    found.update((half, value) for half, value in ((left, of_left), (right, of_right)) if value is not None)
    return None


def largest(pipelines: Collection[int], of: int) -> tuple[Block, ...]:
    """The largest blocks of a tree over ``of`` pipelines that hold these pipelines and no other, ascending."""
    return _largest(frozenset(pipelines), of)


@lru_cache(maxsize=1024)  # a node asks with each event of a step's end, of few sets
def _largest(pipelines: frozenset[int], of: int) -> tuple[Block, ...]:
    return tuple(sorted(merged({one(p): p for p in pipelines}, of, lambda left, _: left)))


def is_block(block: Block, of: int) -> bool:
    """Whether a tree over ``of`` pipelines has this block."""
    at = Block(0, of)
    while at.holds(block) and at != block and at.end - at.first > 1:
        left, right = halves(at)
        at = left if block.first < left.end else right
    return at == block


def outermost(blocks: Collection[Block]) -> tuple[Block, ...]:
    """Those that lie in no other one, ascending: a block takes the place of the blocks inside it (rule 20)."""
    distinct = set(blocks)
    return tuple(sorted(b for b in distinct if not any(other != b and other.holds(b) for other in distinct)))


def divided(pipelines: int, among: int) -> tuple[int, ...]:
    """Which of so many replicas runs each pipeline: as evenly as can be, and in as few blocks as that allows.

    A replica's pipelines are aligned to the tree: n of them are popcount(n) blocks. ``among`` is 1 to ``pipelines``.
    """
    # As a buddy allocator: every share is cut into powers of two, and the large ones are placed first. Then what is
    # free for a power of two is made of whole blocks of that size, so a place is always found.
    free = [Block(end - (1 << bit), end) for bit, end in _powers(pipelines)]
    shares = [pipelines * (i + 1) // among - pipelines * i // among for i in range(among)]
    wanted = [(1 << bit, -i) for i, share in enumerate(sorted(shares, reverse=True)) for bit, _ in _powers(share)]
    found = [0] * pipelines
    for size, replica in sorted(wanted, reverse=True):
        # The smallest that is large enough; of several the first.
        place = min((b for b in free if b.end - b.first >= size), key=lambda b: (b.end - b.first, b.first))
        free.remove(place)
        while place.end - place.first > size:
            place, rest = halves(place)
            free.append(rest)
        for p in place.pipelines:
            found[p] = -replica
    return tuple(found)


def _powers(number: int) -> list[tuple[int, int]]:
    """The powers of two that make a number, largest first: each one's exponent, and the sum up to it."""
    bits = [bit for bit in range(number.bit_length()) if number >> bit & 1][::-1]
    return [(bit, sum(1 << b for b in bits[: i + 1])) for i, bit in enumerate(bits)]


def total(values: Sequence[T], add: Callable[[T, T], T]) -> T:
    """The whole tree over one value a pipeline, of which there is one at least."""
    return _total_of(Block(0, len(values)), values, add)


def _total_of(block: Block, values: Sequence[T], add: Callable[[T, T], T]) -> T:
    if block.end - block.first == 1:
        return values[block.first]
    left, right = halves(block)
    return add(_total_of(left, values, add), _total_of(right, values, add))
