"""What operators ask of a run beside drains: reports of it, and what of it the state keeps. Plain frozen data."""

from dataclasses import dataclass

from culm.pipeline.pause import Pause

# ---- reports ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pausing:
    """Somebody asks that the run pauses."""

    pause: Pause


@dataclass(frozen=True, slots=True)
class Unpausing:
    """Somebody lets the run go on, perhaps with other limits; None: as they were."""

    who: str
    budget: float | None = None  # dollars; 0: none
    stop_at: float | None = None  # unix seconds; 0: none


@dataclass(frozen=True, slots=True)
class SaveAsked:
    """Somebody asks for a checkpoint now."""

    who: str


@dataclass(frozen=True, slots=True)
class Spent:
    """What the run has cost so far, by its event log, and what time it is by the coordinator's clock."""

    dollars: float
    at: float  # unix seconds
    unpriced: tuple[str, ...] = ()  # nodes that take part, and of which no price is known


# ---- kept in the state -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Limits:
    """What a run may cost, in dollars, and until when it may train, in unix seconds; 0: no limit."""

    budget: float = 0.0
    stop_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Spending:
    """What the run has cost as of a moment in unix seconds, and whose price nobody knows."""

    dollars: float
    at: float
    unpriced: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Saving:
    """Somebody waits for a checkpoint: of the next commit, until ``step`` names the one that was asked for it."""

    step: int | None = None
