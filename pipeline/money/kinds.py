"""The list of all kinds of events, one frozen class each. docs/events.md is generated from it."""

from collections.abc import Mapping

from culm.pipeline.money.event import Event
from culm.pipeline.money.money_kinds import Priced, Tariff, Unpriced, Used, WorkersChosen
from culm.pipeline.money.node_kinds import Attached, Dismissed, Draining, Joined, Left, Lost, Slow, Tight, Warned
from culm.pipeline.money.plan_kinds import Hot, Planned, Recovered, Resumed, RolledBack
from culm.pipeline.money.run_kinds import (
    Adopted,
    Checkpointed,
    CheckpointFault,
    Done,
    Failed,
    Fetched,
    Paused,
    Pausing,
    Released,
    SaveAsked,
    Stopping,
    TookOver,
    Unpaused,
    Untracked,
)
from culm.pipeline.money.step_kinds import (
    Committed,
    Differed,
    Evaluated,
    Measured,
    Moving,
    Silent,
    Skipped,
    Stalled,
    Waiting,
)

# Each group has a module of its own, or shares one. Everybody else takes the kinds from here.
GROUPS: Mapping[str, tuple[type[Event], ...]] = {
    "Nodes": (Joined, Attached, Dismissed, Warned, Draining, Left, Lost, Slow, Tight),
    "Plans": (Planned, Resumed, Recovered, Hot, RolledBack),
    "Steps": (Committed, Measured, Evaluated, Skipped, Differed, Waiting, Silent, Stalled, Moving),
    "Checkpoints": (Checkpointed, CheckpointFault, SaveAsked),
    "The run": (Pausing, Paused, Unpaused, Stopping, Done, Fetched, Released, Failed, Untracked),
    "Coordinators": (Adopted, TookOver),
    "Money": (Priced, Unpriced, Tariff, Used),
    "Graphs": (WorkersChosen,),
}
KINDS: Mapping[str, type[Event]] = {each.kind: each for group in GROUPS.values() for each in group}


def words_of(event: Committed | Measured | Evaluated) -> str:
    """What the log says of a commit, or of its numbers: a reader that keeps numbers only can say it again."""
    if isinstance(event, Committed):
        return f"step {event.step} committed, loss {event.loss:.4f}"
    found = dict(event.metrics) if isinstance(event, Measured) else {"loss": event.loss, **event.metrics}
    when = "step" if isinstance(event, Measured) else "after step"
    return f"{when} {event.step}: {', '.join(f'{name} {value:.4g}' for name, value in found.items())}"


ENDS = (Lost, Left, Dismissed)  # after these the node's process takes part no more
FREQUENT = (Committed, Measured, Used)  # a stream of their own keeps them
