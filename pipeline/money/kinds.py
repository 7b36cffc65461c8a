"""The kinds of events: one frozen class each. docs/events.md is generated from this list.

A field's name and text are what the event log keeps, so neither changes its meaning; a new field has a default, which
is what an older log means. Numbers are text in the log, floats to their last bit.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from culm.pipeline.plan import Stages

Node = Annotated[str, "the node"]
Stage = Annotated[int, "the stage"]
Step = Annotated[int, "the step"]
Why = Annotated[str, "the reason, in words"]
Incarnation = Annotated[int, "the node's process: another number for each"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What has happened to a run. What is said of it in words stands beside it in the log."""

    kind: ClassVar[str]


# ---- nodes -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined(Event):
    """A process has attended under this name for the first time."""

    kind = "joined"
    node: Node
    incarnation: Incarnation
    address: Annotated[str, "where its peers reach it"] = ""
    provider: Annotated[str, "of the machine, as the four below; empty where it is not known"] = ""
    instance_type: Annotated[str, "as the provider calls it"] = ""
    region: Annotated[str, "as the provider calls it"] = ""
    zone: Annotated[str, "as the provider, or the user, calls it"] = ""
    market: Annotated[str, "spot or on-demand"] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached(Event):
    """A node's order stream had broken, and is there again."""

    kind = "attached"
    node: Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Dismissed(Event):
    """A node is refused, or is to join anew."""

    kind = "dismissed"
    node: Node
    why: Why = ""
    count: Annotated[int, "how often processes on its machine could not start so far"] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned(Event):
    """A node may have to go soon. It works on, and hands over if the others are enough."""

    kind = "warned"
    node: Node
    why: Why = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draining(Event):
    """A node is to go, and hands over first."""

    kind = "draining"
    node: Node
    why: Why = ""
    seconds_left: Annotated[float, "until its machine goes; 0: not known"] = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Left(Event):
    """A node has gone in order. It held nothing any more."""

    kind = "left"
    node: Node
    why: Why = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost(Event):
    """A node was declared lost."""

    kind = "lost"
    node: Node
    stages: Annotated[str, "that it ran, separated by commas"] = ""
    step: Annotated[int | None, "the step that ran"] = None
    generation: Annotated[int, "of the plan before"] = 0
    detect_ms: Annotated[float, "since it was last heard, in milliseconds"] = 0.0
    evidence: Annotated[str, "why it is taken for lost, in words"] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slow(Event):
    """A node has become slower, or faster again. The cut is reconsidered."""

    kind = "slow"
    node: Node
    slowness: Annotated[float, "how many times what it took at first its instructions take"]


# ---- plans -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned(Event):
    """A new plan. Its reason is the event's text."""

    kind = "plan"
    generation: Annotated[int, "its number"] = 0
    steps: Annotated[int, "of the job"] = 0
    stage_count: Annotated[int, "how many stages the model is cut into"] = 0
    stages: Annotated[Stages, "JSON, a stage: first layer, end layer, owners, standbys and whether they are hot"] = ()
    samples_per_step: Annotated[int, "what a step trains on"] = 0
    tokens_per_step: Annotated[int, "the same in tokens; 0: samples have none"] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed(Event):
    """An heir has begun its first instruction of a lost node's stage."""

    kind = "resumed"
    node: Annotated[str, "the lost node"]
    heir: Annotated[str, "who runs its stage now"] = ""
    stage: Stage
    resume_ms: Annotated[float, "since the loss, in milliseconds"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered(Event):
    """The step in which a node was lost is committed."""

    kind = "recovered"
    node: Annotated[str, "the lost node"]
    stage: Stage
    step: Step = 0
    detect_ms: Annotated[float, "from its last sign to its being declared lost, in milliseconds"] = 0.0
    resume_ms: Annotated[float, "from there to its heir's first instruction, in milliseconds"] = 0.0
    redone: Annotated[int, "instructions that ran again"] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Hot(Event):
    """A stage has a hot standby again."""

    kind = "hot"
    node: Annotated[str, "the standby"]
    stage: Stage
    exposure_ms: Annotated[float, "for how long it had none, in milliseconds"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledBack(Event):
    """No copy of some stage was left: a new era begins from a checkpoint, or from step 0."""

    kind = "rollback"
    era: Annotated[int, "its number"] = 0
    step: Annotated[int, "that training goes on from"]


# ---- steps -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed(Event):
    """A step is part of the result."""

    kind = "commit"
    step: Step
    loss: Annotated[float, "the mean over its microbatches; loss_hex says it in hexadecimal"]
    scale: Annotated[float, "of its gradient, by clipping"] = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped(Event):
    """A step with a number that is not finite changes nothing, as ``[train] nonfinite`` asks for."""

    kind = "skipped"
    step: Step
    why: Why = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting(Event):
    """Training waits; the text says what for."""

    kind = "waiting"
    node: Annotated[str, "who told, if somebody did"] = ""
    why: Why = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Silent(Event):
    """Nobody at all is heard: the coordinator itself may be cut off."""

    kind = "silent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stalled(Event):
    """No step was committed for much longer than usual."""

    kind = "stalled"
    step: Annotated[int, "that runs"]
    awaited: Annotated[str, "what is waited for, in words"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moving(Event):
    """After a stall a step is committed."""

    kind = "moving"
    stalled_seconds: Annotated[float, "how long it took"]


# ---- checkpoints -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpointed(Event):
    """A checkpoint is whole: an era can begin from it."""

    kind = "checkpoint"
    step: Annotated[int, "steps applied in it"]
    folder: Annotated[str, "its URL"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFault(Event):
    """A checkpoint cannot be written. Training goes on; said once, until one is whole again."""

    kind = "checkpoint_fault"
    node: Annotated[str, "who could not write its share; empty: the coordinator"]
    step: Annotated[int, "of the checkpoint"]
    why: Why = ""


# ---- the run ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping(Event):
    """Every node is to go. A last checkpoint is made of the next step, where the job has checkpoints."""

    kind = "stopping"


@dataclass(frozen=True, slots=True, kw_only=True)
class Done(Event):
    """Every step is committed."""

    kind = "done"
    step: Annotated[int | None, "how many"] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched(Event):
    """Somebody has the final weights."""

    kind = "fetched"
    who: Annotated[str, "as it calls itself"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Released(Event):
    """The run is over: every node may go."""

    kind = "released"
    why: Why = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed(Event):
    """The job itself is at fault: nothing is trained any more."""

    kind = "failed"
    node: Annotated[str, "where it showed, if on one"] = ""
    step: Annotated[int | None, "in which, if in one"] = None
    why: Why = ""
    code: Annotated[int, "the exit code of ``culm run``"] = 2


# ---- coordinators ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted(Event):
    """A new coordinator has learnt a plan from a node: its predecessor had not written it."""

    kind = "adopted"
    node: Annotated[str, "who obeys it"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TookOver(Event):
    """A new coordinator has heard of every node, or has waited for them long enough."""

    kind = "recovered_coordinator"


# ---- money -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced(Event):
    """What a node costs, from now on; the first price counts from its joining."""

    kind = "price"
    node: Node
    incarnation: Incarnation
    per_hour: Annotated[float, "dollars"]
    on_demand_per_hour: Annotated[float, "dollars, of the same machine on demand; 0: not known"]
    per_gb_zones: Annotated[float, "dollars for a gigabyte to another zone"]
    per_gb_regions: Annotated[float, "dollars for a gigabyte to another region"]
    source: Annotated[str, "where the price is from, and of which day"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tariff(Event):
    """What the run costs beside its nodes, and what a restart from a checkpoint would take."""

    kind = "tariff"
    fixed_per_hour: Annotated[float, "dollars"]
    restart_seconds: Annotated[float, "of a system that restarts from checkpoints, for the comparison"]
    checkpoint_seconds: Annotated[float, "between its checkpoints"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Used(Event):
    """Where a node's time and its bytes went since it started, in seconds of its compute thread."""

    kind = "usage"
    node: Node
    incarnation: Incarnation
    forward: Annotated[float, "in forwards"]
    backward: Annotated[float, "in backwards"]
    redundant: Annotated[float, "for stages that it stands by for"]
    apply: Annotated[float, "in optimizer steps, copies and the like"]
    bubble: Annotated[float, "waiting for another stage's tensor"]
    idle: Annotated[float, "without anything to do"]
    sent: Annotated[Mapping[str, int], "bytes, by peer: a field sent.PEER each"] = field(default_factory=dict)


KINDS: Mapping[str, type[Event]] = {
    each.kind: each
    for each in (
        *(Joined, Attached, Dismissed, Warned, Draining, Left, Lost, Slow),
        *(Planned, Resumed, Recovered, Hot, RolledBack),
        *(Committed, Skipped, Waiting, Silent, Stalled, Moving),
        *(Checkpointed, CheckpointFault),
        *(Stopping, Done, Fetched, Released, Failed),
        *(Adopted, TookOver),
        *(Priced, Tariff, Used),
    )
}


def words_of(event: Committed) -> str:
    """What the log says of a commit: a reader that keeps numbers only can say it again."""
    return f"step {event.step} committed, loss {event.loss:.4f}"


ENDS = (Lost, Left, Dismissed)  # after these the node's process takes part no more
FREQUENT = (Committed, Used)  # a stream of their own keeps them
