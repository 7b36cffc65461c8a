"""What a node tells of the identity of a run: hashes of the job's files and of the user's code, versions, hardware."""

import hashlib
import platform
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from culm.pipeline.identity import Identity
from culm.pipeline.job import Job, job_to_toml
from culm.pipeline.user_code.hardware import hardware_of

# Files up to this size are hashed as a whole, larger ones in samples. Where the samples miss a difference, the hash of
# each layer that is built from the file shows it (rule 23).
WHOLE_BYTES = 1 << 28
SAMPLES, SAMPLE_BYTES = 64, 1 << 20
MOST_FILES = 256  # of a folder whose contents are read: a folder of a million pictures has to be opened in no time


def parts_of(job: Job, sources: Iterable[tuple[str, Path]]) -> dict[str, str]:
    """By part. ``sources``: (module, file) of the user's code.

    Of model, data and train only the files are hashed that their arguments name. Their keys come with the job, and are
    compared one by one where two jobs meet. A folder may be one that processes write into: who reads from one tells
    what it holds (``samples``).
    """
    out = {}
    for part, named in (("model", job.model.args), ("data", job.data.args), ("train", job.train.optimizer_args)):
        files = [digest_of_file(file) for file in _files_in(named)]
        if files:
            out[part] = hashlib.sha256(b"".join(files)).hexdigest()
    digest = hashlib.sha256()
    for name, path in sorted(sources):
        digest.update(name.encode())
        digest.update(path.read_bytes())
    out["code"] = digest.hexdigest()
    out["versions"] = versions()
    out["hardware"] = hardware_of(job)
    return out


def parts_of_worker(job: Job, identity: Identity) -> dict[str, str]:
    """What a tensor worker and its server have to have in common, beside the kind of machine, which it tells apart.

    A worker reads nothing of the graph, so the files that the graph's arguments name do not count.
    """
    whole = hashlib.sha256(job_to_toml(job).encode()).hexdigest()
    return {"job": whole, **identity.without(["data", "hardware"]).parts}


def versions() -> str:
    """Python's and torch's, and how torch was built: the same version exists over different libraries."""
    described = torch.__config__.show()
    built = "\n".join(line for line in described.splitlines() if "CPU capability" not in line)
    build = hashlib.sha256(built.encode()).hexdigest()[:12]
    return f"Python {platform.python_version()}, torch {torch.__version__} ({build})"


def _files_in(args: Any) -> Iterator[Path]:
    """What in the arguments is the path of a file, in their order."""
    if isinstance(args, Mapping):
        args = [value for _, value in sorted(args.items())]
    if isinstance(args, list | tuple):
        for value in args:
            yield from _files_in(value)
    elif isinstance(args, str) and args and "\0" not in args:
        path = Path(args)
        try:
            if path.is_file():
                yield path
        except OSError:  # the name is too long, or may not be read: a constructor could not read it either
            return


def contents_of(folders: Iterable[Path]) -> str:
    """A hash of what lies in the folders; empty of none."""
    found = [_digest_of_folder(folder) for folder in folders]
    return hashlib.sha256(b"".join(found)).hexdigest() if found else ""


def _digest_of_folder(folder: Path) -> bytes:
    """Of all names and sizes in it, and of the contents of up to MOST_FILES files, spread over the names in order."""
    found = sorted(path for path in folder.rglob("*") if path.is_file() and not _is_hidden(path, folder))
    digest = hashlib.sha256()
    for path in found:
        digest.update(f"{path.relative_to(folder)} {path.stat().st_size}\n".encode())
    for path in found[:: max(1, -(-len(found) // MOST_FILES))]:
        digest.update(digest_of_file(path))
    return digest.digest()


def _is_hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith((".", "__")) for part in path.relative_to(folder).parts)


def digest_of_file(path: Path) -> bytes:
    """Of the whole file, or of its size and of pieces spread over it, the first and the last among them."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        size = path.stat().st_size
        digest.update(str(size).encode())
        whole = size <= WHOLE_BYTES
        for i in range(1 if whole else SAMPLES):
            file.seek(0 if whole else i * (size - SAMPLE_BYTES) // (SAMPLES - 1))
            digest.update(file.read(size if whole else SAMPLE_BYTES))
    return digest.digest()
