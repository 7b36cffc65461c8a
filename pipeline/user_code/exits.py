"""The user's code raises where it would end the process (``os._exit``, ``sys.exit``), so that a node tells its reason.

Only code that calls Python's ``os._exit`` on the thread that runs it is caught. What ends the process in C leaves no
word; the coordinator counts such deaths (``culm.coordinator.failures``).
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class ProcessEnded(Exception):
    """The user's code tried to end the process."""


@contextmanager
def caught() -> Iterator[None]:
    """While this thread runs the user's code. Forks and other threads of the process end as they like."""
    real, own, thread = os._exit, os.getpid(), threading.get_ident()

    def _exit(status: int) -> None:
        if (os.getpid(), threading.get_ident()) == (own, thread):
            raise ProcessEnded(f"the job's code tried to end the process with os._exit({status})")
        real(status)

    os._exit = _exit  # type: ignore[assignment]
    try:
        yield
    except SystemExit as error:
        raise ProcessEnded(f"the job's code tried to end the process with exit code {error.code}") from error
    finally:
        os._exit = real
