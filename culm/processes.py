"""Child processes that never outlive this one, and when each of them died."""

import ctypes
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

PR_SET_PDEATHSIG = 1
STOP_SECONDS = 5.0


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Child:
    """One process with its log. It ends with this process, and the terminal's Ctrl-C does not reach it."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self.log = log
        self.died_at: float | None = None  # unix time
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=dict(environment),
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        self._ended = threading.Event()
        threading.Thread(target=self._watch, name=f"watch-{self.pid}", daemon=True).start()

    def _watch(self) -> None:
        self._process.wait()
        self.died_at = time.time()
        self._ended.set()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Negative: the number of the signal that ended it; None while it runs."""
        return self._process.returncode if self._ended.is_set() else None

    def wait(self, seconds: float) -> bool:
        return self._ended.wait(seconds)

    def interrupt(self) -> None:
        """Asks it to end at once, as Ctrl-C does."""
        if self.returncode is None:
            self._process.send_signal(signal.SIGINT)
            self._process.send_signal(signal.SIGCONT)  # a frozen process cannot hear it otherwise

    def stop(self, seconds: float = STOP_SECONDS) -> None:
        """Asks it to end, again and again since it may be starting still; then ends it."""
        deadline = time.monotonic() + seconds
        while not self.wait(0.5) and time.monotonic() < deadline:
            self.interrupt()
        if self.returncode is None:
            self._process.kill()
            self._ended.wait()

    def last_line(self) -> str:
        """The last line of its log that was meant for the user, else the last line."""
        lines = self.log.read_text(errors="replace").strip().splitlines() or [""]
        told = [line for line in lines if line.startswith("culm ")]
        return (told or lines)[-1]
