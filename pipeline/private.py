"""Files and folders for this user alone: 0600 in 0700. What a run writes tells what is trained, by whom, and where."""

import os
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

FILE, FOLDER = 0o600, 0o700


def make_folder(path: str | Path) -> Path:
    """The folder, which is made with those above it. One that is there stays as its owner made it."""
    missing = []
    folder = Path(path)
    while not folder.exists() and folder != folder.parent:
        missing.append(folder)
        folder = folder.parent
    for each in reversed(missing):
        each.mkdir(mode=FOLDER, exist_ok=True)
    Path(path).mkdir(exist_ok=True)  # raises where a file stands in its place
    return Path(path)


def opener(path: str, flags: int) -> int:
    """For ``open``: a new file is this user's alone."""
    return os.open(path, flags, FILE)


def write_text(path: str | Path, text: str) -> None:
    """The file with this text, put in place at once: no reader finds half of it."""
    write_whole(path, lambda part: _write(part, text))


def _write(path: Path, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def write_whole(path: str | Path, write: Callable[[Path], None]) -> None:
    """Has ``write`` fill a file of another name, and puts it in place when it is whole.

    If that fails, what stood there before stands there still.
    """
    part = Path(f"{path}.{uuid4().hex[:8]}.part")
    os.close(opener(str(part), os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    try:
        write(part)
        os.chmod(part, FILE)  # a library may have replaced the file
        with part.open("rb") as written:
            os.fsync(written.fileno())  # whoever hears that it is there may let go of all else that has it
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
