"""Bytes of tensors that a node exchanged with each peer on Deliver streams; state for seeding is not among them."""

import threading
from collections import defaultdict, deque
from statistics import median

SPEEDS = 16  # of the last large tensors


class Traffic:
    """Counts since the process started. Any thread may count and ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sent: defaultdict[str, int] = defaultdict(int)
        self._received: defaultdict[str, int] = defaultdict(int)
        self._speeds: deque[float] = deque(maxlen=SPEEDS)

    def sent(self, peer: str, count: int) -> None:
        with self._lock:  # an old sender to a peer may be ending while the next one begins
            self._sent[peer] += count

    def went(self, count: int, seconds: float) -> None:
        """So many bytes in a row took the stream so long to take."""
        with self._lock:
            self._speeds.append(count / seconds)

    def bytes_per_second(self) -> float:
        """At which large tensors went lately; 0 if there was none."""
        with self._lock:
            return median(self._speeds) if self._speeds else 0.0

    def received(self, peer: str, count: int) -> None:
        with self._lock:
            self._received[peer] += count

    def sent_by_peer(self) -> dict[str, int]:
        with self._lock:
            return dict(self._sent)

    def received_by_peer(self) -> dict[str, int]:
        with self._lock:
            return dict(self._received)
