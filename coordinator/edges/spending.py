"""Tells the decisions once a second what the run has cost, where it has a limit."""

from culm.coordinator.edges.event_log import EventLog
from culm.coordinator.limits import limits_of, moment
from culm.coordinator.requests import Limits, Spent
from culm.coordinator.state import Phase, Settings, State
from culm.pipeline.errors import JobError

LOOK_SECONDS = 1.0


def refuse_no_time(settings: Settings, new: bool, now: float) -> None:
    """Raises JobError where a run that begins now is to stop before that. One that goes on pauses."""
    stop_at = settings.limits.stop_at
    if new and stop_at and now >= stop_at:
        raise JobError(f"{moment(stop_at)} has passed", "job.stop_at", "set it to a later time")


class SpendingLook:
    """Of one leader. ``now``: of a clock that never goes back; ``wall``: unix time, by which a run is to stop."""

    def __init__(self) -> None:
        self._next = 0.0

    def due(self, state: State, log: EventLog, now: float, wall: float) -> Spent | None:
        """The figures, where somebody decides by them: not before the log of earlier leaders is read."""
        over = state.phase in (Phase.DONE, Phase.FAILED)
        if now < self._next or over or limits_of(state) == Limits() or not log.whole.is_set():
            return None
        self._next = now + LOOK_SECONDS
        lives = {name: log.ledger.life_of(name) for name in state.nodes}
        unpriced = [name for name, life in lives.items() if life is None or not life.priced]
        return Spent(log.ledger.dollars(log.now()), wall, tuple(unpriced))
