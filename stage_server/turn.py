"""The node's lock."""

import threading
from collections.abc import Callable
from types import TracebackType


class Turn(threading.Condition):
    """Whoever has it changes the node's state. An exception that leaves it may leave that state half changed, on
    whatever thread: the process ends with it.
    """

    def __init__(self, broken: Callable[[BaseException], None]) -> None:
        """``broken``: called with what was raised, once the lock is free again."""
        super().__init__()
        self._broken = broken

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        if error is not None:
            self._broken(error)
