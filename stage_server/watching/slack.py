"""How long a node will have to wait for what it needs next, as learnt from the last steps: room for other work."""

from collections import deque
from statistics import median

REMEMBERED = 3  # steps; the shortest wait of them is what is counted on
COSTS = 16  # forwards of a stage, or loads, that tell how long one takes
MARGIN = 1.1

Slot = tuple[int, int, int]  # what is waited for in every step: kind, stage and index of its tensor; COMMIT: a commit
COMMIT: Slot = (-1, 0, 0)
LOADS = -1  # in place of a stage: what it takes to load a microbatch


class Slack:
    """Times are seconds of one clock. One lock guards it, its node's."""

    def __init__(self) -> None:
        self._waits: dict[Slot, deque[float]] = {}
        self._costs: dict[int, deque[float]] = {}
        self._awaited: Slot | None = None
        self._since = 0.0

    def awaits(self, slot: Slot | None, now: float) -> None:
        """The node has nothing of its own to do until this is there; None: it has not been told what it waits for."""
        if slot != self._awaited:
            self._awaited, self._since = slot, now

    def arrived(self, slot: Slot, now: float) -> None:
        """A tensor, or a commit, is there; the wait for it is over, if it was waited for."""
        waited = now - self._since if slot == self._awaited else 0.0
        if slot not in self._waits:
            self._waits[slot] = deque(maxlen=REMEMBERED)
        self._waits[slot].append(waited)
        if slot == self._awaited:
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
