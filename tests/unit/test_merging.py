"""What a node merges of its own, and what it keeps of that."""

import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from culm.pipeline import tree
from culm.pipeline.tensors.bits import same_bits
from culm.pipeline.tensors.values import Value
from culm.pipeline.ties import Addend
from culm.pipeline.tree import Block
from culm.stage_server.compute.merging import Merging

ONLY, OTHER = Addend(0), Addend(1)


def of_pipeline(p: int) -> dict[Addend, Value]:
    """Numbers whose sum goes by the order of additions."""
    numbers = torch.rand(64, generator=torch.Generator().manual_seed(p))
    return {addend: Value((("grad.w", numbers * 10.0**bucket),)) for addend in (ONLY, OTHER) for bucket in [addend[0]]}


def tensor_of(value: Value) -> torch.Tensor:
    return value.tensors[0][1]


@given(st.integers(1, 9), st.data())
def test_what_has_left_is_merged_again_to_the_same_bits(pipelines: int, data: st.DataObject) -> None:
    """Pipelines are done in any order, and after each whatever is a block by then leaves, or stays, or neither."""
    merging, outbox = Merging(), dict[tuple[Addend, Block], Value]()
    each = [of_pipeline(p) for p in range(pipelines)]
    expected = {a: tree.total([tensor_of(values[a]) for values in each], torch.add) for a in (ONLY, OTHER)}
    left: dict[int, Block] = {}
    found: dict[Addend, Value] = {}
    done: list[int] = []
    for p in data.draw(st.permutations(range(pipelines))):
        done.append(p)
        for block in tree.largest(done, pipelines):
            if p not in block.pipelines or (len(done) < pipelines and data.draw(st.booleans())):
                continue
            before = {left[q] for q in block.pipelines if q in left}
            again = [(addend, piece, value) for (addend, piece), value in outbox.items() if piece in before]
            leaves = data.draw(st.booleans())
            found = merging.merge(block, pipelines, of_pipeline, leaves, again)
            for q in block.pipelines:
                left.pop(q, None)
            if leaves:
                left |= dict.fromkeys(block.pipelines, block)
                outbox |= {(addend, block): value for addend, value in found.items()}
    assert [*found] == [ONLY, OTHER]
    assert all(same_bits(tensor_of(found[addend]), expected[addend]) for addend in (ONLY, OTHER))


def test_an_addend_of_which_a_piece_is_not_given_is_not_merged() -> None:
    """Its whole sum is here: nobody wants a larger block of it."""
    merging = Merging()
    first = merging.merge(Block(0, 1), 2, of_pipeline, True, ())
    found = merging.merge(Block(0, 2), 2, of_pipeline, True, [(OTHER, Block(0, 1), first[OTHER])])
    assert [*found] == [OTHER]


def test_a_block_that_never_left_is_not_given_back() -> None:
    merging = Merging()
    with pytest.raises(KeyError):
        merging.merge(Block(0, 2), 2, of_pipeline, True, [(ONLY, Block(0, 1), of_pipeline(0)[ONLY])])


@pytest.mark.parametrize("leaves", [True, False])
def test_of_a_block_that_leaves_nothing_is_kept(leaves: bool) -> None:
    """It was a second copy of the gradient on every node, until the commit."""
    merging = Merging()
    found = merging.merge(Block(0, 2), 4, of_pipeline, leaves, ())
    made = weakref.ref(tensor_of(found[ONLY]))
    del found
    assert (made() is None) is leaves


def test_a_pipeline_that_begins_again_is_in_no_block() -> None:
    merging = Merging()
    merging.merge(Block(0, 2), 4, of_pipeline, True, ())
    merging.drop(1)
    taken: list[int] = []

    def take(pipeline: int) -> dict[Addend, Value]:
        taken.append(pipeline)
        return of_pipeline(pipeline)

    merging.merge(Block(0, 2), 4, take, True, ())
    assert taken == [0, 1]
