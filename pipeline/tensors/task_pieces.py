"""A tensor task's arguments, and its answer, as pieces on a stream."""

from collections.abc import Callable, Iterator, Mapping

import torch

from culm.pipeline.tensors.values import Value
from culm.pipeline.tensors.wire import Assembler, seal, sealed_chunks
from culm.protos import tensor_work_pb2 as pb


def as_value(tensors: Mapping[int, torch.Tensor]) -> Value:
    """By their numbers."""
    return Value(tuple((str(number), tensor.detach()) for number, tensor in tensors.items()))


def by_number(value: Value) -> dict[int, torch.Tensor]:
    """What ``as_value`` was made from. Raises ValueError for a name that is no number."""
    return {int(name): tensor for name, tensor in value.tensors}


def pieces_of(value: Value) -> Iterator[pb.TensorPiece]:
    """All of a value, the header first."""
    for offset, parts in sealed_chunks(value):
        piece = pb.TensorPiece(payload=b"".join(parts), offset=offset)
        if offset == 0:
            seal(piece.header, value)
        yield piece


def assembled(next_piece: Callable[[], pb.TensorPiece]) -> Value:
    """A value of its pieces. Raises ValueError for what cannot be true, Corrupted for other bytes than were made."""
    piece = next_piece()
    if not piece.HasField("header"):
        raise ValueError("a piece comes before the header that describes it")
    if not piece.header.HasField("digest"):
        raise ValueError("a header has no digest")
    assembler = Assembler(piece.header)
    assembler.add(piece.offset, piece.payload)
    while not assembler.complete:
        piece = next_piece()
        assembler.add(piece.offset, piece.payload)
    return assembler.value()
