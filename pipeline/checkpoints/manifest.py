"""Checkpoints as files: what one consists of, which are whole, and which to keep. Knows nothing of tensors.

    URL/step-00000050/layer-00003.safetensors             parameters and buffers
                      layer-00003.optimizer.safetensors   the rest of the layer's state
                      manifest.json                       written last: without it there is no checkpoint

Sharded by layer, so any number of stages reads any checkpoint. All I/O goes through fsspec.
"""

import hashlib
import json
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime

from culm.pipeline.checkpoints import evaluation_file, storage
from culm.pipeline.early_stop import BestSoFar, best_so_far_from, best_so_far_to
from culm.pipeline.identity import Identity, identity_from, identity_to
from culm.pipeline.origin import Origin

# What makes a checkpoint whole, and keeps it so:
#
#     write    holders put the files of their layers; the coordinator sees every file itself, and then puts the manifest
#     begin    an era names its origin: step, folder and the manifest's sha256 (rule 14)
#     read     a node compares the manifest with the origin, and every file with the manifest
#     retain   the manifest goes first and the files after it, so a half-deleted checkpoint has no manifest
#
# One folder may be written twice: by two holders of a stage, by two coordinators, in two eras. On equal hardware the
# state at a step is the same bits every time, and so are the files. Manifests then say the same, and the first one
# stays. Another run that writes there has other files: the manifest goes before the first of them is replaced
# (``write_layer``), so that none ever names files of two runs.

MANIFEST = "manifest.json"
FORMAT = 1
# What a manifest may say: anybody may have written it (rule 18).
MOST_BYTES = 64_000_000  # of the manifest itself
MOST_COUNT = 1 << 63  # of steps, and of a file's bytes
MOST_TEXT = 1000  # characters of a job's name and of a fingerprint
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)  # of a file: no path


class CheckpointCorrupt(Exception):
    """A checkpoint's file is missing, torn or changed; ``problem`` names it. Use the checkpoint before."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"{problem}; use the checkpoint before")
        self.problem = problem


class FileDamaged(CheckpointCorrupt):
    """A file is missing, or has other content than its manifest says, as seen from here: a disk may be at fault."""


class OriginUnseen(Exception):
    """The storage answers, and shows this process no such manifest: no proof that the checkpoint is bad (rule 14)."""


@dataclass(frozen=True, slots=True)
class File:
    """One file of a checkpoint. ``size`` in bytes."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A whole checkpoint. ``step`` counts the steps applied. ``files`` by layer: one of the model, one of the rest."""

    job: str
    step: int
    fingerprint: str
    loss: float
    files: Mapping[int, tuple[File, ...]] = field(default_factory=dict)
    identity: Identity = field(default_factory=Identity)  # what its bits depend on, and each layer's outline
    job_toml: str = ""  # the job that made it
    best_so_far: BestSoFar | None = None  # before this version; None: nobody knew, or a version of Culm before did not

    @property
    def size(self) -> int:
        """Of all files together, in bytes."""
        return sum(file.size for files in self.files.values() for file in files)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A folder that looks like a checkpoint. Without a manifest it is incomplete, and ``problem`` says why."""

    step: int
    url: str
    manifest: Manifest | None
    problem: str = ""
    sha256: str = ""  # of the manifest
    evaluated: Mapping[str, float] = field(default_factory=dict)  # of these weights, by name, if they were

    @property
    def origin(self) -> Origin:
        """The checkpoint as an era's origin."""
        known = self.manifest.best_so_far if self.manifest is not None else None
        return Origin(self.step, self.url, self.sha256, known)


# ---- what is written, without any I/O -------------------------------------------------------------------------------


def folder_of(url: str, step: int) -> str:
    return f"{url.rstrip('/')}/step-{step:08d}"


def step_of(name: str) -> int | None:
    """The step behind a folder's path; None unless ``folder_of`` makes such a name."""
    name = name.rstrip("/").rpartition("/")[2]
    match = re.fullmatch(r"step-(\d{8,18})", name, re.ASCII)
    return int(match[1]) if match is not None and name == f"step-{int(match[1]):08d}" else None


def manifest_to_json(manifest: Manifest) -> bytes:
    content = {
        "format": FORMAT,
        "job": manifest.job,
        "step": manifest.step,
        "fingerprint": manifest.fingerprint,
        "loss": manifest.loss.hex(),
        "layer_count": len(manifest.files),
        "best_so_far": best_so_far_to(best) if (best := manifest.best_so_far) is not None else None,
        "identity": identity_to(manifest.identity),
        "job_toml": manifest.job_toml,
        "layers": {str(i): [[f.name, f.size, f.sha256] for f in files] for i, files in sorted(manifest.files.items())},
    }
    return json.dumps(content, indent=1).encode()


def manifest_from_json(data: bytes, where: str) -> Manifest:
    """Raises CheckpointCorrupt, naming ``where``, for everything that ``manifest_to_json`` does not write."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CheckpointCorrupt(f"{where} is damaged: {error}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        there = content.get("format") if isinstance(content, dict) else None
        raise CheckpointCorrupt(f"{where} has format {there}; this version of Culm reads format {FORMAT}")
    try:
        files = {int(layer): tuple(map(_file, listed)) for layer, listed in content["layers"].items()}
        loss = float.fromhex(content["loss"])
        job, fingerprint = _text(content["job"]), _text(content["fingerprint"])
        manifest = Manifest(
            job=job,
            step=_count(content["step"]),
            fingerprint=fingerprint,
            loss=loss,
            files=files,
            identity=identity_from(content.get("identity")),
            job_toml=str(content.get("job_toml", "")),
            best_so_far=best_so_far_from(best) if (best := content.get("best_so_far")) is not None else None,
        )
        count = _count(content.get("layer_count", len(files)))
        _refuse_later(manifest)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise CheckpointCorrupt(f"{where} is not a manifest: {type(error).__name__} {str(error)[:200]}") from error
    names = {file.name for listed in files.values() for file in listed}
    whole = len(files) == count and sorted(files) == list(range(count)) and len(names) == 2 * count
    if not whole or any(len(listed) != 2 for listed in files.values()):
        raise CheckpointCorrupt(f"{where} does not list two files for each of {count} layers")
    return manifest


def _refuse_later(manifest: Manifest) -> None:
    """Raises ValueError where what was best before this version is of that version, or of a later one."""
    known = manifest.best_so_far
    if known is not None and (known.step >= max(manifest.step, 1) or known.worse_in_a_row > manifest.step):
        raise ValueError(f"before step {manifest.step} there cannot have been {known}")


def _file(listed: list[object]) -> File:
    name, size, sha256 = listed
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ValueError(f"{str(name)[:80]!r} is not the name of a file")
    if not isinstance(sha256, str) or not re.fullmatch(r"[0-9a-f]{64}", sha256, re.ASCII):
        raise ValueError(f"{name} has no sha256")
    return File(name, _count(size), sha256)


def _count(number: object) -> int:
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < MOST_COUNT:
        raise ValueError(f"{str(number)[:80]!r} is not a count")
    return number


def _text(text: object) -> str:
    if not isinstance(text, str) or len(text) > MOST_TEXT or not text.isprintable():
        raise ValueError("a name in it is not a line of text")
    return text


def named(data: bytes, origin: Origin) -> Manifest:
    """The manifest that the origin names, from what stands under its name. Raises OriginUnseen, CheckpointCorrupt."""
    if hashlib.sha256(data).hexdigest() != origin.sha256:
        raise OriginUnseen(f"{origin.folder}/{MANIFEST} is another manifest than the one that is meant")
    manifest = manifest_from_json(data, f"{origin.folder}/{MANIFEST}")
    if manifest.step != origin.step:
        raise CheckpointCorrupt(f"{origin.folder}/{MANIFEST} is of step {manifest.step}, not {origin.step}")
    return manifest


def check_file(folder: str, file: File, data: bytes) -> None:
    """Raises FileDamaged unless the data is the file's."""
    _compare(folder, file, len(data), hashlib.sha256(data).hexdigest())


def _compare(folder: str, file: File, size: int, sha256: str) -> None:
    if size != file.size:
        raise FileDamaged(f"{folder}/{file.name} has {size} bytes, not {file.size}")
    if sha256 != file.sha256:
        raise FileDamaged(f"{folder}/{file.name} has another sha256 than its manifest says")


# ---- checkpoints ----------------------------------------------------------------------------------------------------


def write_manifest(folder: str, manifest: Manifest) -> Origin:
    """Makes the checkpoint whole, at once: the manifest appears under its name when all of it is written.

    One that says the same stays as it is, and so does its hash: an era may have begun from it. Not compared is what the
    layers have no part in: the loss, and what was best before, which one of two coordinators may not know.
    """
    with suppress(CheckpointCorrupt):
        there, sha256 = _read_manifest(folder)
        if replace(there, loss=0.0, best_so_far=None) == replace(manifest, loss=0.0, best_so_far=None):
            return Origin(manifest.step, folder, sha256, there.best_so_far)
    data = manifest_to_json(manifest)
    storage.remove(folder, evaluation_file.FILE)  # of what lay there before
    storage.put(folder, MANIFEST, [data])
    return Origin(manifest.step, folder, hashlib.sha256(data).hexdigest(), manifest.best_so_far)


def complete(url: str, manifest: Manifest) -> Origin:
    """Writes the manifest once every file is seen from here. Raises OSError, with the reason, where one is not."""
    folder = folder_of(url, manifest.step)
    there = storage.sizes(folder)
    for files in manifest.files.values():
        for file in files:
            if there.get(file.name) != file.size:
                what = "does not see" if file.name not in there else f"sees {there[file.name]} of {file.size} bytes of"
                mend = "let the URL be one folder for all machines, such as a mount or s3://"
                raise OSError(f"the coordinator {what} {folder}/{file.name}, which a node has written: {mend}")
    return write_manifest(folder, manifest)


def manifest_before(folder: str) -> Manifest | None:
    """What is whole in the folder before it is written to; None if nothing is. Raises OSError."""
    with suppress(CheckpointCorrupt):
        return read_manifest(folder)
    return None


def read_manifest(folder: str) -> Manifest:
    """Raises CheckpointCorrupt where there is no whole one."""
    return _read_manifest(folder)[0]


def _read_manifest(folder: str) -> tuple[Manifest, str]:
    """The manifest and its sha256."""
    try:
        data = storage.read(folder, MANIFEST, MOST_BYTES)
    except FileNotFoundError as error:
        raise CheckpointCorrupt(f"{folder} has no {MANIFEST}: it was never completed") from error
    if len(data) > MOST_BYTES:
        raise CheckpointCorrupt(f"{folder}/{MANIFEST} has more than {MOST_BYTES} bytes")
    manifest = manifest_from_json(data, f"{folder}/{MANIFEST}")
    if step_of(folder) not in (manifest.step, None):
        raise CheckpointCorrupt(f"{folder}/{MANIFEST} is of step {manifest.step}, which is not its folder's")
    return manifest, hashlib.sha256(data).hexdigest()


def read_origin(origin: Origin) -> Manifest:
    """The very manifest that the era begins from. Raises OriginUnseen, CheckpointCorrupt; OSError for no answer."""
    try:
        data = storage.read(origin.folder, MANIFEST, MOST_BYTES)
    except FileNotFoundError as error:
        raise OriginUnseen(f"there is no {origin.folder}/{MANIFEST}") from error
    return named(data, origin)


def shows_others(origin: Origin) -> bool:
    """Whether the storage shows that this checkpoint is gone for good: its folder without it, or another one.

    What else lies there is no proof. Where a mount is gone, the disk below it may show a share of a newer step that a
    node has written meanwhile, or a file that marks an empty mount point.
    """
    parent, _, own = origin.folder.rpartition("/")
    names = storage.names(parent)
    steps = [name for name in names if step_of(name) is not None]
    return own in names or any(MANIFEST in storage.names(f"{parent}/{name}") for name in steps)


def find_checkpoints(url: str) -> list[Found]:
    """All checkpoints there, newest first, incomplete ones too; an empty list where there is nothing.

    Raises OSError where the storage does not answer: a checkpoint that cannot be read is not incomplete.
    """
    steps = {step for step in map(step_of, storage.names(url)) if step is not None}
    return [found_in(folder_of(url, step), step) for step in sorted(steps, reverse=True)]


def checkpoints_at(url: str) -> list[Found]:
    """Those under a URL, or the one whose own folder, ``URL/step-...``, it is. Raises OSError, as find_checkpoints."""
    step = step_of(url)
    if step is None:
        return find_checkpoints(url)
    return [found_in(url.rstrip("/"), step)] if storage.names(url) else []


def found_in(folder: str, step: int) -> Found:
    """The checkpoint in this folder, incomplete or not. Raises OSError where the storage does not answer."""
    try:
        manifest, sha256 = _read_manifest(folder)
    except CheckpointCorrupt as error:
        return Found(step=step, url=folder, manifest=None, problem=error.problem)
    return Found(step=step, url=folder, manifest=manifest, sha256=sha256, evaluated=evaluation_file.read(folder))


def completed_at(folder: str) -> datetime | None:
    """When the manifest was written, in UTC; None where the storage keeps no times."""
    return storage.modified(folder, MANIFEST)


def problems(folder: str, manifest: Manifest, layer: int | None = None) -> list[str]:
    """What is wrong with a checkpoint's files, a line each: missing, of another size, of another content.

    ``layer``: only this one's files are read.
    """
    out = []
    there = storage.sizes(folder)
    for files in manifest.files.values() if layer is None else [manifest.files.get(layer, ())]:
        for file in files:
            try:
                if there.get(file.name, file.size) != file.size:  # a wrong size needs no reading
                    _compare(folder, file, there[file.name], file.sha256)
                _compare(folder, file, *storage.digest(folder, file.name))
            except FileNotFoundError:
                out.append(f"{folder}/{file.name} is missing")
            except CheckpointCorrupt as error:
                out.append(error.problem)
    return out


def retain(
    url: str, step: int, kept: Collection[int], is_own: Callable[[Manifest], bool] = lambda manifest: True
) -> list[int]:
    """Deletes what is older than ``step``, whole or not, but for the checkpoints of the steps ``kept``; their steps.

    ``is_own``: of whole ones, whether it is this run's to delete.

    The manifest goes first, so that a checkpoint that is half deleted is never taken for a whole one. What is newer is
    another run's, or still being written.
    """
    older = [f for f in reversed(find_checkpoints(url)) if f.step not in kept and f.step < step]
    gone = [f for f in older if f.manifest is None or is_own(f.manifest)]
    for f in gone:
        if f.manifest is not None:
            storage.remove(f.url, MANIFEST)
        storage.remove(f.url)
    return [f.step for f in gone]
