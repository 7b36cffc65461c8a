"""Tasks that nobody waits for. The event loop would only log what one of them raises: here it ends the process."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

# The event loop keeps tasks by weak references: a task that nobody holds may vanish before it is over. So each is held
# here. A leader of which one task has died would go on without that part, and nobody would notice. So the process ends,
# and its nodes wait for the next coordinator (rule 17).


class Background:
    """Begins tasks, and keeps them until they are over. ``fail`` is called with what one raises."""

    def __init__(self, fail: Callable[[BaseException], None]) -> None:
        self._fail = fail
        self._tasks: set[asyncio.Task[Any]] = set()

    def begin(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Returns at once. A task that is cancelled has not failed."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._over)
        return task

    def _over(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)
