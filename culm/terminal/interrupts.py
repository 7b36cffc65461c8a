"""What Ctrl-C (SIGINT) does to a command, from its first moment on. SIGTERM ends a process by itself."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
INTERRUPTED = 130  # the exit code, by convention
# The real one: Ctrl-C may come while culm.pipeline.user_code.exits has replaced os._exit for the job's code.
_exit = os._exit


def end_at_once() -> None:
    """Until ``interrupt`` is called Ctrl-C ends the process at once: it has started nothing yet.

    A KeyboardInterrupt in the middle of an import may be swallowed there, or leave half of a module behind.
    """

    def end(*_: object) -> None:
        os.write(2, b"culm: interrupted\n")
        if (nursery := sys.modules.get("culm.local.nursery")) is not None:
            nursery.end()
        _exit(INTERRUPTED)

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, end)


def interrupt() -> None:
    """From now on Ctrl-C raises KeyboardInterrupt, so that the command can end what it started. A second one ends the
    process at once, and with it all that is tied to it.
    """

    def raise_it(*_: object) -> None:
        end_at_once()
        raise KeyboardInterrupt

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, raise_it)


@contextmanager
def held() -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP wait until the block has ended, such as until what it has started is on record."""
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)


def end_on_sigterm() -> None:
    """From now on SIGTERM and SIGHUP (the terminal closes) do what Ctrl-C does: this process first ends all it started.

    Before, either signal ends it at once. The kernel then ends the process that forks: see ``culm.local.preloaded``.
    """

    def raise_it(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, raise_it)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it
        signal.signal(signal.SIGHUP, raise_it)
    interrupt()


def end_after(seconds: int) -> None:
    """Has the system end this process after so long, whatever it is at, imports too."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(seconds)
