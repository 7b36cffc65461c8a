"""Where the compute thread's time goes: one clock read whenever it turns from one thing to another."""

from collections.abc import Collection, Sequence
from dataclasses import fields

from culm.pipeline.times import TimeSplit
from culm.stage_server.watching.kinds import Phase
from culm.stage_server.worker.work import Apply, Install, Load, V, Work

PLACE = {field.name: i for i, field in enumerate(fields(TimeSplit))}


def redundant_share(work: Work[V] | Load, owned: Collection[range]) -> float:
    """The part of a piece of work that is for stages which the node stands by for, by layers."""
    if isinstance(work, Apply):
        layers = [layer for layer, _ in work.gradients]
    elif isinstance(work, Install):
        layers = [work.layer]
    else:
        return 0.0
    standby = sum(not any(layer in own for own in owned) for layer in layers)
    return standby / len(layers) if layers else 0.0


class Times:
    """One thread turns from phase to phase; any thread may ask. Times are seconds of one clock."""

    def __init__(self, now: float) -> None:
        # Phase, since when, the redundant part of it, and all before. Replaced whole, so that who asks needs no lock
        # and sees no half of a turn.
        self._state: tuple[int, float, float, Sequence[float]] = (PLACE["idle"], now, 0.0, [0.0] * len(PLACE))

    def turn(self, phase: Phase, now: float, redundant: float = 0.0) -> None:
        """From now on the thread does this, the given part of it for stages that the node stands by for."""
        self._state = (PLACE[phase], now, redundant, self._spent(now))

    def split(self, now: float) -> TimeSplit:
        """Everything until now, the present phase included. No part of it ever shrinks."""
        return TimeSplit(**dict(zip(PLACE, self._spent(now), strict=True)))

    def _spent(self, now: float) -> list[float]:
        place, since, redundant, past = self._state
        # Who asks may have read the clock just before the thread turned.
        seconds = max(0.0, now - since)
        spent = [*past]
        spent[place] += seconds * (1 - redundant)
        spent[PLACE["redundant"]] += seconds * redundant
        return spent
