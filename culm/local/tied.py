"""Commands that die with the process that started them, also when that is killed with -9."""

import os
import shutil
import sys
from collections.abc import Sequence

# A small Python ties itself to its parent, then becomes the command under the same process id. A preexec_fn would run
# Python in a fork of a process full of gRPC and torch threads, and that now and then ends before the command begins.
# The parent may die before prctl, so its id is compared afterwards. Linux only: elsewhere a launcher that is killed
# leaves its commands behind.
CODE = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
prctl = getattr(ctypes.CDLL(None), "prctl", None)
if prctl is not None:
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(sys.argv[1]):
        sys.exit("the launcher has gone")
os.execv(sys.argv[2], sys.argv[2:])
"""


def tied(command: Sequence[str]) -> list[str]:
    """The same command, tied to this process. The kernel also kills it when the thread that started it ends."""
    program, *words = command
    return [sys.executable, "-I", "-S", "-c", CODE, str(os.getpid()), shutil.which(program) or program, *words]
