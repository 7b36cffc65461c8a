"""A process that goes on as another one under its process id, and what the one before it has left."""

import os
import sys
from contextlib import suppress


def start_again() -> None:
    """Becomes a new process, of a new incarnation, under the same process id."""
    os.execv(sys.executable, [sys.executable, "-m", "culm", *sys.argv[1:]])


def reap_ended() -> None:
    """Lets go of children that have ended: those of the process that this one was before ``start_again``.

    They are still this one's, and nothing in it knows them. With ``data.workers`` multiprocessing has a child that
    outlives its workers, and ends once the process becomes another one: each time a zombie would stay.
    """
    with suppress(ChildProcessError):  # there are none
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
