"""What a layer computes by beside its tensors: dropout rates, epsilons, modes. A few characters of hash for each layer.

Of a module's attributes the plain data count, also those that lie in lists, dictionaries and plain objects, such as a
``self.config``; and small tensors that are neither parameters nor buffers. Some differ between two nodes that compute
the same, and are left out: words of the user's own modules, which may be paths or names of machines, and numbers as
large as an address or a time.
"""

import argparse
import cmath
import dataclasses
import hashlib
import sys
from collections.abc import Sequence
from pathlib import PurePath
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from culm.pipeline.checkpoints.digest import hash_layer

DIGITS = 8  # of a layer's hash
MOST_LAYERS = 400  # that are told one by one: a node tells at most 4,096 characters
DEPTH = 4  # of data in data: a configuration that holds itself comes to an end
MOST_VALUES = 10_000  # of an attribute: one of more, such as a table of words, tells nothing
LARGE = 1e6  # below addresses, and below seconds since 1970
SMALL = 1 << 20  # bytes of a tensor whose values are hashed

# Parameters, buffers and modules are told elsewhere.
HELD = ("_parameters", "_buffers", "_modules")
# Objects whose fields count one by one. Others count if they hold nothing but plain data: those are configurations, and
# not connections, loggers or profilers.
RECORDS = (SimpleNamespace, argparse.Namespace)
NEUTRAL = (str, bytes, set, frozenset, range, int, torch.device, PurePath)  # plain data that tell nothing
NOT_THE_USERS = frozenset({*sys.stdlib_module_names, "torch", "numpy"}) - {"__main__"}


class Told(NamedTuple):
    """``text``: nothing for what tells nothing, None for what is no plain data."""

    path: str
    text: str | None
    exact: bool = True  # no float, which may be a time or a measurement


def configuration_of(module: nn.Module, again: nn.Module | None) -> str:
    """A hash of one layer. ``again``: the same, built a second time: what differs there already, such as a running
    number, tells nothing. Without it only what is exact tells of the user's own modules.
    """
    found = _attributes(module, all_of_it=again is not None)
    other = _attributes(again, all_of_it=True) if again is not None else found
    lines = [f"{name}={value}" for name, value in sorted(found.items()) if other.get(name) == value]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:DIGITS]


def configurations(layers: Sequence[str]) -> str:
    """Those of all layers, in order; one hash for a model of very many."""
    text = " ".join(layers)
    return text if len(layers) <= MOST_LAYERS else hashlib.sha256(text.encode()).hexdigest()


def is_torchs(module: nn.Module) -> bool:
    return type(module).__module__.partition(".")[0] == "torch"


def _attributes(layer: nn.Module, all_of_it: bool) -> dict[str, str]:
    """By the name of the module in the layer, and of the attribute in it."""
    found: dict[str, str] = {}
    for name, module in layer.named_modules():
        found[name] = type(module).__qualname__
        torchs = is_torchs(module)  # its words are modes
        for attribute, value in vars(module).items():
            if attribute not in HELD:
                told = _Reader(torchs).read(attribute, value)
                found |= {f"{name}.{x.path}": x.text for x in told if x.text and (x.exact or torchs or all_of_it)}
    return found


class _TooMuch(Exception):
    """An attribute has more than MOST_VALUES values."""


class _Reader:
    """Reads one attribute. How much it reads does not depend on the order of a dictionary, which may be one of hashes.

    No code of the user's runs: a mapping that is no dict may be a file, and an attribute may be a property.
    """

    def __init__(self, words: bool) -> None:
        self._words = words
        self._left = MOST_VALUES

    def read(self, path: str, value: Any) -> list[Told]:
        try:
            return self._plain(path, value, DEPTH)
        except _TooMuch:
            return []

    def _plain(self, path: str, value: Any, depth: int) -> list[Told]:
        """What all plain data in the value tell."""
        self._left -= 1
        if self._left < 0:
            raise _TooMuch
        if isinstance(value, np.generic):
            value = value.item()
        kind = type(value)
        if kind in (bool, torch.dtype) or value is None or (kind is str and self._words):
            return [Told(path, repr(value))]
        if kind in (int, float, complex):
            telling = abs(value) < LARGE or (kind is not int and not cmath.isfinite(value))
            return [Told(path, repr(value) if telling else "", exact=kind is int)]
        if isinstance(value, torch.Tensor | np.ndarray):
            return _of_tensor(path, value)
        if callable(value) or isinstance(value, NEUTRAL):
            return [Told(path, "")]
        if isinstance(value, list | tuple):
            each = list.__iter__(value) if isinstance(value, list) else tuple.__iter__(value)
            return self._all(path, enumerate(each), depth)
        if isinstance(value, dict):
            return self._all(path, ((k, v) for k, v in dict.items(value) if isinstance(k, str | int)), depth)
        return self._object(path, value, depth)

    def _all(self, path: str, items: Any, depth: int) -> list[Told]:
        if not depth:
            return []
        return [told for key, value in items for told in self._plain(f"{path}.{key}", value, depth - 1)]

    def _object(self, path: str, value: Any, depth: int) -> list[Told]:
        fields = _fields(value)
        if fields is None:
            return [Told(path, None)]
        told = self._all(path, fields.items(), depth)
        record = dataclasses.is_dataclass(value) or isinstance(value, RECORDS)
        return told if record or all(each.text is not None for each in told) else [Told(path, None)]


def _fields(value: Any) -> dict[str, Any] | None:
    """What an object has; None where it is none of the user's, such as a lock."""
    try:
        held: dict[str, Any] = object.__getattribute__(value, "__dict__")
    except AttributeError:
        held = {}
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        return {name: held[name] if name in held else getattr(value, name, None) for name in names}
    if isinstance(value, RECORDS):
        return held
    users = type(value).__module__.partition(".")[0] not in NOT_THE_USERS
    return held if users and held else None


def _of_tensor(path: str, value: Any) -> list[Told]:
    """Its dtype and shape; and its values where it has some, in the host's memory."""
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            return [Told(path, None)]
        told = [Told(path, f"{value.dtype} {value.shape}")]
        if value.nbytes <= SMALL:
            told.append(Told(f"{path}.values", hashlib.sha256(value.tobytes()).hexdigest(), exact=False))
        return told
    if type(value) not in (torch.Tensor, nn.Parameter) or value.layout is not torch.strided or value.is_quantized:
        return [Told(path, "")]
    told = [Told(path, f"{value.dtype} {tuple(value.shape)}")]
    if value.device.type == "cpu" and value.nbytes <= SMALL:
        told.append(Told(f"{path}.values", hash_layer(0, {"values": value.detach()}), exact=False))
    return told
