"""A file whose coming into existence is the notice: for schedulers and scripts, and for trying it out.

Whoever writes it again, with other seconds or another time, moves the deadline. Seconds count from when the file is
first seen as it is now, which is by this machine's own clock: the file's times may be another machine's.
"""

import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from culm.stage_server.notices.notice import Notice, unix_seconds
from culm.stage_server.notices.polled import NoAnswer

INTERVAL = 0.5  # seconds
LARGEST = 1024  # bytes of the file that are read


class NoticeFile:
    """The file at ``path``. It may hold the seconds left as a number, or an ISO time. ``clock`` gives unix seconds."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        self._empty_before = False
        self._seen: tuple[str, int] | None = None  # the content, and when it was written by the file's own time
        self._deadline: float | None = None

    def poll(self, stop: threading.Event) -> Iterator[Notice]:
        """The notice, if the file exists. An empty one counts from the second look in a row: it may be half written."""
        seen = self._read()
        if seen is None:
            return
        content, _ = seen
        empty_before, self._empty_before = self._empty_before, not content.strip()
        if self._empty_before and not empty_before:
            return
        if seen != self._seen:
            self._seen, self._deadline = seen, time_of_end(content, self._clock())
        yield Notice(f"the file {self._path} exists", self._deadline, certain=True)

    def _read(self) -> tuple[str, int] | None:
        """The content, and when it was written."""
        try:
            with self._path.open("rb") as file:
                return file.read(LARGEST).decode(errors="replace"), os.fstat(file.fileno()).st_mtime_ns
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if os.path.lexists(self._path):  # a directory, or not ours to read: it exists, which is all that counts
                return "", 0
            raise NoAnswer(f"{self._path} cannot be looked for: {error.strerror}") from error


def time_of_end(content: str, now: float) -> float | None:
    """Unix seconds from a number of seconds after ``now``, or from an ISO time; None if it is neither."""
    try:
        seconds = float(content)
    except ValueError:
        return unix_seconds(content)
    return now + max(0.0, seconds) if math.isfinite(seconds) else None
