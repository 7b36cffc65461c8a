"""Says what the job's own code does, where that takes long before anything has started.

A layer that blocks would look like a start that is slow: the trial runs in this process, and nobody declares it stuck.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from culm.pipeline.user_code.imports import is_own

FIRST, AGAIN = 5.0, 30.0  # seconds until the first line, and between two others


@contextmanager
def told_while_slow(
    what: str, say: Callable[[str], None], first: float = FIRST, again: float = AGAIN
) -> Iterator[None]:
    """``say`` is called on a thread of its own, as long as the block runs: what runs, for how long, and where it is."""
    here, began, over = threading.get_ident(), time.monotonic(), threading.Event()

    def tell() -> None:
        pause = first
        while not over.wait(pause):
            say(f"{what} for {time.monotonic() - began:.0f} s so far{_place(here)}; Ctrl-C ends it")
            pause = again

    thread = threading.Thread(target=tell, name="slow", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _place(thread: int) -> str:
    """The line of the job's own code at which the thread is; nothing where it is in none."""
    frame = sys._current_frames().get(thread)
    while frame is not None and not is_own(frame.f_code.co_filename):
        frame = frame.f_back
    return f", in {frame.f_code.co_filename}, line {frame.f_lineno}" if frame is not None else ""
