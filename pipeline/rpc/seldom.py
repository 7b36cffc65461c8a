"""Writes a log line that anybody outside can cause at most once a second and peer, with a count (rule 18)."""

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

EVERY = 1.0  # seconds
PEERS = 1 << 10  # remembered; beyond so many the one is forgotten whose last line is the oldest


class Seldom:
    """Any thread may say something. What is not written is counted, and told with the next line of that peer."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._lock = threading.Lock()
        self._said: OrderedDict[str, tuple[float, int]] = (
            OrderedDict()
        )  # peer -> when it was last written of, and how often it was not since

    def say(self, peer: str, text: str) -> None:
        with self._lock:
            now = self._clock()
            at, since = self._said.get(peer, (now - EVERY, 0))
            if now - at < EVERY:
                self._said[peer] = (at, since + 1)
                return
            self._said[peer] = (now, 0)
            self._said.move_to_end(peer)
            if len(self._said) > PEERS:
                self._said.popitem(last=False)
        more = f" (and {since} times since the last such line)" if since else ""
        self._log.warning("%s: %s%s", peer, text, more)
