"""How much a kind of event matters to whoever watches a run, and the colour that says so."""

from collections.abc import Mapping
from enum import Enum

from culm.pipeline.money import kinds
from culm.pipeline.money.event import Event


class Severity(Enum):
    """From the worst to what nobody needs to look at. The value is a style of rich."""

    BAD = "bold red"  # a node is lost, or training stands still
    WARNING = "yellow"  # somebody may have to do something
    GOOD = "green"  # what was broken is whole again
    NEWS = "default"
    ROUTINE = "dim"  # again and again, whatever happens


OF_KIND: Mapping[type[Event], Severity] = {
    kinds.Joined: Severity.NEWS,
    kinds.Attached: Severity.GOOD,
    kinds.Dismissed: Severity.WARNING,
    kinds.Warned: Severity.WARNING,
    kinds.Draining: Severity.WARNING,
    kinds.Left: Severity.NEWS,
    kinds.Lost: Severity.BAD,
    kinds.Slow: Severity.WARNING,
    kinds.Tight: Severity.WARNING,
    kinds.Planned: Severity.NEWS,
    kinds.Resumed: Severity.GOOD,
    kinds.Recovered: Severity.GOOD,
    kinds.Hot: Severity.GOOD,
    kinds.RolledBack: Severity.BAD,
    kinds.Committed: Severity.ROUTINE,
    kinds.Measured: Severity.ROUTINE,
    kinds.Evaluated: Severity.NEWS,
    kinds.Skipped: Severity.WARNING,
    kinds.Differed: Severity.BAD,
    kinds.Waiting: Severity.WARNING,
    kinds.Silent: Severity.BAD,
    kinds.Stalled: Severity.BAD,
    kinds.Moving: Severity.GOOD,
    kinds.Checkpointed: Severity.NEWS,
    kinds.CheckpointFault: Severity.WARNING,
    kinds.Stopping: Severity.WARNING,
    kinds.Pausing: Severity.NEWS,
    kinds.Paused: Severity.WARNING,
    kinds.Unpaused: Severity.GOOD,
    kinds.SaveAsked: Severity.NEWS,
    kinds.Unpriced: Severity.WARNING,
    kinds.Done: Severity.GOOD,
    kinds.Fetched: Severity.NEWS,
    kinds.Released: Severity.NEWS,
    kinds.Failed: Severity.BAD,
    kinds.Untracked: Severity.WARNING,
    kinds.Adopted: Severity.WARNING,
    kinds.TookOver: Severity.WARNING,
    kinds.Priced: Severity.ROUTINE,
    kinds.Tariff: Severity.ROUTINE,
    kinds.WorkersChosen: Severity.NEWS,
    kinds.Used: Severity.ROUTINE,
}


def severity_of(kind: str) -> Severity:
    """Of an event of this kind; a newer coordinator may tell kinds that are not known here."""
    known = kinds.KINDS.get(kind)
    return OF_KIND.get(known, Severity.NEWS) if known is not None else Severity.NEWS
