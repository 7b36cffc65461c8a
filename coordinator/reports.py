"""What the coordinator is told: by nodes, operators, its clock, its store and its storage. Plain frozen data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from culm.coordinator.failures import Work
from culm.pipeline.checkpoints.manifest import File
from culm.pipeline.commit import Commit
from culm.pipeline.identity import Identity
from culm.pipeline.machine import Machine
from culm.pipeline.origin import Origin
from culm.pipeline.plan import Plan, PlanOrder
from culm.pipeline.times import TimeSplit


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """A node opened its order stream, for the first time or again."""

    node: str
    incarnation: int
    address: str
    pid: int = 0
    zone: str = ""
    machine: Machine = field(default_factory=Machine)
    term: int = 0  # the highest that the node has seen


@dataclass(frozen=True, slots=True, kw_only=True)
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
    identity: Identity = field(default_factory=Identity)


@dataclass(frozen=True, slots=True)
class Built:
    """The node has built these layers at their initial state, to begin with: a hash of it by layer."""

    node: str
    incarnation: int
    initial: Mapping[int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
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
    loading_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Heard:
    """Heartbeats, each with the time when it came, in their order: many at once cost little more than one."""

    heartbeats: tuple[tuple[float, Heartbeat], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class CaughtUp:
    """Layers that the node is being seeded with, up to ``end_layer`` (exclusive), are at the committed version."""

    node: str
    incarnation: int
    era: int
    first_layer: int
    end_layer: int
    version: int = 0  # the one that the node knows to be committed
    order: PlanOrder = (0, 0)  # of the plan that it obeys


@dataclass(frozen=True, slots=True)
class Fetched:
    """Somebody has the final weights whole, in words."""

    who: str


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
    told: bool = False  # to stop: it waits for nobody to come


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
    """The manifest is written: the checkpoint is whole."""

    checkpoint: Origin


@dataclass(frozen=True, slots=True)
class CheckpointBad:
    """Content of a checkpoint is provably wrong, read under its own manifest: it is not used again."""

    node: str
    origin: Origin
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """The node cannot read what the era begins from, and asks again: no proof against the checkpoint (rule 14).

    ``absent``: the storage answers, but has no such manifest for this node.
    """

    node: str
    incarnation: int
    era: int
    origin: Origin
    why: str
    absent: bool = False


class Sight(StrEnum):
    """What the coordinator itself has seen of an origin."""

    THERE = "there"  # the very manifest
    WRONG = "wrong"  # the storage answers, and has no such manifest or another one: it is gone for good
    AWAY = "away"  # the storage does not answer, or shows nothing at all


@dataclass(frozen=True, slots=True)
class Examined:
    """The coordinator has looked at the origin that a node does not see."""

    origin: Origin
    sight: Sight
    why: str = ""


@dataclass(frozen=True, slots=True)
class CheckpointFault:
    """A checkpoint cannot be written at present; ``node`` is empty where it is the coordinator that cannot."""

    node: str
    step: int
    why: str


@dataclass(frozen=True, slots=True)
class NodeFailed:
    """Something raised on the node, which ends. ``work``: what it was doing; None: no work of the job's."""

    node: str
    incarnation: int
    why: str
    work: Work | None = None


@dataclass(frozen=True, slots=True)
class Condemned:
    """The node has been ordered to die at once."""

    node: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Report = (
    Joined
    | Available
    | Built
    | Heartbeat
    | Heard
    | Ready
    | CaughtUp
    | Fetched
    | Resumed
    | PeerLost
    | StreamBroken
    | Left
    | Draining
    | Warned
    | Saved
    | Checkpointed
    | CheckpointBad
    | CheckpointFault
    | Unread
    | Examined
    | NodeFailed
    | Condemned
    | Tick
)
