"""The bytes that nodes are predicted to send, on cases that were counted by hand."""

import pytest

from benchmarks.gradient_bytes import of_a_ring, predicted


@pytest.mark.parametrize(
    ("pipelines", "replicas", "layers", "sent_by_all"),
    [
        # One owner has it all, and sends nothing.
        (8, 1, 3, 0),
        # A block each. Of each layer one block goes to the reducer, and one sum comes back.
        (2, 2, 2, 4),
        # Three blocks to the reducer, three sums back.
        (4, 4, 4, 24),
        # Pipelines 0 and 1 are one block, 2 is another: whoever reduces, one block is sent and one sum.
        (3, 2, 5, 10),
        # Three pipelines each, which are two blocks: two are sent, and one sum.
        (6, 2, 2, 6),
        # Three, three and two pipelines: two blocks, two blocks, one. To the first and the second reducer go 3 blocks,
        # to the third 4, and from each 2 sums.
        (8, 3, 3, 5 + 5 + 6),
        # The fourth layer is the first replica's again.
        (8, 3, 4, 5 + 5 + 6 + 5),
    ],
)
def test_blocks_go_to_the_reducer_and_sums_come_back(
    pipelines: int, replicas: int, layers: int, sent_by_all: int
) -> None:
    assert predicted(pipelines, replicas, layers) == pytest.approx(sent_by_all / replicas)


@pytest.mark.parametrize("replicas", [2, 4, 8])
def test_with_a_pipeline_each_it_is_what_a_ring_sends(replicas: int) -> None:
    assert predicted(replicas, replicas, 2 * replicas) == of_a_ring(replicas, 2 * replicas)
