"""Holding a sender back to so many bytes a second."""

# Each taker books the next free span of time under the lock, and sleeps outside it until that span begins. So several
# takers share one rate in the order in which they asked. Time that nobody used is not saved up: after a pause the first
# piece goes at once, and the rate holds from there.

import threading
import time


class RateLimit:
    """Shared by all who send for one purpose. Thread-safe."""

    def __init__(self, bytes_per_second: int | None) -> None:
        self._rate = bytes_per_second
        self._lock = threading.Lock()
        self._free_at = 0.0  # when what is booked so far has gone; seconds of time.monotonic

    def take(self, size: int) -> None:
        """Waits until ``size`` bytes more may go; at once without a rate."""
        if self._rate is None:
            return
        with self._lock:
            begin = max(self._free_at, time.monotonic())
            self._free_at = begin + size / self._rate
        pause = begin - time.monotonic()
        if pause > 0:
            time.sleep(pause)
