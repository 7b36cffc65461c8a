"""Commands that die with the process that starts them, also by kill -9."""

import os
import shutil
import sys
from collections.abc import Sequence

# Ties itself to its parent, then becomes the command under the same process id. Not a preexec_fn: that would run Python
# in a fork of a process full of gRPC and torch threads, and now and then end it before the command begins. Linux only;
# elsewhere the launcher's own clean end has to do.
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
    """The same command, tied to this process. The kernel acts when the thread that starts it ends, too."""
    program, *words = command
    return [sys.executable, "-I", "-S", "-c", CODE, str(os.getpid()), shutil.which(program) or program, *words]
