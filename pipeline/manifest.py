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
from typing import Any

import fsspec
from fsspec.core import url_to_fs

from pipeline.errors import JobError

MANIFEST = "manifest.json"
FORMAT = 1
EXTRAS = {"s3": "s3", "gs": "gs", "gcs": "gs", "az": "az", "abfs": "az"}


class CheckpointCorrupt(Exception):
    """A checkpoint's file is missing, torn or changed; the text names it. Use the checkpoint before."""


@dataclass(frozen=True, slots=True)
class File:
    """One file of a checkpoint. ``size`` in bytes."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """A whole checkpoint. ``step`` counts the steps applied; ``files`` by layer."""

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


def folder_of(url: str, step: int) -> str:
    return f"{url.rstrip('/')}/step-{step:08d}"


def open_fs(url: str) -> tuple[fsspec.AbstractFileSystem, str]:
    """The file system and the path on it. Raises JobError for a URL that cannot be used."""
    try:
        fs, path = url_to_fs(url)
    except ImportError as error:
        extra = EXTRAS.get(url.partition(":")[0])
        mend = f"pip install 'culm[{extra}]'" if extra else "install what fsspec asks for"
        raise JobError(f"this URL needs another package ({error})", f"checkpoint url {url}", mend) from error
    except ValueError as error:
        mend = "use file://, memory://, s3://, gs:// or az://"
        raise JobError(f"this is no URL that can be used ({error})", f"checkpoint url {url}", mend) from error
    return fs, path


def write_manifest(folder: str, manifest: Manifest) -> None:
    """Makes the checkpoint whole, at once: the manifest appears under its name when all of it is written."""
    fs, path = open_fs(folder)
    content = {
        "format": FORMAT,
        "job": manifest.job,
        "step": manifest.step,
        "fingerprint": manifest.fingerprint,
        "loss": manifest.loss.hex(),
        "layers": {str(i): [[f.name, f.size, f.sha256] for f in files] for i, files in sorted(manifest.files.items())},
    }
    fs.makedirs(path, exist_ok=True)
    data = json.dumps(content, indent=1).encode()
    fs.pipe_file(f"{path}/{MANIFEST}.part", data)
    fs.mv(f"{path}/{MANIFEST}.part", f"{path}/{MANIFEST}")


def read_manifest(folder: str) -> Manifest:
    """Raises CheckpointCorrupt where there is no whole one."""
    fs, path = open_fs(folder)
    try:
        content: dict[str, Any] = json.loads(fs.cat_file(f"{path}/{MANIFEST}"))
    except FileNotFoundError as error:
        raise CheckpointCorrupt(f"{folder} has no {MANIFEST}: it was never completed") from error
    except ValueError as error:
        raise CheckpointCorrupt(f"{folder}/{MANIFEST} is torn: {error}") from error
    if content.get("format") != FORMAT:
        raise CheckpointCorrupt(f"{folder}/{MANIFEST} has format {content.get('format')}, this version reads {FORMAT}")
    files = {int(i): tuple(File(*f) for f in listed) for i, listed in content["layers"].items()}
    loss = float.fromhex(content["loss"])
    return Manifest(content["job"], content["step"], content["fingerprint"], loss, files)


def find_checkpoints(url: str) -> list[Found]:
    """All that is there, newest first, incomplete ones too; an empty list where there is nothing."""
    fs, path = open_fs(url)
    try:
        listed = [str(name) for name in fs.ls(path, detail=False)]
    except FileNotFoundError:
        return []
    found = []
    for name in listed:
        match = re.search(r"step-(\d+)/?$", name)
        if match is None:
            continue
        folder = folder_of(url, int(match[1]))
        try:
            found.append(Found(int(match[1]), folder, read_manifest(folder)))
        except CheckpointCorrupt as error:
            found.append(Found(int(match[1]), folder, None, str(error)))
    return sorted(found, key=lambda f: f.step, reverse=True)


def problems(folder: str, manifest: Manifest) -> list[str]:
    """What is wrong with a checkpoint's files, a line each: missing, of another size, of another content."""
    fs, path = open_fs(folder)
    out = []
    for files in manifest.files.values():
        for file in files:
            try:
                check_file(folder, file, fs.cat_file(f"{path}/{file.name}"))
            except FileNotFoundError:
                out.append(f"{folder}/{file.name} is missing")
            except CheckpointCorrupt as error:
                out.append(str(error))
    return out


def check_file(folder: str, file: File, data: bytes) -> None:
    """Raises CheckpointCorrupt unless the data is the file's."""
    if len(data) != file.size:
        raise CheckpointCorrupt(f"{folder}/{file.name} has {len(data)} bytes, not {file.size}")
    if hashlib.sha256(data).hexdigest() != file.sha256:
        raise CheckpointCorrupt(f"{folder}/{file.name} has another sha256 than its manifest says")


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

    The manifest goes first, so that a checkpoint that is half deleted is never taken for a whole one.
    """
    found = find_checkpoints(url)
    whole = [f for f in found if f.manifest is not None]
    if not whole:
        return []
    kept = {f.step for f in whole[:keep]}
    gone = [f for f in found if f.step not in kept and f.step < whole[0].step]
    fs, _ = open_fs(url)
    for f in gone:
        _, path = open_fs(f.url)
        if f.manifest is not None:
            fs.rm_file(f"{path}/{MANIFEST}")
        fs.rm(path, recursive=True)
    return [f.step for f in gone]
