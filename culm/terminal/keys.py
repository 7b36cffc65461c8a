"""Keys that a person presses while a command shows something."""

import os
import select
import sys
import termios
import time
import tty
from types import TracebackType
from typing import Any, Self


class Keys:
    """Reads single keys from the terminal, without Enter, and shows none of them. Ctrl-C stays what it is."""

    def __init__(self) -> None:
        self._fd = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else -1
        self._before: list[Any] = []

    def __enter__(self) -> Self:
        if self._fd >= 0:
            self._before = termios.tcgetattr(self._fd)
            tty.setcbreak(self._fd, termios.TCSANOW)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before:
            termios.tcsetattr(self._fd, termios.TCSANOW, self._before)

    def wait(self, seconds: float) -> str:
        """The keys that are pressed within so many seconds, at the first of them; empty: none was."""
        if self._fd < 0:
            time.sleep(seconds)
            return ""
        ready, _, _ = select.select([self._fd], [], [], seconds)
        return os.read(self._fd, 64).decode(errors="ignore") if ready else ""
