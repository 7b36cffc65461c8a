"""Events of what a run costs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from culm.pipeline.money.event import Event, Incarnation, Node, Why


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
class Unpriced(Event):
    """A node has no known price, though the run has a budget. What it costs is not counted: the budget is not kept."""

    kind = "unpriced"
    node: Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Tariff(Event):
    """What the run costs beside its nodes, and what a restart from a checkpoint would take."""

    kind = "tariff"
    fixed_per_hour: Annotated[float, "dollars an hour"]
    restart_seconds: Annotated[float, "seconds that a restart takes in the comparison with checkpoints"]
    checkpoint_seconds: Annotated[float, "seconds from checkpoint to checkpoint in that comparison"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Used(Event):
    """Where the time of a node's compute thread went since it started, its bytes, and what it takes of its machine."""

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
    seconds: Annotated[float, "seconds from its start to its last look at what follows; 0: it has told nothing"] = 0.0
    cpu_seconds: Annotated[float, "seconds of processors that it has taken by then"] = 0.0
    processors: Annotated[float, "processors that it may use"] = 0.0
    resident_bytes: Annotated[int, "host memory that it takes, in bytes"] = 0
    memory_bytes: Annotated[int, "host memory that it may use, in bytes"] = 0
    accelerator_busy: Annotated[float | None, "share of the time in which its accelerator computes, if known"] = None
    accelerator_used_bytes: Annotated[int, "memory of its accelerator that is taken, in bytes"] = 0
    accelerator_bytes: Annotated[int, "memory of its accelerator, in bytes; 0: it has none"] = 0
    workers: Annotated[int | None, "tensor workers that offer themselves to it; none: it is no graph server"] = None
    tasks_waiting: Annotated[int | None, "tensor tasks that no worker has taken yet"] = None
    tasks_done: Annotated[int | None, "tensor tasks that workers have done since it started"] = None
    tasks_repeated: Annotated[int | None, "tasks of these that a second worker was given"] = None
    worker_seconds: Annotated[float | None, "seconds for which workers have computed"] = None
    gigabyte_seconds: Annotated[float | None, "gigabytes of memory times the seconds that workers are billed by"] = None
    per_gigabyte_second: Annotated[float | None, "dollars for one; none: not known"] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersChosen(Event):
    """How many tensor workers the run wants from now on."""

    kind = "workers"
    workers: Annotated[int, "tensor workers"]
    why: Why
