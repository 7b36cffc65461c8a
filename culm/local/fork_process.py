"""The private parts of Python's forkserver that Culm uses. `tests/unit/test_private.py` fails when they change.

``multiprocessing`` keeps the process that forks in one object of the module, and the one that tracks semaphores in
another. It has no public way to learn the first one's id, nor to close the files by which a fork keeps them alive.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from types import ModuleType
from typing import Any

_server: Any = forkserver._forkserver
_tracker: Any = resource_tracker._resource_tracker


def process_id() -> int | None:
    """Of the process that forks; None before it is started."""
    pid: int | None = _server._forkserver_pid
    return pid


def let_go() -> None:
    """In a fork: closes the files that it shares with the launcher, and so keeps alive.

    The forking process ends when nobody can ask it any more. A tracker of its own is started where the fork makes a
    semaphore, as libraries do (tqdm). When the fork is killed, that tracker tells of it in the fork's log; the
    launcher's would tell the user.
    """
    os.close(_server._forkserver_alive_fd)
    os.close(_tracker._fd)
    _server._forkserver_alive_fd = _tracker._fd = None


@contextmanager
def without_main() -> Iterator[None]:
    """A process that is started meanwhile has no ``__main__`` to import: it would run a user's script once more."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
