"""Processes that hear the signals though the tests run under nohup, or in the background of a script."""

import sys
from collections.abc import Sequence

# Not a preexec_fn: that would run Python in a fork of a process full of gRPC threads.
CODE = """
import os, signal, sys
for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
    signal.signal(number, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""


def with_default_signals(command: Sequence[str]) -> list[str]:
    """The same command, under the same process id, with the signals' default handlers."""
    return [sys.executable, "-I", "-S", "-c", CODE, *command]
