"""A job's ready-made layers once more, to compare: what differs between two constructions is no setting, but a time.

The second time the whole model is made in little memory: without values, where it is large.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch import nn

from culm.pipeline.user_code.configuration import is_torchs
from culm.pipeline.user_code.imports import RAISED

SMALL = 256 << 20  # bytes of a model that is made with values


def made_again(make: Callable[[], Sequence[object]], layers: Sequence[object]) -> list[nn.Module | None]:
    """For each layer a module made by another call; None where ``make`` gives none that may be compared.

    A model of torch's modules alone is not made again: these keep no times, and no numbers that run on.
    """
    ready = [layer for layer in layers if isinstance(layer, nn.Module)]
    if all(is_torchs(module) for layer in ready for module in layer.modules()):
        return [layer if isinstance(layer, nn.Module) else None for layer in layers]
    size = sum(tensor.nbytes for layer in ready for tensor in (*layer.parameters(), *layer.buffers()))
    try:
        with _empty_is_filled(), torch.device("meta") if size > SMALL else nullcontext():
            made = list(make())
    except RAISED:  # it reads values, or may be called only once
        made = []
    if [type(layer) for layer in made] != [type(layer) for layer in layers]:
        return [None for _ in layers]
    return [layer if isinstance(layer, nn.Module) else None for layer in made]


@contextmanager
def _empty_is_filled() -> Iterator[None]:
    """``torch.empty`` gives what was in memory, which differs from node to node; here it differs from that."""
    was, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.use_deterministic_algorithms(was, warn_only=warns)
