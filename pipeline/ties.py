"""Tied parameters: several layers use one parameter, whose gradient is the sum over its uses (rule 22). Pure."""

# The embeddings of a language model are often the weight of its head as well. Layer 0 is the first to use the
# parameter, so it is layer 0's: its buckets have the gradient, and its norm counts there, once. Layer 13 adds to these:
#
#     layer 0     --PARTIAL bucket 0---------->   the bucket's reducer adds each up the tree over the pipelines,
#     layer 13    --PARTIAL bucket 0, use 13-->   then in order of layers    --REDUCED bucket 0--> holders of either
#
# Each layer has a copy of the parameter, and of the optimizer's state of it. They begin with the same values and take
# the same steps, so they stay the same bits, and all that is known of layers goes for them: seeding, standbys, files.
#
# A sum of uses by pipeline would follow the microbatches, as autograd does where one process has both. A sum by use is
# what can be had from nodes that know one use each. The plain loop of ``culm verify`` adds in the same order.
#
# Ties are the model's, so every node knows them from the job's code, and no message tells them.

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple


class Tie(NamedTuple):
    """A layer that uses parameters of an earlier one."""

    first: int  # the first layer that uses them
    layer: int
    names: tuple[tuple[str, str], ...] = ()  # of each parameter: its name in ``layer``, and in ``first``
    places: tuple[int, ...] = (0,)  # the buckets of ``first`` that have some of them, counted from its first one


Ties = tuple[Tie, ...]  # by ``first``, then by ``layer``


class Addend(NamedTuple):
    """What one layer's gradient is in one bucket."""

    bucket: int
    use: int = 0  # the layer, if not the bucket's own: never 0, since it comes after another one


def numbered(counts: Sequence[int]) -> list[range]:
    """The numbers of each layer's buckets, of how many each has."""
    return [range(end - count, end) for count, end in zip(counts, accumulate(counts), strict=True)]


def addends(numbers: Sequence[range], ties: Ties) -> tuple[tuple[Addend, ...], ...]:
    """By layer: its own buckets, then those of earlier layers that have parameters that it uses.

    ``numbers``: of each layer's own buckets.
    """
    found = [[Addend(bucket) for bucket in own] for own in numbers]
    for tie in ties:
        found[tie.layer] += [Addend(numbers[tie.first][place], tie.layer) for place in tie.places]
    return tuple(map(tuple, found))
