"""What the coordinator knows, what can happen to it, and what it can order: plain frozen data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from pipeline.machine import Machine
from pipeline.manifest import File
from pipeline.plan import Plan
from pipeline.times import TimeSplit


class Phase(StrEnum):
    """Where the run stands."""

    WAITING = "waiting"  # for nodes: to begin, or to go on
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"  # the job itself is at fault


@dataclass(frozen=True, slots=True)
class Settings:
    """The parts of the job and of the service's settings that decisions depend on. Times in seconds."""

    stages: int
    microbatches: int
    steps: int
    clip_norm: float | None = None
    redundancy: bool = True
    auto: bool = False  # which redundancy is chosen at run time
    nodes: int = 0  # how many to wait for before the run begins; 0: one for each stage
    heartbeat_timeout: float = 2.0  # silence after which a node is lost
    most_stages: int = 0  # 0: as many as the job asks for
    spares: int = 1  # nodes beyond the stages that stay idle, to repair with
    settle_seconds: float = 30.0  # how long the set of nodes is left as it is before the model is cut anew for it
    seed_bytes_per_second: float = 1e8
    link_timeout: float = 5.0  # how long a link between two nodes that both attend may mend
    checkpoint_url: str = ""
    samples_per_step: int = 0
    tokens_per_step: int = 0  # 0: the job does not say
    reconnect_timeout: float = 2.0  # how long a broken order stream may mend if no neighbour misses the node


@dataclass(frozen=True, slots=True)
class Node:
    """A node that has joined with this incarnation and is not lost."""

    node: str
    incarnation: int
    address: str
    pid: int = 0
    zone: str = ""
    available: bool = False  # has built the model
    attached_since: float | None = 0.0  # None while its order stream is broken
    detached_at: float | None = None
    heard_at: float = 0.0
    version: int = 0
    instruction: str = ""
    finished: int = 0  # instructions since the process started: the progress watermark
    running_seconds: float = 0.0  # how long its present instruction has been running
    median_seconds: float = 0.0  # of its own instructions like that one, and their deviation
    deviation_seconds: float = 0.0
    samples: int = 0
    slowness: float = 1.0  # how many times slower it has become since it started
    times: TimeSplit = field(default_factory=TimeSplit)  # where its compute thread's time went
    sent_bytes: Mapping[str, int] = field(default_factory=dict)  # of tensors, by peer
    bytes_per_second: float = 0.0  # at which large ones went lately
    machine: Machine = field(default_factory=Machine)  # what it runs on
    draining: str = ""  # why it is to go
    warning: str = ""  # why it may have to go soon
    leaves_at: float | None = None  # when its machine may be gone


@dataclass(frozen=True, slots=True)
class Report:
    """Since when a node has been saying that it does not reach another, and when it said so last."""

    first: float
    last: float


@dataclass(frozen=True, slots=True)
class Parted:
    """A node that had to go because it did not reach the peer: until then it is given no work."""

    peer: str
    until: float


@dataclass(frozen=True, slots=True)
class Review:
    """When it was last looked at which redundancy pays: under which plan, at which step, and the nodes' times then."""

    generation: int
    step: int
    at: float
    times: Mapping[tuple[str, int], TimeSplit]  # by node and incarnation


Layers = Mapping[str, frozenset[int]]  # node -> layers


@dataclass(frozen=True, slots=True)
class Loss:
    """A stage whose owner was lost in the step being committed, kept until that commit."""

    node: str
    stage: int
    heir: str
    at: float
    detect_seconds: float  # silence of the lost node before it was declared lost
    resumed_at: float | None = None
    redone: int = 0


@dataclass(frozen=True)
class State:
    """Everything that the coordinator decides from. ``committed`` counts steps."""

    settings: Settings
    term: int = 1
    phase: Phase = Phase.WAITING
    era: int = 0
    committed: int = 0
    generation: int = 0
    plan: Plan | None = None
    layer_costs: tuple[float, ...] = ()
    fingerprint: str = ""
    nodes: Mapping[str, Node] = field(default_factory=dict)
    fenced: frozenset[tuple[str, int]] = frozenset()  # incarnations declared lost: refused for good
    evidence: Mapping[str, Mapping[str, Report]] = field(default_factory=dict)  # suspect -> reporter
    parted: Mapping[str, Parted] = field(default_factory=dict)
    # Who holds which layer's whole reduced gradient of (era, committed), over a copy at that version: rule 6's facts.
    facts: Layers = field(default_factory=dict)
    # Who, being seeded, reported so for an earlier step: it has caught up, and commits wait for it from now on.
    following: Layers = field(default_factory=dict)
    norms: Mapping[int, float] = field(default_factory=dict)  # layer -> squared norm
    losses: tuple[float, ...] = ()  # of the microbatches of the step being committed
    last_commit: "Commit | None" = None
    open_losses: tuple[Loss, ...] = ()
    last_tick: float | None = None
    exposed_since: Mapping[int, float] = field(default_factory=dict)  # stage -> since when without a hot standby
    checkpoints: tuple[tuple[int, str], ...] = ()  # whole ones: (steps applied, folder), oldest first
    saved: Mapping[int, Mapping[int, tuple[File, ...]]] = field(default_factory=dict)  # step -> layer -> files, so far
    changed_at: float = 0.0  # when the set of nodes changed last
    losses_at: tuple[float, ...] = ()  # when the last nodes were lost
    took_over_at: float | None = None  # since when a new leader waits for the nodes to attach to it
    review: Review | None = None
    detail: str = "waiting for nodes"


# ---- events ---------------------------------------------------------------------------------------------------------


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
    last_commit: "Commit | None" = None  # the newest that it has applied
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


# ---- commands -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Publish:
    """Send the plan to every attached node."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class Commit:
    """Send to every attached node: apply the step. ``next_plan``: a switch, to be adopted right after."""

    term: int
    era: int
    step: int
    scale: float
    loss: float
    next_plan: Plan | None = None


@dataclass(frozen=True, slots=True)
class SendPlan:
    """Send the plan to one node that (re)attached."""

    node: str
    plan: Plan


@dataclass(frozen=True, slots=True)
class SendCommit:
    """Send a commit that one node missed."""

    node: str
    commit: Commit


@dataclass(frozen=True, slots=True)
class Dismiss:
    """Tell the node that it is not taken, and close its order stream."""

    node: str
    incarnation: int
    why: str
    join_anew: bool = False
    goodbye: bool = False  # nothing is wrong with the node


@dataclass(frozen=True, slots=True)
class Ask:
    """Have the node say once more where it stands (Available, and its facts)."""

    node: str


@dataclass(frozen=True, slots=True)
class Persist:
    """Write the state that a successor needs, soon: what of it is lost the nodes tell (rule 8)."""

    state: State


@dataclass(frozen=True)
class WriteManifest:
    """Every layer of the checkpoint is written: make it whole, then tell the machine (Checkpointed)."""

    step: int
    loss: float
    fingerprint: str
    files: Mapping[int, tuple[File, ...]]


@dataclass(frozen=True, slots=True)
class Record:
    """Add to the event log. ``fields`` are facts by name, in words or numbers as text."""

    kind: str
    text: str
    fields: Mapping[str, str] = field(default_factory=dict)


Command = Publish | Commit | SendPlan | SendCommit | Dismiss | Ask | Persist | WriteManifest | Record
