"""Where a compute thread's time went: a value that goes from a node to the coordinator and to who looks at the run."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSplit:
    """Seconds since the thread began, by what it did; together all of them (TimeSplit in coordinator.proto)."""

    forward: float = 0.0
    backward: float = 0.0
    redundant: float = 0.0  # for stages that the node stands by for
    apply: float = 0.0  # applying steps, installing and exporting state
    bubble: float = 0.0  # waiting for a tensor of the running step
    idle: float = 0.0  # waiting for anything else
