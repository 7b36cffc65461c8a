"""Where the compute thread's time goes: one clock read whenever it turns from one thing to another."""

from dataclasses import replace
from typing import Literal, TypeVar

from pipeline.times import TimeSplit
from stage_server.instructions import Facts, Reduce, Run, Work

V = TypeVar("V", bound=Facts)
Phase = Literal["forward", "backward", "redundant", "apply", "bubble", "idle"]


def phase_of(work: Work[V]) -> Phase:
    """What a piece of work counts as. Giving a stage's reduced gradient ends its backwards."""
    if isinstance(work, Run):
        return "forward" if work.instruction.op == "F" else "backward"
    return "backward" if isinstance(work, Reduce) else "apply"


class Times:
    """One thread turns from phase to phase; any thread may ask. Times are seconds of one clock."""

    def __init__(self, now: float) -> None:
        # Phase, since when, and all before. Replaced whole, so that who asks needs no lock and sees no half of a turn.
        self._state: tuple[Phase, float, TimeSplit] = ("idle", now, TimeSplit())

    def turn(self, phase: Phase, now: float) -> None:
        """From now on the thread does this."""
        self._state = (phase, now, self.split(now))

    def split(self, now: float) -> TimeSplit:
        """Everything until now, the present phase included. No part of it ever shrinks."""
        phase, since, past = self._state
        # Who asks may have read the clock just before the thread turned.
        return replace(past, **{phase: getattr(past, phase) + max(0.0, now - since)})
