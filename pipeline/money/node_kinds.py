"""Events of nodes."""

from dataclasses import dataclass
from typing import Annotated

from culm.pipeline.money.event import Event, Incarnation, Node, Why


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
    """A node's connection to the coordinator had broken, and is open again."""

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
    """A node is to go. It hands over its stages first. Said again when its machine goes sooner or later than that."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Tight(Event):
    """An heir has less memory than its work needs, since no other node with a copy has more."""

    kind = "tight"
    node: Node
    needed_bytes: Annotated[int, "what it would need, in bytes"]
    memory_bytes: Annotated[int, "what it may use, in bytes"]
