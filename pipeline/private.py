"""Files and folders for this user alone: 0600 in 0700. What a run writes tells what is trained, by whom, and where.

An export is the user's own choice of what to hand on, and where: its files are as open as the umask lets them be.
"""

import os
import stat
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

FILE, FOLDER = 0o600, 0o700
EXPORT = 0o666  # before the umask


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


def open_up(folder: str | Path) -> None:
    """Makes the files of an exported folder as open as the umask lets new ones be: libraries write some with 0600."""
    probe = Path(folder) / f"{uuid4().hex[:8]}.part"
    os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, EXPORT))
    allowed = stat.S_IMODE(probe.stat().st_mode)
    probe.unlink()
    for path in Path(folder).iterdir():
        if path.is_file() and not path.is_symlink():
            path.chmod(allowed)


def write_text(path: str | Path, text: str) -> None:
    """The file with this text, put in place at once: no reader finds half of it."""
    write_whole(path, lambda part: _write(part, text))


def _write(path: Path, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def write_whole(path: str | Path, write: Callable[[Path], None], mode: int = FILE) -> None:
    """Has ``write`` fill a file of another name, and puts it in place when it is whole. ``mode``: FILE or EXPORT.

    If that fails, what stood there before stands there still.
    """
    part = Path(f"{path}.{uuid4().hex[:8]}.part")
    os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
    allowed = stat.S_IMODE(part.stat().st_mode)  # by the umask, which nobody can ask for without changing it
    try:
        write(part)
        os.chmod(part, allowed)  # a library may have replaced the file, as safetensors' save_file does
        with part.open("rb") as written:
            os.fsync(written.fileno())  # whoever hears that it is there may let go of all else that has it
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
