"""The private parts of Python's forkserver that Culm uses. `tests/unit/test_private.py` fails when they change.

``multiprocessing`` keeps the process that forks in one object of the module. It has no public way to learn that
process's id, nor to close the file by which a fork keeps it alive.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver
from types import ModuleType
from typing import Any

_server: Any = forkserver._forkserver


def process_id() -> int | None:
    """Of the process that forks; None before it is started."""
    pid: int | None = _server._forkserver_pid
    return pid


def let_go() -> None:
    """In a fork: closes the file that keeps the forking process alive. It ends when nobody can ask it any more."""
    os.close(_server._forkserver_alive_fd)
    _server._forkserver_alive_fd = None


@contextmanager
def without_main() -> Iterator[None]:
    """A process that is started meanwhile has no ``__main__`` to import: it would run a user's script once more."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
