"""What a header says of a value but for its digest: where each tensor lies in the bytes, and the facts beside them.

To read a message field by field takes long. Headers that differ in the digest alone, as those of a stage's microbatches
do, are read once.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import torch

from culm.pipeline.tensors.tensor_bounds import DTYPES, problem
from culm.protos import tensor_pb2

LONGEST_KEPT = 1 << 12  # bytes of a header that is looked at once, and remembered


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a tensor lies in its value's bytes, and what it is there."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements; empty: in order
    start: int  # in bytes
    count: int  # of its elements

    @property
    def end(self) -> int:
        return self.start + self.count * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Layout:
    """Its tensors fill the bytes end to end."""

    places: tuple[Place, ...]
    total_bytes: int
    squared_norms: tuple[float, ...]
    tallies: tuple[float, ...]
    structure: str


def layout_of(header: tensor_pb2.ValueHeader) -> Layout:
    """Raises ValueError for a header that cannot be true (rule 18)."""
    facts = facts_of(header)
    return _layout_of(facts) if len(facts) <= LONGEST_KEPT else _layout(header)


def facts_of(header: tensor_pb2.ValueHeader) -> bytes:
    """The header without its digest, as bytes."""
    digest = header.digest if header.HasField("digest") else None
    header.ClearField("digest")
    facts = header.SerializeToString()
    if digest is not None:
        header.digest = digest
    return facts


@lru_cache(maxsize=64)
def _layout_of(facts: bytes) -> Layout:
    return _layout(tensor_pb2.ValueHeader.FromString(facts))


def _layout(header: tensor_pb2.ValueHeader) -> Layout:
    if wrong := problem(header):
        raise ValueError(wrong)
    places: list[Place] = []
    for spec in header.tensors:
        shape = tuple(spec.shape)
        place = Place(
            name=spec.name,
            dtype=DTYPES[spec.dtype],
            shape=shape,
            strides=tuple(spec.strides),
            start=places[-1].end if places else 0,
            count=math.prod(shape),
        )
        places.append(place)
    norms, tallies = tuple(header.squared_norms), tuple(header.tallies)
    return Layout(tuple(places), header.total_bytes, norms, tallies, header.structure)
