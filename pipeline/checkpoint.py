"""A layer's state to and from a checkpoint: safetensors, written by its holder, refused by hash if it was changed."""

import hashlib
import json
from pathlib import Path

import torch
from safetensors.torch import load, save, save_file

from pipeline.manifest import CheckpointCorrupt, File, Manifest, check_file, open_fs, read_manifest
from pipeline.values import Value

MODEL_KINDS = ("parameter", "buffer")  # what a state dict has; everything else goes into the second file


def write_layer(folder: str, layer: int, state: Value) -> tuple[File, ...]:
    """Writes what ``HeldLayer.export`` gave. Two holders write the same files; leftovers are overwritten."""
    model: dict[str, torch.Tensor] = {}
    rest: dict[str, torch.Tensor] = {}
    for name, tensor in state.tensors:
        kind, _, entry = name.partition(".")
        into, key = (model, entry) if kind in MODEL_KINDS else (rest, name)
        into[key] = tensor.detach().cpu().contiguous()
    # safetensors keeps no order and no kind: both are needed to install the state again.
    order = "\n".join(name for name, _ in state.tensors)
    name = f"layer-{layer:05d}"
    return (
        _write(folder, f"{name}.safetensors", save(model, {"order": order})),
        _write(folder, f"{name}.optimizer.safetensors", save(rest)),
    )


def _write(folder: str, name: str, data: bytes) -> File:
    fs, path = open_fs(folder)
    fs.makedirs(path, exist_ok=True)
    fs.pipe_file(f"{path}/{name}", data)
    return File(name, len(data), hashlib.sha256(data).hexdigest())


def read_layer(folder: str, manifest: Manifest, layer: int) -> Value:
    """The layer's whole state. Raises CheckpointCorrupt, naming the file."""
    fs, path = open_fs(folder)
    contents: list[bytes] = []
    for file in manifest.files.get(layer, ()):
        try:
            data = fs.cat_file(f"{path}/{file.name}")
        except FileNotFoundError as error:
            raise CheckpointCorrupt(f"{folder}/{file.name} is missing") from error
        check_file(folder, file, data)
        contents.append(data)
    if not contents:
        raise CheckpointCorrupt(f"{folder} has no layer {layer}")
    model, rest = load(contents[0]), load(contents[1])
    tensors = []
    for name in _order(contents[0]):
        kind, _, entry = name.partition(".")
        tensors.append((name, model[entry] if kind in MODEL_KINDS else rest[name]))
    return Value(tuple(tensors))


def _order(data: bytes) -> list[str]:
    """The names in the order of the state, from the file's header: 8 bytes of length, then JSON."""
    length = int.from_bytes(data[:8], "little")
    order: str = json.loads(data[8 : 8 + length])["__metadata__"]["order"]
    return order.split("\n") if order else []


def export(folder: str, out: str | Path) -> None:
    """One file that plain PyTorch loads: keys ``"{layer}.{name}"``, as of an nn.Sequential's state dict."""
    manifest = read_manifest(folder)
    entries: dict[str, torch.Tensor] = {}
    for layer in sorted(manifest.files):
        for name, tensor in read_layer(folder, manifest, layer).tensors:
            kind, _, entry = name.partition(".")
            if kind in MODEL_KINDS:
                entries[f"{layer}.{entry}"] = tensor
    save_file(entries, out)
