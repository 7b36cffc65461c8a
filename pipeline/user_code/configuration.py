"""What a layer computes by beside its tensors: dropout rates, epsilons, modes. A few characters of hash for each layer.

Of a module's attributes the plain data count. Some differ between two nodes that compute the same, and are left out:
words of the user's own modules, which may be paths or names of machines, and numbers as large as an address or a time.
"""

import cmath
import dataclasses
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

DIGITS = 8  # of a layer's hash
MOST_LAYERS = 400  # that are told one by one: a node tells at most 4,096 characters
DEPTH = 4  # of data in data: a configuration that holds itself comes to an end
LARGE = 1e6  # below addresses, and below seconds since 1970

Found = dict[str, str]


def configuration_of(module: nn.Module, again: nn.Module) -> str:
    """A hash of one layer. ``again``: the same, built a second time: what differs there already, such as a running
    number, tells nothing.
    """
    found, other = _attributes(module), _attributes(again)
    lines = [f"{name}={value}" for name, value in sorted(found.items()) if other.get(name) == value]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:DIGITS]


def configurations(layers: Sequence[str]) -> str:
    """Those of all layers, in order; one hash for a model of very many."""
    text = " ".join(layers)
    return text if len(layers) <= MOST_LAYERS else hashlib.sha256(text.encode()).hexdigest()


def _attributes(layer: nn.Module) -> Found:
    """By the name of the module in the layer, and of the attribute in it."""
    found: Found = {}
    for name, module in layer.named_modules():
        kind = type(module)
        found[name] = kind.__qualname__
        words = kind.__module__.partition(".")[0] == "torch"  # its words are modes
        for attribute, value in vars(module).items():
            found |= {f"{name}.{path}": text for path, text in _plain(attribute, value, words, DEPTH)}
    return found


def _plain(path: str, value: Any, words: bool, depth: int) -> Iterator[tuple[str, str]]:
    """(path, text) of all plain data in the value."""
    kind = type(value)
    if kind in (bool, torch.dtype) or value is None or (kind is str and words):
        yield path, repr(value)
    elif kind in (int, float, complex):
        if not cmath.isfinite(value) or abs(value) < LARGE:
            yield path, repr(value)
    elif depth and isinstance(value, list | tuple):
        for i, each in enumerate(value):
            yield from _plain(f"{path}.{i}", each, words, depth - 1)
    elif depth and isinstance(value, Mapping):
        for key, each in value.items():
            if isinstance(key, str | int):
                yield from _plain(f"{path}.{key}", each, words, depth - 1)
    elif depth and dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _plain(f"{path}.{field.name}", getattr(value, field.name, None), words, depth - 1)
