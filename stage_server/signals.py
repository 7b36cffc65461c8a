"""Signals that end a node: what they ask for is done on a thread of its own."""

# Python runs a signal's handler on the main thread, between two of its instructions. Here that is the compute thread.
# In the middle of a long kernel it would hear of SIGTERM late. Where the signal comes just before it begins to wait, it
# would not hear of it before something else wakes it; to a node that nobody speaks to that may be never.
#
# The interpreter's own handler, in C, also writes the signal's number into a file descriptor, on whatever thread the
# signal comes. So a thread that reads there hears of each at once.

import os
import signal
import threading
from collections.abc import Callable, Mapping


def on_signals(actions: Mapping[signal.Signals, Callable[[], None]]) -> None:
    """From now on each of these signals has its action called, one after the other. Called on the main thread."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number in actions:
        signal.signal(number, _is_written)
    threading.Thread(target=_take, args=(reading, actions), name="signals", daemon=True).start()


def _is_written(*_: object) -> None:
    """Python wants a handler of its own; all is done elsewhere."""


def _take(reading: int, actions: Mapping[signal.Signals, Callable[[], None]]) -> None:
    while numbers := os.read(reading, 64):
        for number in numbers:
            if number in actions:
                actions[signal.Signals(number)]()
