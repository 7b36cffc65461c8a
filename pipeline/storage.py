"""Files under a URL: put in place at once, read, listed and removed through fsspec. Knows nothing of their content.

Whatever a storage's own library raises becomes an OSError, or a JobError for a URL that cannot be used, so a caller
needs to know no other. What is absent is a FileNotFoundError.
"""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from uuid import uuid4

import fsspec
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from pipeline.errors import JobError

EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "az": "az", "abfs": "az", "abfss": "az"}
WHOLE_PUTS = {*EXTRAS, "memory"}  # a file appears when all of it is there; a move would be a copy and a deletion
BLOCK_BYTES = 1 << 23


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


@contextmanager
def _reaching(url: str) -> Iterator[tuple[fsspec.AbstractFileSystem, str]]:
    try:
        yield open_fs(url)
    except (NotADirectoryError, IsADirectoryError) as error:  # one stands where the other would
        raise FileNotFoundError(f"{url}: {error}") from error
    except (OSError, JobError):
        raise
    except Exception as error:
        raise OSError(f"{url} cannot be reached: {type(error).__name__} {error}") from error


def put(folder: str, name: str, data: bytes) -> None:
    """Whatever happens to a writer, what stands under the name is never torn.

    So one that writes a file again may be killed half-way, though a manifest vouches for the file already.
    """
    with _reaching(folder) as (fs, path):
        protocols = (fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol
        if WHOLE_PUTS.intersection(protocols):
            fs.pipe_file(f"{path}/{name}", data)
            return
        fs.makedirs(path, exist_ok=True)
        part = f"{path}/{name}.{uuid4().hex}.part"  # this writer's alone
        try:
            with fs.open(part, "wb") as stream:
                stream.write(data)
                if isinstance(fs, LocalFileSystem):  # else a power cut may keep the name and lose the content
                    stream.flush()
                    os.fsync(stream.fileno())
            fs.mv(part, f"{path}/{name}")
        except BaseException:
            with suppress(Exception):
                fs.rm_file(part)
            raise


def read(folder: str, name: str) -> bytes:
    """The whole file."""
    with _reaching(folder) as (fs, path):
        data: bytes = fs.cat_file(f"{path}/{name}")
    return data


def digest(folder: str, name: str) -> tuple[int, str]:
    """``(bytes, sha256 in hex)``, read block by block: a file need not fit into this process's memory."""
    hashed = hashlib.sha256()
    size = 0
    with _reaching(folder) as (fs, path):
        fs.invalidate_cache(path)
        with fs.open(f"{path}/{name}", "rb") as stream:
            while block := stream.read(BLOCK_BYTES):
                hashed.update(block)
                size += len(block)
    return size, hashed.hexdigest()


def names(folder: str) -> list[str]:
    """What is in a folder, files and folders by their last name; nothing if there is no such folder."""
    with suppress(FileNotFoundError), _reaching(folder) as (fs, path):
        fs.invalidate_cache(path)  # other processes write here
        return [str(entry).rstrip("/").rpartition("/")[2] for entry in fs.ls(path, detail=False)]
    return []


def modified(folder: str, name: str) -> datetime | None:
    """When the file was written, in UTC; None where the storage keeps no times."""
    with suppress(NotImplementedError), _reaching(folder) as (fs, path):
        at: datetime | None = fs.modified(f"{path}/{name}")
        return at
    return None


def remove(folder: str, name: str = "") -> None:
    """Removes one file, or the folder with all that is in it. What is gone already is no error."""
    with suppress(FileNotFoundError), _reaching(folder) as (fs, path):
        fs.invalidate_cache(path)
        if name:
            fs.rm_file(f"{path}/{name}")
        else:
            fs.rm(path, recursive=True)
