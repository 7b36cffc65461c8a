"""What Ctrl-C does to a command, from its first moment on. SIGINT alone: SIGTERM ends a process by itself."""

import os
import signal
import sys
import threading

INTERRUPTED = 130  # the exit code, by convention
_exit = (
    os._exit
)  # as it is before culm.pipeline.user_code.exits takes it from the job's code, which may be what is interrupted


def end_at_once() -> None:
    """Until ``interrupt`` Ctrl-C ends the process without more ado, since there is nothing to be ended before it.

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
    """From now on Ctrl-C raises KeyboardInterrupt: something runs that is to be ended in order."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)
