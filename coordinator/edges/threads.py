"""Calls that may never come back, such as a storage's, on threads that nothing waits for."""

# ``asyncio.to_thread`` takes the event loop's own pool. That has six threads on a small machine, and looks up host
# names as well: a storage that hangs would take them all, and Redis with them. Python also waits for these threads at
# its end, so a coordinator that is to end would stay, and whoever starts the next one would wait for that.

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import ParamSpec, TypeVar

Asked = ParamSpec("Asked")
Answer = TypeVar("Answer")


class Threads:
    """At most so many calls at once; others wait for their turn, and for nothing else."""

    def __init__(self, most: int) -> None:
        self._turns = asyncio.Semaphore(most)

    async def call(self, function: Callable[Asked, Answer], *args: Asked.args, **kwargs: Asked.kwargs) -> Answer:
        """What the function gives or raises. It goes on where the caller is cancelled, and keeps its turn."""
        await self._turns.acquire()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Answer] = loop.create_future()

        def settle(value: Answer | None, error: BaseException | None) -> None:
            self._turns.release()
            if answer.cancelled():
                return
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(value)  # type: ignore[arg-type]

        def run() -> None:
            value, error = None, None
            try:
                value = function(*args, **kwargs)
            except BaseException as raised:
                error = raised
            with suppress(RuntimeError):  # the loop has ended: nobody waits any more
                loop.call_soon_threadsafe(settle, value, error)

        threading.Thread(target=run, name=getattr(function, "__name__", "call"), daemon=True).start()
        return await answer
