"""Whether tensors are the same bit for bit: -0.0 is not 0.0, and a NaN is the same as itself."""

import hashlib

import torch

from culm.pipeline.tensors.raw import bytes_of

_WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by the bytes of an element


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether dtype, shape and every bit are the same. Strides may differ."""
    return one.dtype == other.dtype and torch.equal(_as_whole(one), _as_whole(other))


def digest_of(tensor: torch.Tensor) -> str:
    """Of dtype, shape and bytes, in hex."""
    digest = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
    digest.update(bytes_of(tensor.detach().resolve_conj().resolve_neg()))
    return digest.hexdigest()


def checksum(tensor: torch.Tensor) -> torch.Tensor:
    """A sum that few changes leave as it is: for where memory for a copy is too dear. Takes one look at each element.

    It wraps around. In wider numbers torch would make a wider copy first.
    """
    whole = _as_whole(tensor)
    return whole.sum(dtype=whole.dtype).to(torch.int64)


def _as_whole(tensor: torch.Tensor) -> torch.Tensor:
    """Its bits as whole numbers: a view, where torch has no lazy conjugate or negative."""
    bits = tensor.detach().resolve_conj().resolve_neg()
    if bits.is_complex():
        bits = torch.view_as_real(bits)
    return bits.view(_WHOLE[bits.element_size()])
