"""Eight bytes that tell whether a value is still the one that was made: on the wire, in memory, on disk."""

# A flipped bit gives a tensor that looks like any other, and one is enough to change the weights. So a value has a
# digest, taken from the memory of the node that made it when it is first sent, and it keeps that digest wherever it
# goes: to the next stage, through a reducer, onto a disk, to an heir. Whoever receives it compares.
#
#     made by n0 ──digest──▶ wire ──compared by n1──▶ kept ──same digest──▶ wire ──compared by n2
#
# XXH3 finds every change of a few bits, and of many with a chance of 1 in 2^64 to miss it. It is no cryptography:
# against somebody who changes tensors on purpose there is TLS (docs/security.md). It takes 1 ms for 20 MB.

import struct
from collections.abc import Iterable, Sequence

import xxhash


class Corrupted(Exception):
    """Other bytes are here than were made."""


class Digest:
    """Taken piece by piece, in order."""

    def __init__(self) -> None:
        self._hash = xxhash.xxh3_64()

    def add(self, piece: bytes | bytearray | memoryview) -> None:
        self._hash.update(piece)

    def number(self, numbers: Sequence[float] = (), text: str = "") -> int:
        """Of all that was added, and of these after it. 64 bits."""
        return _number(self._hash.copy(), numbers, text)


def digest_of_bytes(pieces: Iterable[bytes | bytearray | memoryview], numbers: Sequence[float], text: str) -> int:
    """Of these pieces end to end, of numbers and of a text. 64 bits."""
    whole = xxhash.xxh3_64()
    for piece in pieces:
        whole.update(piece)
    return _number(whole, numbers, text)


def _number(whole: xxhash.xxh3_64, numbers: Sequence[float], text: str) -> int:
    if numbers or text:
        whole.update(struct.pack(f"<{len(numbers)}d", *numbers) + text.encode())
    return whole.intdigest()
