"""For how long tensor workers were there, and with how much memory: what a function service bills. Pure."""

# A function is billed from its invocation to its end, whether it has a task or waits for one. So what counts is the
# time from a worker's offer until its stream ends, not the time of its tasks.

GIGABYTE = 1 << 30  # as AWS Lambda bills it


class Bill:
    """``now`` in seconds, of a clock that never goes back."""

    def __init__(self) -> None:
        self._there: dict[int, tuple[float, float, float]] = {}  # worker -> its share, its gigabytes, since when
        self._over = 0.0  # gigabyte-seconds of those that have gone

    def came(self, worker: int, memory_bytes: int, servers: int, now: float) -> None:
        """``servers``: for which it is there at the same time; each has an equal share of it."""
        self._there[worker] = 1 / servers, memory_bytes / GIGABYTE / servers, now

    def went(self, worker: int, now: float) -> None:
        """Does nothing for one that did not come."""
        _, gigabytes, since = self._there.pop(worker, (0.0, 0.0, now))
        self._over += gigabytes * (now - since)

    def gigabyte_seconds(self, now: float) -> float:
        """So far, of all that are or were there."""
        return self._over + sum(gigabytes * (now - since) for _, gigabytes, since in self._there.values())

    def share(self) -> float:
        """How many are there, each by its share."""
        return sum(share for share, _, _ in self._there.values())
