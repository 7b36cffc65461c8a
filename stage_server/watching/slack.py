"""How long a node will have to wait for what it needs next, as learnt from the last steps: room for other work."""

from collections import deque
from statistics import median

REMEMBERED = 3  # steps; the shortest wait of them is what is counted on
COSTS = 16  # forwards of a stage, or loads, that tell how long one takes
MARGIN = 1.1

Awaited = tuple[int, int, int]  # kind, stage and index of a tensor that every step waits for; COMMIT: a commit
COMMIT: Awaited = (-1, 0, 0)
# In place of a stage: what it takes to load a microbatch, and to take the digest of a layer.
LOADS, CHECKS = -1, -2


class Slack:
    """Times are seconds of one clock. One lock guards it, its node's."""

    def __init__(self) -> None:
        self._waits: dict[Awaited, deque[float]] = {}
        self._costs: dict[int, deque[float]] = {}
        self._awaited: Awaited | None = None
        self._since = 0.0

    def awaits(self, awaited: Awaited | None, now: float) -> None:
        """The node has nothing of its own to do until this is there; None: it has not been told what it waits for."""
        if awaited != self._awaited:
            self._awaited, self._since = awaited, now

    def arrived(self, awaited: Awaited, now: float) -> None:
        """A tensor, or a commit, is there; the wait for it is over, if it was waited for."""
        waited = now - self._since if awaited == self._awaited else 0.0
        if awaited not in self._waits:
            self._waits[awaited] = deque(maxlen=REMEMBERED)
        self._waits[awaited].append(waited)
        if awaited == self._awaited:
            self._awaited = None

    def ran(self, stage: int, seconds: float) -> None:
        """A forward of the stage, redundant or not, or a load, took this long."""
        if stage not in self._costs:
            self._costs[stage] = deque(maxlen=COSTS)
        self._costs[stage].append(seconds)

    def fits(self, stage: int, now: float) -> bool:
        """Whether a forward of the stage, or a load, is expected to be over before the wait is."""
        waits = self._waits.get(self._awaited) if self._awaited is not None else None
        if not waits:
            return False
        known = self._costs.get(stage) or [s for costs in self._costs.values() for s in costs]
        return bool(known) and now + MARGIN * median(known) <= self._since + min(waits)

    def forget(self) -> None:
        """The stages are others from now on: nothing of what was learnt holds."""
        self._waits.clear()
        self._awaited = None
