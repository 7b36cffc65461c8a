"""Random streams: which seed a piece of work draws from, so that doing it again draws the same numbers."""

import hashlib


def _seed(purpose: str, *parts: int) -> int:
    text = ":".join([purpose, *map(str, parts)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def stream_seed(seed: int, step: int, pipeline: int, microbatch: int, layer: int) -> int:
    """For one layer's forward of one microbatch; 63 bits."""
    return _seed("forward", seed, step, pipeline, microbatch, layer)


def layer_seed(seed: int, layer: int) -> int:
    """For a layer's initial values, wherever it is built; 63 bits."""
    return _seed("layer", seed, layer)


def epoch_seed(seed: int, epoch: int) -> int:
    """For the order of samples in an epoch; 63 bits."""
    return _seed("epoch", seed, epoch)
