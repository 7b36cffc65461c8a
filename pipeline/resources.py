"""What a node's process takes of its machine, and what it may take: a value that goes from a node to who looks."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorWorkers:
    """Who does tensor work for a graph server (TensorWorkers in coordinator.proto)."""

    workers: int = 0
    waiting: int = 0  # tasks
    done: int = 0
    repeated: int = 0
    seconds: float = 0.0
    gigabyte_seconds: float = 0.0
    waited_seconds: float = 0.0  # of all tasks, until a worker took them
    share: float = 0.0  # workers, each by the part of its time that it has for this server


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """One look at a process (Resources in coordinator.proto). Sums count from its start: two give what was between."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0  # of all its threads
    processors: float = 0.0  # that it may use
    resident_bytes: int = 0
    memory_bytes: int = 0  # of the host's memory, that it may use
    accelerator_busy: float | None = None  # share of the last moments; None: there is no accelerator, or nobody knows
    accelerator_used_bytes: int = 0  # by whatever process
    accelerator_bytes: int = 0  # 0: there is no accelerator
    tensor_workers: TensorWorkers | None = None  # None: the job trains on no graph
