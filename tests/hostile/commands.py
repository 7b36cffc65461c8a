"""Runs ``culm`` as a user would: in this process where a new one would add nothing but seconds, else as one."""

import io
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from culm.__main__ import main

ROOT = Path(__file__).parents[2]
PATIENCE = 120  # seconds until a process that hangs is ended, so that the test fails


@dataclass(frozen=True)
class Ended:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def line(self) -> str:
        """The one line of a command that was refused: what, where, and the mend. Checks that there is no other."""
        lines = self.err.splitlines()
        assert self.code == 2, f"exit code {self.code}: {self.err}{self.out}"
        assert "Traceback" not in self.err
        told = [line for line in lines if line.startswith("culm")]
        assert len(told) == 1, self.err
        assert lines[-1] == told[0], self.err
        assert len(told[0]) < 1000, "it is a line that somebody reads"
        return told[0]


def in_process(*words: str, folder: Path, **environment: str) -> Ended:
    """The command in this process, which looks afterwards as it did before."""
    out, err = io.StringIO(), io.StringIO()
    modules, path, variables, here = set(sys.modules), list(sys.path), dict(os.environ), os.getcwd()
    stdin, sys.stdin = sys.stdin, io.StringIO()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    os.chdir(folder)
    os.environ.update(environment)
    try:
        with redirect_stdout(out), redirect_stderr(err):
            try:
                code = main(list(words))
            except SystemExit as ended:  # argparse's own refusals
                code = ended.code if isinstance(ended.code, int) else 1
    finally:
        sys.stdin = stdin
        os.chdir(here)
        os.environ.clear()
        os.environ.update(variables)
        sys.path[:] = path
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for name in set(sys.modules) - modules:
            source = getattr(sys.modules[name], "__file__", None) or ""
            if source.startswith(str(folder)):
                del sys.modules[name]
    return Ended(code, out.getvalue(), err.getvalue())


def environment(**more: str) -> Mapping[str, str]:
    """What a process of a test begins with."""
    return {**os.environ, "PYTHONPATH": str(ROOT), **more}


def as_process(*words: str, folder: Path, **more: str) -> Ended:
    """The command as a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "culm", *words],
        cwd=folder,
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        stdin=subprocess.DEVNULL,
    )
    return Ended(done.returncode, done.stdout, done.stderr)
