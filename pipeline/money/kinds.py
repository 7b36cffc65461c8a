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
    """A process attended under this name for the first time."""

    kind = "joined"
    node: Node
    incarnation: Incarnation
    address: Annotated[str, "where its peers reach it"] = ""
    provider: Annotated[str, "who rents out its machine; empty where nobody told"] = ""
    instance_type: Annotated[str, "the machine's type, as the provider calls it"] = ""
    region: Annotated[str, "the machine's region, as the provider calls it"] = ""
    zone: Annotated[str, "the machine's zone, as the provider or the user calls it"] = ""
    market: Annotated[str, "`spot` or `on-demand`"] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached(Event):
    """A node's order stream had broken, and is open again."""

    kind = "attached"
    node: Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Dismissed(Event):
    """A node was refused, or has to join anew."""

    kind = "dismissed"
    node: Node
    why: Why = ""
    count: Annotated[int, "how many processes on its machine failed to start so far"] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned(Event):
    """A node may have to go soon. It works on, and hands over its stages if the other nodes are enough."""

    kind = "warned"
    node: Node
    why: Why = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draining(Event):
    """A node is to go. It hands over its stages first."""

    kind = "draining"
    node: Node
    why: Why = ""
    seconds_left: Annotated[float, "seconds until its machine goes; 0: not known"] = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Left(Event):
    """A node has gone in order: it held no stage any more."""

    kind = "left"
    node: Node
    why: Why = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost(Event):
    """A node was declared lost."""

    kind = "lost"
    node: Node
    stages: Annotated[str, "the stages that it ran, separated by commas"] = ""
    step: Annotated[int | None, "the step in which it was lost"] = None
    generation: Annotated[int, "the generation of the plan before"] = 0
    detect_ms: Annotated[float, "milliseconds from its last sign to its being declared lost"] = 0.0
    evidence: Annotated[str, "what showed that it was lost, in words"] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slow(Event):
    """A node has become slower, or faster again. The cut of the model is reconsidered."""

    kind = "slow"
    node: Node
    slowness: Annotated[float, "time of an instruction now, divided by its time at first"]


# ---- plans -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned(Event):
    """A new plan was published. The event's text is its reason."""

    kind = "plan"
    generation: Annotated[int, "the number of the plan"] = 0
    steps: Annotated[int, "of the job"] = 0
    stage_count: Annotated[int, "how many stages the model is cut into"] = 0
    stages: Annotated[Stages, "JSON, a list a stage: first layer, end layer, owners, standbys, which are hot"] = ()
    samples_per_step: Annotated[int, "samples in a step"] = 0
    tokens_per_step: Annotated[int, "tokens in a step; 0 where samples have none"] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed(Event):
    """An heir has begun its first instruction of a lost node's stage."""

    kind = "resumed"
    node: Annotated[str, "the lost node"]
    heir: Annotated[str, "who runs its stage now"] = ""
    stage: Stage
    resume_ms: Annotated[float, "milliseconds since the node was declared lost"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered(Event):
    """The step in which a node was lost is committed."""

    kind = "recovered"
    node: Annotated[str, "the lost node"]
    stage: Stage
    step: Step = 0
    detect_ms: Annotated[float, "milliseconds from its last sign to its being declared lost"] = 0.0
    resume_ms: Annotated[float, "milliseconds from there to the heir's first instruction"] = 0.0
    redone: Annotated[int, "instructions that ran again"] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Hot(Event):
    """A stage has a hot standby again."""

    kind = "hot"
    node: Annotated[str, "the standby"]
    stage: Stage
    exposure_ms: Annotated[float, "milliseconds without one"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledBack(Event):
    """A stage had no copy left. A new era begins from a checkpoint, or from step 0."""

    kind = "rollback"
    era: Annotated[int, "the number of the new era"] = 0
    step: Annotated[int, "the step that training goes on from"]


# ---- steps -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed(Event):
    """A step was committed: it is part of the result."""

    kind = "commit"
    step: Step
    loss: Annotated[float, "the mean over the step's microbatches; `loss_hex` has the same in hexadecimal"]
    scale: Annotated[float, "what the gradient was multiplied by: clipping"] = 1.0
    norm: Annotated[float, "the whole gradient's L2 norm before that; 0 where the job clips nothing"] = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured(Event):
    """The metrics of a step that was committed, over what it trained on."""

    kind = "measured"
    step: Step
    metrics: Annotated[Mapping[str, float], "of the job's `[train] metrics`: a field `metric.NAME` each"] = field(
        default_factory=dict
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated(Event):
    """The weights were evaluated on samples that are not trained on."""

    kind = "evaluated"
    step: Annotated[int, "how many steps the weights were trained"]
    loss: Annotated[float, "the mean over what is evaluated"]
    metrics: Annotated[Mapping[str, float], "of the job: a field `metric.NAME` each"] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped(Event):
    """A step had a loss or a gradient that was not finite. It changed nothing, as ``[train] nonfinite`` asks for."""

    kind = "skipped"
    step: Step
    why: Why = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting(Event):
    """Training waits; the text says what for."""

    kind = "waiting"
    node: Annotated[str, "the node that said so, if one did"] = ""
    why: Why = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Silent(Event):
    """The coordinator hears no node at all. It may be cut off itself."""

    kind = "silent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stalled(Event):
    """No step was committed for much longer than usual."""

    kind = "stalled"
    step: Annotated[int, "the step that is under way"]
    awaited: Annotated[str, "what is waited for, in words"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moving(Event):
    """A step was committed after a stall."""

    kind = "moving"
    stalled_seconds: Annotated[float, "seconds from the last commit to this one"]


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


# ---- the run ---------------------------------------------------------------------------------------------------------


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


# ---- money -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Tight(Event):
    """An heir has less memory than its work needs, since no other node with a copy has more."""

    kind = "tight"
    node: Node
    needed_bytes: Annotated[int, "what it would need, in bytes"]
    memory_bytes: Annotated[int, "what it may use, in bytes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced(Event):
    """What a node costs, from now on; the first price counts from its joining."""

    kind = "price"
    node: Node
    incarnation: Incarnation
    per_hour: Annotated[float, "dollars an hour"]
    on_demand_per_hour: Annotated[float, "dollars an hour for the same machine on demand; 0: not known"]
    per_gb_zones: Annotated[float, "dollars for a gigabyte to another zone"]
    per_gb_regions: Annotated[float, "dollars for a gigabyte to another region"]
    source: Annotated[str, "where the price is from, and its day"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tariff(Event):
    """What the run costs beside its nodes, and what a restart from a checkpoint would take."""

    kind = "tariff"
    fixed_per_hour: Annotated[float, "dollars an hour"]
    restart_seconds: Annotated[float, "seconds that a restart takes in the comparison with checkpoints"]
    checkpoint_seconds: Annotated[float, "seconds from checkpoint to checkpoint in that comparison"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Used(Event):
    """Where the time of a node's compute thread went since it started, and its bytes."""

    kind = "usage"
    node: Node
    incarnation: Incarnation
    forward: Annotated[float, "seconds in forwards"]
    backward: Annotated[float, "seconds in backwards"]
    redundant: Annotated[float, "seconds in forwards for stages that it stands by for"]
    apply: Annotated[float, "seconds in optimizer steps, copies and the like"]
    bubble: Annotated[float, "seconds of waiting for another stage's tensor"]
    idle: Annotated[float, "seconds with nothing to do"]
    sent: Annotated[Mapping[str, int], "bytes to each peer: a field `sent.PEER` each"] = field(default_factory=dict)


GROUPS: Mapping[str, tuple[type[Event], ...]] = {
    "Nodes": (Joined, Attached, Dismissed, Warned, Draining, Left, Lost, Slow, Tight),
    "Plans": (Planned, Resumed, Recovered, Hot, RolledBack),
    "Steps": (Committed, Measured, Evaluated, Skipped, Waiting, Silent, Stalled, Moving),
    "Checkpoints": (Checkpointed, CheckpointFault),
    "The run": (Stopping, Done, Fetched, Released, Failed, Untracked),
    "Coordinators": (Adopted, TookOver),
    "Money": (Priced, Tariff, Used),
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
