"""Nodes of a local cluster are forked from one process that has torch in it.

A process needs seconds to import torch, and more for its first optimizer step. A fork of a process that has done both
needs none, and all forks share its memory. They are processes like any others: they can be killed, frozen and watched.
"""

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import connection, forkserver, resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path

from culm.local import fork_process

#     launcher ── starts ──▶ the process that forks (multiprocessing's forkserver; imports culm.local.preloaded)
#        │                        │ forks, one for each node
#        │                        ▼
#        └── waits for ───▶ n0, n1, n2, ... each of which becomes `culm stage ...`
#
# Whatever dies takes the rest with it: the process that forks dies with the launcher, and a node with the process that
# forks, by PR_SET_PDEATHSIG. Ctrl-C reaches the launcher alone, which ends the others in order.

PR_SET_PDEATHSIG = 1  # prctl(2)

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["culm.local.preloaded"])
# Starting a process also reads the exit codes of all others, and each can be read only once: a second reader gets 255.
_exit_codes = threading.Lock()


def warm_up() -> None:
    """Starts the process that forks, which begins to import torch, and does not wait for it."""
    resource_tracker.ensure_running()  # otherwise the next lines start it, and that unblocks SIGINT
    with _deaf():
        forkserver.ensure_running()


def end() -> None:
    """Kills the process that forks, also in the middle of its imports: it would only notice after them."""
    if (pid := fork_process.process_id()) is not None:
        os.kill(pid, signal.SIGKILL)


@contextmanager
def _deaf() -> Iterator[None]:
    """A process that is started meanwhile ignores Ctrl-C, which would end it in an import, with a traceback.

    For the launcher the signal stays pending, and the launcher ends all others itself.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def begin(words: Sequence[str], log: Path, environment: Mapping[str, str]) -> BaseProcess:
    """Starts ``culm WORDS``, which appends what it says to the log."""
    process = _context.Process(target=_become, args=(list(words), str(log), dict(environment), os.getcwd()))
    with _exit_codes, _deaf(), fork_process.without_main():
        process.start()  # this starts the process that forks again, if it has ended
    return process


def wait(process: BaseProcess) -> int:
    """Waits for its end, in any thread. Returns its exit code; negative: the number of the signal that ended it."""
    connection.wait([process.sentinel])
    with _exit_codes:
        process.join()
    assert process.exitcode is not None
    return process.exitcode


def die_with_parent() -> None:
    """The kernel kills this process when the thread that started it ends, as with its process."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _become(words: list[str], log: str, environment: dict[str, str], folder: str) -> None:
    """In the fork: as if the command had been started as a process of its own."""
    die_with_parent()
    fork_process.let_go()
    os.setsid()  # the terminal's Ctrl-C is for the launcher
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for stream, number in ((sys.stdout, 1), (sys.stderr, 2)):
        os.dup2(output, number)
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.close(output)
    # Not before: a fork that is ended as it begins would print its traceback to the launcher's user.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path[:0] = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.argv = ["culm", *words]
    import setproctitle

    from culm.__main__ import main

    setproctitle.setproctitle(" ".join(sys.argv))
    sys.exit(main(words))
