"""Random streams: which seed a piece of work draws from, so that doing it again draws the same numbers."""

import hashlib
import random

import numpy as np
import torch


def _seed(purpose: str, *parts: int) -> int:
    text = ":".join([purpose, *map(str, parts)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def stream_seed(seed: int, step: int, pipeline: int, microbatch: int, layer: int) -> int:
    """For one layer's forward of one microbatch; 63 bits."""
    return _seed("forward", seed, step, pipeline, microbatch, layer)


def sample_seed(seed: int, step: int, pipeline: int, microbatch: int) -> int:
    """For what the dataset draws while it makes one microbatch, such as augmentation; 63 bits."""
    return _seed("sample", seed, step, pipeline, microbatch)


def layer_seed(seed: int, layer: int) -> int:
    """For a layer's initial values, wherever it is built; 63 bits."""
    return _seed("layer", seed, layer)


def epoch_seed(seed: int, epoch: int) -> int:
    """For the order of samples in an epoch; 63 bits."""
    return _seed("epoch", seed, epoch)


def seed_all(seed: int) -> None:
    """Seeds every generator that user code may draw from without one of its own: torch's, Python's and numpy's."""
    torch.default_generator.manual_seed(seed)  # torch.manual_seed gives the same numbers and takes 80 times as long
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
