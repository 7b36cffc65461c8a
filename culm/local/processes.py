"""Child processes: none outlives this one, and each has the time of its death."""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from culm.local import nursery
from culm.local.tied import tied
from culm.pipeline import private

STOP_SECONDS = 5.0


class Child:
    """One process with its log. It ends with this process, and the terminal's Ctrl-C does not reach it."""

    def __init__(self, pid: int, wait: Callable[[], int], log: Path) -> None:
        self.pid = pid
        self.log = log
        self.died_at: float | None = None  # unix time
        self.ran = 0.0  # seconds, once it has ended
        self._began = time.monotonic()
        self.returncode: int | None = None  # negative: the number of the signal that ended it; None while it runs
        self._ended = threading.Event()
        threading.Thread(target=self._watch, args=(wait,), name=f"watch-{pid}", daemon=True).start()

    @staticmethod
    def start(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> "Child":
        """Starts any command."""
        with open(log, "ab", opener=private.opener) as output:
            process = subprocess.Popen(
                tied(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=dict(environment),
                start_new_session=True,
            )
        return Child(process.pid, process.wait, log)

    @staticmethod
    def fork(words: Sequence[str], log: Path, environment: Mapping[str, str]) -> "Child":
        """Starts ``culm WORDS`` as a fork that has torch in it already."""
        log.touch(mode=private.FILE)
        process = nursery.begin(words, log, environment)
        assert process.pid is not None
        return Child(process.pid, lambda: nursery.wait(process), log)

    def _watch(self, wait: Callable[[], int]) -> None:
        code = wait()
        self.died_at = time.time()
        self.ran = time.monotonic() - self._began
        self.returncode = code
        self._ended.set()

    def wait(self, seconds: float) -> bool:
        return self._ended.wait(seconds)

    def interrupt(self) -> None:
        """Asks it to end at once, as Ctrl-C does."""
        if self.returncode is None:
            self._signal(signal.SIGINT)
            self._signal(signal.SIGCONT)  # a frozen process cannot hear it otherwise

    def terminate(self) -> None:
        """SIGTERM: a node hands over first."""
        if self.returncode is None:
            self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """kill -9."""
        if self.returncode is None:
            self._signal(signal.SIGKILL)

    def stop(self, seconds: float = STOP_SECONDS) -> None:
        """Asks it to end, several times since it may still be starting; then kills it."""
        deadline = time.monotonic() + seconds
        while not self.wait(0.5) and time.monotonic() < deadline:
            self.interrupt()
        if self.returncode is None:
            self._signal(signal.SIGKILL)
            self._ended.wait()

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
            os.kill(self.pid, number)

    def last_line(self) -> str:
        """The last line of its log that was meant for the user, else the last line."""
        lines = self.log.read_text(errors="replace").strip().splitlines() or [""]
        told = [line for line in lines if line.startswith("culm ")]  # others are log lines, or a traceback
        return (told or lines)[-1]
