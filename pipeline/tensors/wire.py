"""Values as bytes: a header, then the tensors end to end in pieces. Little-endian, never pickled."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from culm.pipeline.tensors.buffers import SMALLEST, Buffers, Bytes
from culm.pipeline.tensors.digests import Corrupted, digest_of_bytes
from culm.pipeline.tensors.layout import ALIGNMENT, laid_out, unless_in_order
from culm.pipeline.tensors.raw import PLAIN, bytes_of
from culm.pipeline.tensors.value_layout import Place, layout_of
from culm.pipeline.tensors.values import Value
from culm.protos import tensor_pb2

# A value of three tensors of 3 MiB, 8 bytes and 8 bytes:
#
#     header    names, dtypes, shapes, strides; total_bytes; squared norms, tallies. It comes with the first piece.
#     bytes     | tensor 0 ------------------------------------ | tensor 1 | tensor 2 |
#     pieces    | at 0: 2 MiB --------- | at 2 MiB: the rest of tensor 0, and both others |
#
# The pieces of a value follow one another on one stream. So a receiver needs no more than the next offset, and a piece
# that does not follow is an error of the sender.

CHUNK_BYTES = 1 << 21  # one large message is far slower than the same bytes in pieces
SMALL = 1 << 14  # bytes that are copied before another thread could have been given the interpreter


def seal(header: tensor_pb2.ValueHeader, value: Value) -> None:
    """Fills a header in with what there is to say of the value, and its digest, which whoever receives it compares."""
    header.CopyFrom(header_of(value))
    header.digest = value.digest


def header_of(value: Value) -> tensor_pb2.ValueHeader:
    """The header, without a digest. Nobody may change it: another value's header may be the same message."""
    kinds = tuple([(name, tensor.dtype, tensor.shape, tensor.stride()) for name, tensor in value.tensors])
    specs = _specs(kinds, value.structure)
    if not value.squared_norms and not value.tallies:
        return specs
    header = tensor_pb2.ValueHeader(squared_norms=value.squared_norms, tallies=value.tallies)
    header.MergeFrom(specs)
    return header


@lru_cache(maxsize=1024)
def _specs(
    tensors: tuple[tuple[str, torch.dtype, torch.Size, tuple[int, ...]], ...], structure: str
) -> tensor_pb2.ValueHeader:
    """What a header says of its tensors: the same from microbatch to microbatch and from step to step."""
    header = tensor_pb2.ValueHeader(structure=structure)
    for name, dtype, shape, strides in tensors:
        header.tensors.add(
            name=name, dtype=str(dtype).removeprefix("torch."), shape=shape, strides=unless_in_order(shape, strides)
        )
        header.total_bytes += math.prod(shape) * dtype.itemsize
    return header


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes ``start`` to ``end`` of a tensor, which is named by its place in the value."""

    tensor: int
    start: int
    end: int


def pieces(sizes: Sequence[int], chunk_bytes: int = CHUNK_BYTES) -> Iterator[tuple[int, list[Part]]]:
    """How tensors of these sizes in bytes become pieces of at most ``chunk_bytes``: ``(offset, parts)``, at least one.

    Small tensors share a piece, so that a layer with many parameters does not become many messages.
    """
    offset = gathered = 0
    parts: list[Part] = []
    for i, size in enumerate(sizes):
        start = 0
        while size - start > 0:
            if gathered + size - start > chunk_bytes and gathered:
                yield offset, parts
                offset, gathered, parts = offset + gathered, 0, []
            end = min(size, start + chunk_bytes)
            parts.append(Part(i, start, end))
            gathered += end - start
            start = end
    if parts or offset == 0:
        yield offset, parts


def sealed_chunks(value: Value) -> Iterator[tuple[int, list[memoryview]]]:
    """As ``chunks``, of a value that is sent with its digest: the first one's header is to be sealed (``seal``)."""
    data = _bytes_of(value)
    value.digest_of(data)  # which it keeps: ``seal`` looks at no byte again
    return _chunks(data, CHUNK_BYTES)


def chunks(value: Value, chunk_bytes: int = CHUNK_BYTES) -> Iterator[tuple[int, list[memoryview]]]:
    """``(offset, parts)`` of each of a value's pieces; the parts lie in the tensors' own memory."""
    return _chunks(_bytes_of(value), chunk_bytes)


def _bytes_of(value: Value) -> list[memoryview]:
    return [bytes_of(tensor) for _, tensor in value.tensors]


def _chunks(data: list[memoryview], chunk_bytes: int) -> Iterator[tuple[int, list[memoryview]]]:
    if sum(map(len, data)) <= chunk_bytes:  # most values are one piece
        yield 0, data
        return
    for offset, parts in pieces([len(d) for d in data], chunk_bytes):
        yield offset, [data[p.tensor][p.start : p.end] for p in parts]


BUFFERS = Buffers()


class Passing:
    """Takes the pieces of a value that nobody here needs: checks their order, and keeps nothing."""

    def __init__(self, header: tensor_pb2.ValueHeader) -> None:
        """Raises ValueError for a header that cannot be true (rule 18)."""
        self._layout = layout_of(header)
        self._received = 0

    def add(self, offset: int, payload: bytes | memoryview) -> None:
        """Takes the next piece. Raises ValueError if it does not follow the one before."""
        if offset != self._received or offset + len(payload) > self._layout.total_bytes:
            raise ValueError(
                f"the piece of {len(payload)} bytes at {offset} does not follow the {self._received} received"
            )
        if not payload and self._layout.total_bytes:
            raise ValueError("the piece has no bytes")
        self._received += len(payload)

    @property
    def complete(self) -> bool:
        return self._received == self._layout.total_bytes


class Assembler(Passing):
    """Puts the pieces of one value together."""

    def __init__(self, header: tensor_pb2.ValueHeader) -> None:
        """Raises ValueError for a header that cannot be true (rule 18)."""
        super().__init__(header)
        self._made_with = header.digest if header.HasField("digest") else None
        total = self._layout.total_bytes
        self._memory: Bytes = _small(total) if total < SMALLEST else BUFFERS.take(total)

    def add(self, offset: int, payload: bytes | memoryview) -> None:
        super().add(offset, payload)
        if len(payload) < SMALL:
            self._memory.data[offset : offset + len(payload)] = payload
        else:  # numpy copies without the GIL
            self._memory[offset : offset + len(payload)] = np.frombuffer(payload, np.uint8)

    def value(self, digest: int | None = None) -> Value:
        """The value, its tensors on the CPU. Raises Corrupted if it is not the one that was made.

        ``digest``: the one it was made with, where the header does not tell.
        """
        layout = self._layout
        tensors = tuple([(place.name, self._tensor(place)) for place in layout.places])
        value = Value(tensors, layout.squared_norms, layout.tallies, layout.structure)
        made_with = self._made_with if self._made_with is not None else digest
        if made_with is None:  # a node of before does not tell
            return value
        found = digest_of_bytes([self._memory.data], value.facts, value.structure)
        if found != made_with:
            raise Corrupted(f"its {layout.total_bytes} bytes have the digest {found:016x}, and not {made_with:016x}")
        return value.made_with(made_with)

    def _tensor(self, place: Place) -> torch.Tensor:
        tensor = self._in_order(place)
        return laid_out(tensor, place.strides) if place.strides else tensor

    def _in_order(self, place: Place) -> torch.Tensor:
        dtype, shape, start = place.dtype, place.shape, place.start
        if not place.count:
            return torch.empty(shape, dtype=dtype)
        if start % ALIGNMENT:  # kernels choose their way by the address: see ``as_sent``
            own = torch.from_numpy(self._memory[start : place.end]).clone()
            return own.view(dtype).reshape(shape)
        # numpy would refer to the memory itself, and so give it back to the buffers while the tensor is in use.
        if dtype in PLAIN and self._layout.total_bytes < SMALLEST:
            return torch.from_numpy(np.ndarray(shape, PLAIN[dtype], self._memory, start))
        return torch.frombuffer(self._memory, dtype=dtype, count=place.count, offset=start).reshape(shape)


def _small(size: int) -> Bytes:
    """[size], with anything in it, at an address where torch would put a tensor. By numpy: after a wait torch's own
    way takes 30 us longer.
    """
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -memory.__array_interface__["data"][0] % ALIGNMENT
    return memory[start : start + size]
