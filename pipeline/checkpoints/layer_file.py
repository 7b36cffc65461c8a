"""A layer's state in a checkpoint: safetensors files, which a holder writes and a reader compares with their hash."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save_file

from culm.pipeline import private
from culm.pipeline.checkpoints import storage
from culm.pipeline.checkpoints.file_pieces import header_of, word_of
from culm.pipeline.checkpoints.manifest import (
    MANIFEST,
    CheckpointCorrupt,
    File,
    FileDamaged,
    Manifest,
    check_file,
    read_manifest,
)
from culm.pipeline.errors import JobError
from culm.pipeline.tensors.layout import is_dense, laid_out, strides_of
from culm.pipeline.tensors.raw import bytes_of
from culm.pipeline.tensors.values import Value

#     layer-00003.safetensors              parameters and buffers, named as in the layer's state dict; its metadata has
#                                          the names of the whole state, in order, each with its strides if it does not
#                                          lie in order: an optimizer's products would have other bits
#     layer-00003.optimizer.safetensors    all the rest, under its whole name: the optimizer's state, transient buffers

# What parsing may raise of a file that anybody may have made.
_UNREADABLE = (SafetensorError, AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError)
# A block is written while the processor still has it in its cache, where hashing it has put it.
BLOCK_BYTES = 1 << 18
AVERAGE = "average"  # the kind of a moving average of a parameter
MODEL_KINDS = ("parameter", "buffer")  # what a state dict has; everything else goes into the second file

# ``(place, start, end)``: these bytes of one tensor of a state, as it lies end to end. ``place``: the tensor's.
Read = Callable[[int, int, int], bytes | memoryview]


def write_layer(
    folder: str, layer: int, state: Value, before: Manifest | None = None, read: Read | None = None
) -> tuple[File, ...]:
    """Writes a layer's state. Two holders write the same bytes, so either may overwrite the other's.

    ``read``: gives the state's bytes, block by block, where its tensors themselves may change meanwhile.

    ``before`` is the manifest in the folder. If it names other bytes, another run's checkpoint is about to be torn, so
    the manifest goes first.

    Raises JobError for a dtype that safetensors cannot hold, OSError where the storage does not answer.
    """
    model: dict[str, int] = {}  # entry -> place in the state
    rest: dict[str, int] = {}
    for place, (name, tensor) in enumerate(state.tensors):
        try:
            word_of(tensor.dtype)
        except ValueError as error:
            what = f"{name} has dtype {tensor.dtype}, which no checkpoint can hold"
            mend = "give it another dtype, or leave out the [checkpoint] section"
            raise JobError(what, f"layer {layer}", mend) from error
        kind, _, entry = name.partition(".")
        into, key = (model, entry) if kind in MODEL_KINDS else (rest, name)
        into[key] = place
    # safetensors keeps neither order nor kind, and installing the state needs both.
    # In one entry: safetensors writes several in any order, and two holders would write other bytes.
    metadata = {"order": "\n".join(_line(name, tensor) for name, tensor in state.tensors)}
    name = f"layer-{layer:05d}"
    named = before.files.get(layer, ()) if before is not None else None
    read = read or _from_memory(state)
    return (
        _write(folder, f"{name}.safetensors", _blocks(state, model, metadata, read), named),
        _write(folder, f"{name}.optimizer.safetensors", _blocks(state, rest, {}, read), named),
    )


def _from_memory(state: Value) -> Read:
    data = [bytes_of(tensor) for _, tensor in state.tensors]
    return lambda place, start, end: data[place][start:end]


def _blocks(
    state: Value, places: Mapping[str, int], metadata: Mapping[str, str], read: Read
) -> Iterator[bytes | memoryview]:
    """A file's bytes, in order."""
    header, sizes = header_of({name: state.tensors[place][1] for name, place in places.items()}, metadata)
    yield header
    for name, size in sizes.items():
        for at in range(0, size, BLOCK_BYTES):
            yield read(places[name], at, min(at + BLOCK_BYTES, size))


def _write(folder: str, name: str, blocks: Iterator[bytes | memoryview], named: tuple[File, ...] | None) -> File:
    """``named`` are the layer's files in a manifest that is there already; None where there is no manifest."""
    digest = hashlib.sha256()
    size = 0

    def hashed() -> Iterator[bytes | memoryview]:
        nonlocal size
        for block in blocks:
            digest.update(block)
            size += len(block)
            yield block
        # Here every byte is known, and the file does not have its name yet.
        if named is not None and File(name, size, digest.hexdigest()) not in named:
            storage.remove(folder, MANIFEST)

    storage.put(folder, name, hashed())
    return File(name, size, digest.hexdigest())


def read_layer(folder: str, manifest: Manifest, layer: int) -> Value:
    """The layer's whole state. Raises CheckpointCorrupt, or FileDamaged of that kind, naming the file."""
    if layer not in manifest.files:
        raise CheckpointCorrupt(f"{folder} has no layer {layer}")
    in_model, in_rest = (_read(folder, file) for file in manifest.files[layer])
    try:
        model, rest = load(in_model), load(in_rest)
        tensors = []
        for name, strides in _order(in_model):
            kind, _, entry = name.partition(".")
            tensors.append((name, _laid_out(model[entry] if kind in MODEL_KINDS else rest[name], strides)))
    except _UNREADABLE as error:
        files = " and ".join(file.name for file in manifest.files[layer])
        what = f"{type(error).__name__} {str(error)[:200]}"
        raise CheckpointCorrupt(f"{folder}: {files} do not hold a layer's state ({what})") from error
    return Value(tuple(tensors))


def _read(folder: str, file: File) -> bytes:
    try:
        data = storage.read(folder, file.name, file.size)
    except FileNotFoundError as error:
        raise FileDamaged(f"{folder}/{file.name} is missing") from error
    check_file(folder, file, data)
    return data


def _line(name: str, tensor: torch.Tensor) -> str:
    """The name, and the strides that a copy is to have: none of a tensor that lies in order, or has gaps."""
    strides = strides_of(tensor) if is_dense(tuple(tensor.shape), tensor.stride()) else ()
    return "\t".join([name, *map(str, strides)])


def _order(data: bytes) -> list[tuple[str, tuple[int, ...]]]:
    """The lines in the order of the state, from the file's header: 8 bytes of length, then JSON."""
    length = int.from_bytes(data[:8], "little")
    order: str = json.loads(data[8 : 8 + length])["__metadata__"]["order"]
    lines = (line.split("\t") for line in order.split("\n")) if order else ()
    return [(name, tuple(map(int, strides))) for name, *strides in lines]


def _laid_out(tensor: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    if strides and not (len(strides) == tensor.dim() and is_dense(tuple(tensor.shape), strides)):
        raise ValueError(f"strides of a tensor of shape {list(tensor.shape)} are {str(strides)[:80]}")
    return laid_out(tensor, strides)


def weights_of(folder: str, average: bool = False) -> dict[str, torch.Tensor]:
    """A checkpoint's weights as of an nn.Sequential's state dict: ``"{layer}.{name}"``.

    ``average``: moving averages in place of the parameters that have one, and in their dtype. Raises CheckpointCorrupt,
    and JobError where there are no averages, or one is of no parameter.
    """
    manifest = read_manifest(folder)
    entries: dict[str, torch.Tensor] = {}
    averages: dict[str, torch.Tensor] = {}
    for layer in sorted(manifest.files):
        for name, tensor in read_layer(folder, manifest, layer).tensors:
            kind, _, entry = name.partition(".")
            if kind in MODEL_KINDS:
                entries[f"{layer}.{entry}"] = tensor
            elif kind == AVERAGE:
                averages[f"{layer}.{entry}"] = tensor
    if average and not averages:
        raise JobError("the checkpoint has no averages", folder, "train with train.average, such as 0.999")
    if average and (odd := sorted(averages.keys() - entries.keys())):
        raise JobError(f"{odd[0]} has an average, and is no parameter", folder, "export the weights, without --average")
    return entries | {name: x.to(entries[name].dtype) for name, x in averages.items()} if average else entries


def export(folder: str, out: str | Path, average: bool = False) -> None:
    """One file that plain PyTorch loads: keys ``"{layer}.{name}"``, as of an nn.Sequential's state dict.

    Raises CheckpointCorrupt, and JobError if ``out`` cannot be written; it never holds half of an export.
    """
    # A convolution in channels_last, for one, does not lie in order, and safetensors takes no other.
    entries = {name: tensor.contiguous() for name, tensor in weights_of(folder, average).items()}
    try:
        private.write_whole(out, lambda part: save_file(entries, part), private.EXPORT)
    except (OSError, SafetensorError) as error:
        raise JobError(f"the export cannot be written ({error})", str(out), "choose another file") from error
