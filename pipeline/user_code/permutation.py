"""An order of very many samples that takes no memory: the place of each is computed when it is asked for."""

# A Feistel network maps the numbers of 2k bits onto themselves, one to one, whatever its round function is:
#
#     (left, right)  ->  (right, left ^ mix(round, right))     ROUNDS times
#
# It is taken for the smallest such range that holds all samples. Where it gives a number that is no sample, its own
# result goes in again: that walks along a cycle of the permutation, and so comes to a sample, each one once
# (cycle walking; Black and Rogaway, "Ciphers with arbitrary finite domains", 2002). The range is less than four times
# as large as the samples, so it takes less than four walks in the mean.

from hashlib import blake2b

ROUNDS = 6


def place_of(position: int, length: int, seed: int) -> int:
    """The sample at a position of the order that the seed gives; both from 0 to ``length`` - 1. ``seed``: 63 bits."""
    half = max(1, ((length - 1).bit_length() + 1) // 2)
    place = position
    while True:
        place = _once(place, half, seed)
        if place < length:
            return place


def _once(number: int, half: int, seed: int) -> int:
    left, right = number >> half, number & ((1 << half) - 1)
    for step in range(ROUNDS):
        left, right = right, left ^ _mix(step, right, half, seed)
    return left << half | right


def _mix(step: int, number: int, half: int, seed: int) -> int:
    text = b"%d:%d:%d" % (seed, step, number)
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little") & ((1 << half) - 1)
