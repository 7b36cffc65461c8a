"""Says what a service waits for: when that changes, and again as long as it lasts."""

import logging
import time
from collections.abc import Callable

AGAIN_SECONDS = 30.0  # a log that says it once, and then nothing, looks like a service that hangs


class Obstacles:
    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log, self._clock = log, clock
        self._said = ""
        self._at = 0.0  # when it was said last

    def say(self, obstacle: str) -> None:
        """Called as often as the obstacle is met."""
        now = self._clock()
        if obstacle != self._said or now - self._at >= AGAIN_SECONDS:
            self._log.warning("%s", obstacle)
            self._said, self._at = obstacle, now
