"""Checkpoints as files: what one consists of, which are whole, and which to keep. Knows nothing of tensors.

    URL/step-00000050/layer-00003.safetensors             parameters and buffers
                      layer-00003.optimizer.safetensors   the rest of the layer's state
                      manifest.json                       written last: without it there is no checkpoint

Sharded by layer, so any number of stages reads any checkpoint. All I/O goes through fsspec.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from pipeline import storage

MANIFEST = "manifest.json"
FORMAT = 1


class CheckpointCorrupt(Exception):
    """A checkpoint's file is missing, torn or changed; ``problem`` names it. Use the checkpoint before."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"{problem}; use the checkpoint before")
        self.problem = problem


@dataclass(frozen=True, slots=True)
class File:
    """One file of a checkpoint. ``size`` in bytes."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """A whole checkpoint. ``step`` counts the steps applied; ``files`` by layer: of the model, of the rest."""

    job: str
    step: int
    fingerprint: str
    loss: float
    files: Mapping[int, tuple[File, ...]] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Of all files together, in bytes."""
        return sum(file.size for files in self.files.values() for file in files)


@dataclass(frozen=True, slots=True)
class Found:
    """A folder that looks like a checkpoint; without a manifest it is incomplete, for ``problem``'s reason."""

    step: int
    url: str
    manifest: Manifest | None
    problem: str = ""


# ---- what is written, without any I/O -------------------------------------------------------------------------------


def folder_of(url: str, step: int) -> str:
    return f"{url.rstrip('/')}/step-{step:08d}"


def step_of(name: str) -> int | None:
    """The step behind a folder's path; None unless ``folder_of`` makes such a name."""
    name = name.rstrip("/").rpartition("/")[2]
    match = re.fullmatch(r"step-(\d{8,})", name, re.ASCII)
    return int(match[1]) if match is not None and name == f"step-{int(match[1]):08d}" else None


def manifest_to_json(manifest: Manifest) -> bytes:
    content = {
        "format": FORMAT,
        "job": manifest.job,
        "step": manifest.step,
        "fingerprint": manifest.fingerprint,
        "loss": manifest.loss.hex(),
        "layer_count": len(manifest.files),
        "layers": {str(i): [[f.name, f.size, f.sha256] for f in files] for i, files in sorted(manifest.files.items())},
    }
    return json.dumps(content, indent=1).encode()


def manifest_from_json(data: bytes, where: str) -> Manifest:
    """Raises CheckpointCorrupt, naming ``where``, for everything that ``manifest_to_json`` does not write."""
    try:
        content = json.loads(data)
    except ValueError as error:
        raise CheckpointCorrupt(f"{where} is torn: {error}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        there = content.get("format") if isinstance(content, dict) else None
        raise CheckpointCorrupt(f"{where} has format {there}, this version reads {FORMAT}")
    try:
        files = {
            int(layer): tuple(File(str(name), int(size), str(sha256)) for name, size, sha256 in listed)
            for layer, listed in content["layers"].items()
        }
        loss = float.fromhex(content["loss"])
        manifest = Manifest(str(content["job"]), int(content["step"]), str(content["fingerprint"]), loss, files)
        count = int(content.get("layer_count", len(files)))
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise CheckpointCorrupt(f"{where} is no manifest: {type(error).__name__} {error}") from error
    if sorted(files) != list(range(count)) or any(len(listed) != 2 for listed in files.values()):
        raise CheckpointCorrupt(f"{where} does not list two files for each of {count} layers")
    return manifest


def check_file(folder: str, file: File, data: bytes) -> None:
    """Raises CheckpointCorrupt unless the data is the file's."""
    _compare(folder, file, len(data), hashlib.sha256(data).hexdigest())


def _compare(folder: str, file: File, size: int, sha256: str) -> None:
    if size != file.size:
        raise CheckpointCorrupt(f"{folder}/{file.name} has {size} bytes, not {file.size}")
    if sha256 != file.sha256:
        raise CheckpointCorrupt(f"{folder}/{file.name} has another sha256 than its manifest says")


# ---- checkpoints ----------------------------------------------------------------------------------------------------


def write_manifest(folder: str, manifest: Manifest) -> None:
    """Makes the checkpoint whole, at once: the manifest appears under its name when all of it is written."""
    storage.put(folder, MANIFEST, manifest_to_json(manifest))


def read_manifest(folder: str) -> Manifest:
    """Raises CheckpointCorrupt where there is no whole one."""
    try:
        data = storage.read(folder, MANIFEST)
    except FileNotFoundError as error:
        raise CheckpointCorrupt(f"{folder} has no {MANIFEST}: it was never completed") from error
    manifest = manifest_from_json(data, f"{folder}/{MANIFEST}")
    if step_of(folder) not in (manifest.step, None):
        raise CheckpointCorrupt(f"{folder}/{MANIFEST} is of step {manifest.step}")
    return manifest


def find_checkpoints(url: str) -> list[Found]:
    """All that is there, newest first, incomplete ones too; an empty list where there is nothing.

    Raises OSError where the storage does not answer: what cannot be read is not to be taken for incomplete.
    """
    steps = {step for step in map(step_of, storage.names(url)) if step is not None}
    found = []
    for step in sorted(steps, reverse=True):
        folder = folder_of(url, step)
        try:
            found.append(Found(step, folder, read_manifest(folder)))
        except CheckpointCorrupt as error:
            found.append(Found(step, folder, None, error.problem))
    return found


def completed_at(folder: str) -> datetime | None:
    """When the manifest was written, in UTC; None where the storage keeps no times."""
    return storage.modified(folder, MANIFEST)


def problems(folder: str, manifest: Manifest) -> list[str]:
    """What is wrong with a checkpoint's files, a line each: missing, of another size, of another content."""
    out = []
    for files in manifest.files.values():
        for file in files:
            try:
                _compare(folder, file, *storage.digest(folder, file.name))
            except FileNotFoundError:
                out.append(f"{folder}/{file.name} is missing")
            except CheckpointCorrupt as error:
                out.append(error.problem)
    return out


def newest_whole(url: str, told: Callable[[str], None] = lambda problem: None) -> Found | None:
    """The newest checkpoint whose every file has its hash; ``told`` hears why newer ones are passed over."""
    for found in find_checkpoints(url):
        wrong = problems(found.url, found.manifest) if found.manifest is not None else [found.problem]
        if not wrong:
            return found
        told(f"the checkpoint of step {found.step} is passed over: {wrong[0]}")
    return None


def retain(url: str, keep: int) -> list[int]:
    """Deletes all but the newest ``keep`` whole checkpoints, and incomplete ones older than the newest; their steps.

    The manifest goes first, so that a checkpoint that is half deleted is never taken for a whole one. The newest
    whole one always stays.
    """
    found = find_checkpoints(url)
    whole = [f for f in found if f.manifest is not None]
    if not whole:
        return []
    kept = {f.step for f in whole[:keep]}
    gone = [f for f in reversed(found) if f.step not in kept and f.step < whole[0].step]
    for f in gone:
        if f.manifest is not None:
            storage.remove(f.url, MANIFEST)
        storage.remove(f.url)
    return [f.step for f in gone]
