"""Files under a URL: put in place at once, read, listed and removed through fsspec. Knows nothing of their content.

Whatever a storage's own library raises becomes an OSError, or a JobError for a URL that cannot be used. So a caller
needs to know no other. A file that is absent is a FileNotFoundError.
"""

import errno
import hashlib
import os
import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from uuid import uuid4

import fsspec
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from culm.pipeline import private
from culm.pipeline.errors import JobError, StorageAway
from culm.pipeline.text import shown_url, without_secrets

EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "az": "az", "abfs": "az", "abfss": "az"}
# Here a file appears only when all of it is there. A move would be a copy and a deletion.
WHOLE_PUTS = {*EXTRAS, "memory"}
BLOCK_BYTES = 1 << 23
FULL_OR_READ_ONLY = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def open_fs(url: str) -> tuple[fsspec.AbstractFileSystem, str]:
    """The file system and the path on it. Raises JobError for a URL that cannot be used.

    ``${NAME}`` in the URL stands for what is in this process's environment: so no secret has to be in the job.
    """
    shown = shown_url(url)
    full = os.path.expandvars(url) if "${" in url else url
    if missing := re.search(r"\$\{(\w+)\}", full):
        what = f"the variable {missing[1]} is not set"
        raise JobError(
            what, f"checkpoint url {shown}", "set it in the environment of the coordinator and of every node"
        )
    try:
        fs, path = url_to_fs(full)
    except ImportError as error:
        extra = EXTRAS.get(url.partition(":")[0])
        mend = f"pip install 'culm[{extra}]'" if extra else "install what fsspec asks for"
        raise JobError(f"this URL needs another package ({error})", f"checkpoint url {shown}", mend) from error
    except ValueError as error:
        mend = "use file://, memory://, s3://, gs:// or az://"
        what = f"this URL cannot be used ({without_secrets(str(error))})"
        raise JobError(what, f"checkpoint url {shown}", mend) from error
    return fs, path


@contextmanager
def _reaching(url: str) -> Iterator[tuple[fsspec.AbstractFileSystem, str]]:
    try:
        yield open_fs(url)
    except (NotADirectoryError, IsADirectoryError, FileExistsError) as error:  # one stands where the other would
        raise FileNotFoundError(f"{shown_url(url)}: {error}") from error
    except (OSError, JobError):
        raise
    except Exception as error:
        said = without_secrets(f"{type(error).__name__} {error}")
        raise OSError(f"{shown_url(url)} cannot be reached: {said}") from error


def check_url(url: str) -> None:
    """Raises JobError for a URL that cannot be used: of an unknown kind, or of a folder where nobody may write.

    A folder of this machine is made and removed again, if it is not there; a storage elsewhere is asked nothing.
    """
    fs, path = open_fs(url)
    if not isinstance(fs, LocalFileSystem):
        return
    where, mend = f"checkpoint url {shown_url(url)}", "name a folder that you may write in"
    missing = [folder for folder in (path, *map(str, Path(path).parents)) if not os.path.exists(folder)]
    try:
        private.make_folder(path)
    except OSError as error:
        raise JobError(f"the folder cannot be made ({error.strerror})", where, mend) from error
    writable = os.access(path, os.W_OK | os.X_OK)
    for folder in missing:  # only whoever writes a checkpoint leaves one behind
        with suppress(OSError):
            os.rmdir(folder)
    if not writable:
        raise JobError("this user may not write in the folder", where, mend)


def refusal(error: BaseException, what: str, where: str, mend: str) -> JobError:
    """What to raise for a storage's error: StorageAway, but for what no other try mends."""
    wrong = isinstance(error, PermissionError | FileNotFoundError)
    wrong = wrong or (isinstance(error, OSError) and error.errno in FULL_OR_READ_ONLY)
    return (JobError if wrong else StorageAway)(what, where, mend)


def put(folder: str, name: str, pieces: Iterable[bytes | memoryview]) -> None:
    """Writes a file of these bytes, one after the other. No reader ever finds half of it under its name.

    A manifest may name the file already when somebody writes it again and is killed half-way. ``pieces`` is taken to
    its end before the file has its name.
    """
    with _reaching(folder) as (fs, path):
        protocols = (fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol
        if WHOLE_PUTS.intersection(protocols):
            fs.pipe_file(f"{path}/{name}", b"".join(pieces))
            return
        if isinstance(fs, LocalFileSystem):
            private.make_folder(path)
        fs.makedirs(path, exist_ok=True)
        whole, part = f"{path}/{name}", f"{path}/{name}.{uuid4().hex}.part"  # the second is this writer's alone
        try:
            with fs.open(part, "wb") as stream:
                if isinstance(fs, LocalFileSystem):
                    os.chmod(part, private.FILE)
                for piece in pieces:
                    stream.write(piece)
                if isinstance(fs, LocalFileSystem):  # else a power cut may keep the name and lose the content
                    stream.flush()
                    os.fsync(stream.fileno())
            if isinstance(fs, LocalFileSystem):  # its ``mv`` copies where a mount refuses to rename
                os.replace(part, whole)
                _keep_names(path)
            else:
                fs.mv(part, whole)
        except BaseException:
            with suppress(Exception):
                fs.rm_file(part)
            raise


def _keep_names(folder: str) -> None:
    """Else a power cut may take a name back that was given. Not every mount can do it."""
    with suppress(OSError):
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def read(folder: str, name: str, most: int) -> bytes:
    """The whole file, or, of one that is larger, the first ``most`` + 1 bytes."""
    with _reaching(folder) as (fs, path):
        fs.invalidate_cache(path)  # other processes write here
        with fs.open(f"{path}/{name}", "rb") as stream:
            data: bytes = stream.read(most + 1)
    return data


def probe(url: str, patience: float) -> None:
    """Writes a file and removes it again. Raises JobError or StorageAway where no checkpoint could be written.

    It does so on a thread of its own, and gives up after ``patience`` seconds: a call to a storage may never come back.
    """
    raised: list[BaseException] = []
    ended = threading.Event()

    def attempt() -> None:
        name = f"probe-{uuid4().hex}"
        try:
            put(url, name, [b"culm"])
            remove(url, name)
        except BaseException as error:
            raised.append(error)
        ended.set()

    threading.Thread(target=attempt, name="probe", daemon=True).start()
    if not ended.wait(patience):
        raised.append(TimeoutError(f"no answer within {patience:g} s"))
    for error in raised:
        if isinstance(error, JobError):
            raise error
        what = f"no checkpoint can be written there ({' '.join(str(error).split())[:500]})"
        mend = "check the address, the free space, the permissions and your credentials, or leave [checkpoint] out"
        raise refusal(error, what, f"checkpoint url {url}", mend) from error


def sizes(folder: str) -> dict[str, int]:
    """The bytes of each file in a folder, by name; nothing if there is no such folder."""
    with suppress(FileNotFoundError), _reaching(folder) as (fs, path):
        fs.invalidate_cache(path)
        return {str(x["name"]).rpartition("/")[2]: int(x["size"] or 0) for x in fs.ls(path, detail=True)}
    return {}


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
