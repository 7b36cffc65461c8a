"""How a layer's gradient is cut into buckets, each of which is added up by an owner of its own. Pure."""

# One node adds up a bucket, and the owners of a stage are to add up about as much each. So a large layer is cut:
#
#     into as many buckets as the job has pipelines    a stage has no more owners than that
#     of LEAST elements or more                        small tensors cost more than they spread
#
# Both are the job's, and nothing about machines. So the cut is the same in every plan of a run, and a key names the
# same elements whatever the shape. A plan carries it, since a coordinator may take over before it knows the layers.
#
# Buckets are numbered through the model, layer by layer. Each is of whole chunks, so that the norm of a layer is a sum
# over the same chunks however it is cut (``clip.NORM_CHUNK``). The first bucket of a layer carries its buffers, and of
# the last layer the losses.

from collections.abc import Sequence
from typing import NamedTuple

from culm.pipeline.clip import NORM_CHUNK

LEAST = 4 * NORM_CHUNK


class Slice(NamedTuple):
    """Elements ``start`` to ``end`` (exclusive) of a parameter, flattened; ``parameter``: its place in the layer."""

    parameter: int
    start: int
    end: int


def count(parameters: float, pipelines: int) -> int:
    """Into how many buckets a layer of so many parameters is cut."""
    return max(1, min(pipelines, int(parameters) // LEAST))


def counts(parameters: Sequence[float], pipelines: int) -> tuple[int, ...]:
    """The same of several layers; empty where each is one bucket."""
    found = tuple(count(each, pipelines) for each in parameters)
    return found if any(each > 1 for each in found) else ()


def cut(sizes: Sequence[int], into: int) -> tuple[tuple[Slice, ...], ...]:
    """The slices of each bucket, about as many elements each. ``sizes``: elements of the layer's parameters."""
    found: list[list[Slice]] = [[] for _ in range(into)]
    before, total = 0, max(1, sum(sizes))
    for parameter, size in enumerate(sizes):
        for start in range(0, max(1, size), NORM_CHUNK):
            end = min(size, start + NORM_CHUNK)
            bucket = found[min(into - 1, before * into // total)]
            if bucket and bucket[-1].parameter == parameter:
                bucket[-1] = bucket[-1]._replace(end=end)
            else:
                bucket.append(Slice(parameter, start, end))
            before += end - start
    return tuple(map(tuple, found))
