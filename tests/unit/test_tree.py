"""The tree over pipelines: the same value for every way in which nodes may share the work."""

import gc
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from culm.pipeline.tree import Block, divided, halves, is_block, largest, merged, outermost, total


def paired(left: str, right: str) -> str:
    return f"({left}+{right})"


def test_the_left_half_has_the_largest_power_of_two_below_the_whole() -> None:
    assert total([*"01234567"], paired) == "(((0+1)+(2+3))+((4+5)+(6+7)))"
    assert total([*"0123456"], paired) == "(((0+1)+(2+3))+((4+5)+6))"
    assert total([*"012"], paired) == "((0+1)+2)"
    assert total(["0"], paired) == "0"


def test_one_pipeline_has_no_halves() -> None:
    with pytest.raises(ValueError, match=r"\[3,4\) is one pipeline"):
        halves(Block(3, 4))


@given(st.integers(1, 40), st.data())
def test_whoever_adds_what_the_whole_is_the_same(pipelines: int, data: st.DataObject) -> None:
    owner = data.draw(st.lists(st.integers(0, 3), min_size=pipelines, max_size=pipelines))
    sent: dict[Block, str] = {}
    for node in set(owner):
        mine = {Block(p, p + 1): str(p) for p in range(pipelines) if owner[p] == node}
        blocks = merged(mine, pipelines, paired)
        assert sorted(p for block in blocks for p in range(*block)) == sorted(p for p, _ in mine)
        sent |= blocks
    assert merged(sent, pipelines, paired) == {Block(0, pipelines): total([str(p) for p in range(pipelines)], paired)}


@given(st.integers(0, 6), st.integers(0, 63))
def test_aligned_pipelines_are_few_blocks(power: int, place: int) -> None:
    size = 1 << power
    first = place % (64 // size) * size
    pieces = {Block(p, p + 1): str(p) for p in range(first, first + size)}
    assert [*merged(pieces, 64, paired)] == [Block(first, first + size)]


@given(st.integers(1, 40), st.data())
def test_replicas_share_the_pipelines_evenly_and_in_few_blocks(pipelines: int, data: st.DataObject) -> None:
    among = data.draw(st.integers(1, pipelines))
    found = divided(pipelines, among)
    shares = [[p for p in range(pipelines) if found[p] == replica] for replica in range(among)]
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    for share in shares:
        assert len(largest(share, pipelines)) <= len(share).bit_count(), "a block for each power of two in its size"


@given(st.integers(1, 40))
def test_a_tree_has_these_blocks_and_no_others(pipelines: int) -> None:
    def below(block: Block) -> set[Block]:
        return {block}.union(*(below(half) for half in halves(block))) if block.end - block.first > 1 else {block}

    every = below(Block(0, pipelines))
    for first in range(pipelines):
        for end in range(first + 1, pipelines + 1):
            assert is_block(Block(first, end), pipelines) == (Block(first, end) in every)


def test_a_block_takes_the_place_of_those_inside_it() -> None:
    assert outermost([Block(1, 2), Block(0, 2), Block(3, 4), Block(0, 2)]) == (Block(0, 2), Block(3, 4))


class Gradient:
    """Stands for tensors: memory."""


def test_what_was_added_up_is_freed_at_once() -> None:
    """Without Python's collector, which comes late: a node had the gradients of several steps meanwhile."""
    gc.disable()
    try:
        values = [Gradient() for _ in range(4)]
        seen = [weakref.ref(value) for value in values]
        some = {Block(p, p + 1): values[p] for p in (0, 1, 2)}
        merged(some, 4, lambda left, right: Gradient())
        total(values, lambda left, right: Gradient())
        del values, some
        assert [each() for each in seen] == [None] * 4
    finally:
        gc.enable()
