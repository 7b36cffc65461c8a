"""The node's lock."""

# Its condition is notified whenever there may be something to do: the compute thread waits for work, and loans for a
# moment between two pieces of work. There are few waiters, so each looks for itself whether it may go on.

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
        self.stopped = False  # set once, under the lock: the node is to end, and nobody waits for its turn any more

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
        if error is not None:
            self._broken(error)
