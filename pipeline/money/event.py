"""What every kind of event is, and the fields that several have.

A field's name and text are what the event log keeps, so neither changes its meaning; a new field has a default, which
is what an older log means. Numbers are text in the log, floats to their last bit.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

Node = Annotated[str, "the node"]
Stage = Annotated[int, "the stage"]
Step = Annotated[int, "the step"]
Why = Annotated[str, "the reason, in words"]
Incarnation = Annotated[int, "the node's process: another number for each"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What has happened to a run. What is said of it in words stands beside it in the log."""

    kind: ClassVar[str]
