"""Events of steps, and of waiting for one."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from culm.pipeline.money.event import Event, Step, Why


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed(Event):
    """A step was committed: it is part of the result."""

    kind = "commit"
    step: Step
    loss: Annotated[float, "the mean over the step's microbatches; `loss_hex` has the same in hexadecimal"]
    scale: Annotated[float, "what the gradient was multiplied by: clipping"] = 1.0
    norm: Annotated[float, "the whole gradient's L2 norm before that; 0 where the job clips nothing"] = 0.0
    learning_rate: Annotated[float | None, "of the model's first parameter group"] = None


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
class Differed(Event):
    """Nodes have computed the same thing differently, so one of their machines computes wrongly. The run goes back to
    a step before that.
    """

    kind = "differed"
    step: Annotated[int, "the step that was to be committed"]
    what: Annotated[str, "what differs, in words"]
    nodes: Annotated[str, "those that have computed it, separated by commas; empty where one of them is gone"] = ""
    found: Annotated[str, "those that compute wrongly, as far as that can be told"] = ""


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
