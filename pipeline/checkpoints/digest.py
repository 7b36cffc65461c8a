"""How final weights are compared and kept: by their sha256, and as a safetensors file with the same keys."""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from culm.pipeline import private
from culm.pipeline.tensors.values import Value
from culm.pipeline.tensors.wire import chunks

LayerStates = Iterable[tuple[int, Mapping[str, torch.Tensor]]]


def hash_layer(index: int, state: Mapping[str, torch.Tensor]) -> str:
    """sha256 of one layer's state dict, in hex."""
    return weights_sha256([(index, state)])


def weights_sha256(layers: LayerStates) -> str:
    """sha256 over ``"{index}.{name}"`` and the little-endian bytes of every entry, by layer, then name; in hex."""
    digest = hashlib.sha256()
    for index, state in sorted(layers, key=lambda layer: layer[0]):
        for name in sorted(state):
            digest.update(f"{index}.{name}".encode())
            for _, parts in chunks(Value.single(state[name])):
                for part in parts:
                    digest.update(part)
    return digest.hexdigest()


def save_weights(path: str | Path, layers: LayerStates) -> None:
    """Writes ``"{index}.{name}"`` entries as safetensors. What stood there before stays until all of it is written.

    Raises OSError where it cannot be written.
    """
    entries = {
        f"{index}.{name}": tensor.detach().cpu().clone() for index, state in layers for name, tensor in state.items()
    }
    contiguous = {name: tensor.contiguous() for name, tensor in entries.items()}
    try:
        private.write_whole(path, lambda part: save_file(contiguous, part), private.EXPORT)
    except SafetensorError as error:
        raise OSError(str(error)) from error
