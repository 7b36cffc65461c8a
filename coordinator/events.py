"""What can happen to the coordinator: plain frozen data."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from coordinator.commands import Commit
from pipeline.machine import Machine
from pipeline.manifest import File
from pipeline.plan import Plan
from pipeline.times import TimeSplit


@dataclass(frozen=True, slots=True)
class Joined:
    """A node opened its order stream, for the first time or again."""

    node: str
    incarnation: int
    address: str
    pid: int = 0
    zone: str = ""
    machine: Machine = field(default_factory=Machine)


@dataclass(frozen=True, slots=True)
class Available:
    """The node has built the model: it can be given work."""

    node: str
    incarnation: int
    layer_costs: tuple[float, ...]
    fingerprint: str = ""
    era: int = 0
    version: int = 0
    holds_state: bool = False
    plan: Plan | None = None  # the newest that it has seen
    last_commit: Commit | None = None  # the newest that it has applied
    layers: frozenset[int] = frozenset()  # whose state is there


@dataclass(frozen=True, slots=True)
class Heartbeat:
    node: str
    incarnation: int
    version: int = 0
    instruction: str = ""
    finished: int = 0
    running_seconds: float = 0.0
    median_seconds: float = 0.0
    deviation_seconds: float = 0.0
    samples: int = 0
    slowness: float = 1.0
    times: TimeSplit = field(default_factory=TimeSplit)
    sent_bytes: Mapping[str, int] = field(default_factory=dict)
    bytes_per_second: float = 0.0


@dataclass(frozen=True, slots=True)
class Heard:
    """Heartbeats, each with the time when it came, in their order: many at once cost little more than one."""

    heartbeats: tuple[tuple[float, Heartbeat], ...]


@dataclass(frozen=True, slots=True)
class Ready:
    node: str
    incarnation: int
    era: int
    step: int
    stage: int
    first_layer: int
    squared_norms: tuple[float, ...]  # of the layers from first_layer on
    losses: tuple[float, ...] = ()
    redone: int = 0

    @property
    def layers(self) -> range:
        return range(self.first_layer, self.first_layer + len(self.squared_norms))


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """Layers that the node is being seeded with, up to ``end_layer`` (exclusive), are at the committed version."""

    node: str
    incarnation: int
    era: int
    first_layer: int
    end_layer: int


@dataclass(frozen=True, slots=True)
class Resumed:
    """The heir began the lost stage's work."""

    node: str
    incarnation: int
    generation: int
    stage: int


@dataclass(frozen=True, slots=True)
class PeerLost:
    """A neighbour's stream to the suspect broke."""

    node: str
    incarnation: int
    suspect: str
    suspect_incarnation: int
    why: str = ""


@dataclass(frozen=True, slots=True)
class StreamBroken:
    """The node's order stream broke."""

    node: str
    incarnation: int
    why: str = ""


@dataclass(frozen=True, slots=True)
class Left:
    """The node went on purpose."""

    node: str
    incarnation: int
    why: str = ""


@dataclass(frozen=True, slots=True)
class Draining:
    """The node is to go: its work is handed over at the next commit. ``seconds_left``: None if nobody knows."""

    node: str
    why: str
    seconds_left: float | None = None


@dataclass(frozen=True, slots=True)
class Warned:
    """The node may have to go soon, or not: its work is handed over once the others are enough."""

    node: str
    why: str


@dataclass(frozen=True)
class Saved:
    """The node has written these layers' files of the checkpoint of this step."""

    node: str
    incarnation: int
    era: int
    step: int
    files: Mapping[int, tuple[File, ...]]


@dataclass(frozen=True, slots=True)
class Checkpointed:
    """The manifest is written: the checkpoint is whole. ``kept``: those that retention has left."""

    step: int
    kept: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CheckpointBad:
    """A checkpoint cannot be read: it is not used again."""

    node: str
    step: int
    why: str


@dataclass(frozen=True, slots=True)
class NodeFailed:
    """The job cannot run on this node."""

    node: str
    incarnation: int
    why: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Event = (
    Joined
    | Available
    | Heartbeat
    | Heard
    | Ready
    | CaughtUp
    | Resumed
    | PeerLost
    | StreamBroken
    | Left
    | Draining
    | Warned
    | Saved
    | Checkpointed
    | CheckpointBad
    | NodeFailed
    | Tick
)
