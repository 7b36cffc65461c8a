"""Events of the run as a whole: its checkpoints, its end, its coordinators."""

from dataclasses import dataclass
from typing import Annotated

from culm.pipeline.money.event import Event, Why

# ---- checkpoints -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpointed(Event):
    """A checkpoint is whole: an era can begin from it."""

    kind = "checkpoint"
    step: Annotated[int, "how many steps are applied in it"]
    folder: Annotated[str, "its URL"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFault(Event):
    """A checkpoint cannot be written: training goes on, and this is said once, until one is whole again. Or one that
    was found is another run's, and is left out.
    """

    kind = "checkpoint_fault"
    node: Annotated[str, "who could not write its share; empty: the coordinator"]
    step: Annotated[int, "the step of the checkpoint"]
    why: Why = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveAsked(Event):
    """Somebody asks for a checkpoint now: the next commit brings it."""

    kind = "save_asked"
    who: Annotated[str, "who asks"] = ""


# ---- the run ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Pausing(Event):
    """The run is to pause: the next commit does it."""

    kind = "pausing"
    who: Annotated[str, "who asked for it; empty: a limit of the job's led to it"] = ""
    why: Annotated[str, "the limit that the run has come to; empty: somebody asked"] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Paused(Event):
    """No step is begun any more. Nodes keep what they hold, and are repaired as ever."""

    kind = "paused"
    who: Annotated[str, "who asked for it; empty: a limit of the job's led to it"] = ""
    why: Annotated[str, "the limit that the run has come to; empty: somebody asked"] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpaused(Event):
    """A run that was paused goes on."""

    kind = "unpaused"
    who: Annotated[str, "who asked for it"] = ""
    budget: Annotated[float, "the dollars that the run may cost from now on; 0: no limit"] = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping(Event):
    """Every node is to go. A last checkpoint is made of the next step, where the job has checkpoints."""

    kind = "stopping"


@dataclass(frozen=True, slots=True, kw_only=True)
class Done(Event):
    """Every step is committed, or the run has ended early."""

    kind = "done"
    step: Annotated[int | None, "how many steps were trained"] = None
    early: Annotated[str, "why fewer than the job asks for; empty: they are as many"] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched(Event):
    """Somebody has the final weights."""

    kind = "fetched"
    who: Annotated[str, "the name that it gave"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Released(Event):
    """The run is over: every node may go."""

    kind = "released"
    why: Why = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed(Event):
    """The run failed: the job itself is at fault. Nothing is trained any more."""

    kind = "failed"
    node: Annotated[str, "the node on which it showed, if it was one"] = ""
    step: Annotated[int | None, "the step in which it showed, if in one"] = None
    why: Why = ""
    code: Annotated[int, "the exit code of ``culm run``"] = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Untracked(Event):
    """A tracker that the job names cannot be written to. It is told all that it lacks once it can."""

    kind = "untracked"
    tracker: Annotated[str, "which one"]
    why: Why = ""


# ---- coordinators ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted(Event):
    """A new coordinator learnt a plan from a node. The coordinator before it had not written that plan to Redis."""

    kind = "adopted"
    node: Annotated[str, "the node that told it"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TookOver(Event):
    """A new coordinator has heard from every node, or has waited for them long enough."""

    kind = "recovered_coordinator"
    coordinator: Annotated[str, "its name: its container's, its pod's, or its host's; empty in an older log"] = ""
