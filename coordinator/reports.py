"""What the coordinator is told: by nodes, operators, its clock, its store and its storage. Plain frozen data."""

# Most reports are a node's word. An operator's are Fetched, Pausing, Unpausing, SaveAsked and, beside nodes' own,
# Draining; Condemned is a demo's or a test's. StreamBroken, Checkpointed, Examined, CheckpointsFound, Priced, Spent and
# Tick come from the coordinator's own edges, as a CheckpointFault may.
#
# Reports of one node come in the order in which it sent them, as long as its stream stands. So it is Joined before all
# else, and Built before any Ready over the same layers. When a stream breaks the newest reports may be lost: a node
# says on the next one what still counts, Available and its facts first (rule 6). Between nodes there is no order.
#
# ``incarnation`` is in every report that must not count for another process of the same name (rule 13). What a node
# says was held against the run before it became a report (``report_bounds``): indices and counts fit, texts are short.

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from culm.coordinator.failures import Work
from culm.coordinator.node_prices import NodePrice
from culm.coordinator.requests import Pausing, SaveAsked, Spent, Unpausing
from culm.pipeline.audits import Audited
from culm.pipeline.bookmark import Bookmark
from culm.pipeline.checkpoints.manifest import File
from culm.pipeline.commit import Commit
from culm.pipeline.early_stop import BestSoFar
from culm.pipeline.identity import Identity
from culm.pipeline.layer_bytes import LayerBytes
from culm.pipeline.machine import Machine
from culm.pipeline.origin import Origin
from culm.pipeline.plan import Plan, PlanOrder
from culm.pipeline.resources import Resources
from culm.pipeline.times import TimeSplit


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """A node opened its order stream, for the first time or again."""

    node: str
    # Rises with every start of the process, and whenever it was declared lost. Microseconds since 1970, so that no
    # store has to remember the last one.
    incarnation: int
    address: str  # HOST:PORT where its peers reach it
    pid: int = 0
    zone: str = ""
    machine: Machine = field(default_factory=Machine)
    term: int = 0  # the highest that the node has seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Available:
    """The node has built the model: it can be given work."""

    node: str
    incarnation: int
    layer_costs: tuple[float, ...]  # parameters of each layer: they decide where the model is cut, or times do
    layer_seconds: tuple[float, ...] = ()  # of each layer's forward and backward, if it was asked to measure them
    unmeasured: str = ""  # why it could not
    layer_bytes: tuple[LayerBytes, ...] = ()  # of each layer on whoever holds it
    memory_bytes: int = 0  # that the node may use; 0: it does not know
    spill_above: int = 0  # of tensors kept until the commit, what lies in memory at most; 0: all
    fingerprint: str = ""
    # Of a node that holds layers this proves that so many steps were committed; of a spare it is that of its plan, and
    # proves nothing (rule 8).
    era: int = 0
    version: int = 0
    holds_state: bool = False
    plan: Plan | None = None  # the newest that it has seen: a new leader may not know it
    last_commit: Commit | None = None  # the newest that it has applied: a leader that does not know it tells the others
    layers: frozenset[int] = frozenset()  # whose state is there, or on its way from a checkpoint
    identity: Identity = field(default_factory=Identity)


@dataclass(frozen=True, slots=True)
class Built:
    """The node has built these layers at their initial state, to begin with: a hash of it by layer."""

    node: str
    incarnation: int
    initial: Mapping[int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """The node lives, and what it is at. Only the newest counts: a lost one is made good by the next."""

    node: str
    incarnation: int
    version: int = 0
    instruction: str = ""  # such as "2B3"; empty while it waits
    # Since the process started. Invariant: never falls within an incarnation; the same holds for times and bytes.
    finished: int = 0
    # Of the present instruction, and what is usual for one like it on this node: see culm.coordinator.detection.
    running_seconds: float = 0.0
    median_seconds: float = 0.0
    deviation_seconds: float = 0.0
    samples: int = 0
    slowness: float = 1.0  # against this node's own first steps; 1.0 as long as that is not beyond doubt
    times: TimeSplit = field(default_factory=TimeSplit)
    sent_bytes: Mapping[str, int] = field(default_factory=dict)  # by peer
    bytes_per_second: float = 0.0  # at which large tensors went lately; 0.0: none did
    # Beside running_seconds, not part of it: storage that stalls says nothing about the node.
    loading_seconds: float = 0.0
    resources: Resources | None = None  # of its process; None: nothing new since the heartbeat before


@dataclass(frozen=True, slots=True)
class Priced:
    """What the price table knows of nodes, as of now. Of a node that it does not know nothing is told."""

    prices: Mapping[tuple[str, int], NodePrice]  # by node and incarnation


@dataclass(frozen=True, slots=True)
class Heard:
    """Heartbeats, each with the time when it came, in their order: many at once cost little more than one."""

    heartbeats: tuple[tuple[float, Heartbeat], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A fact: this incarnation holds the whole reduced gradient of these layers for (era, step), and the state that it
    is to be applied to. It stays true whatever the plan, and is repeated as it was said (rule 6).
    """

    node: str
    incarnation: int
    era: int
    step: int
    # Of the plan under which it was said. What counts are the layers: under the next plan they may be another stage's.
    stage: int
    first_layer: int
    # Of the layers from first_layer on. Whoever holds the gradient has the same norms, to the last bit: they came with
    # it (rule 4). One that is not finite says that the gradient is not (rule 18).
    squared_norms: tuple[float, ...]
    tallies: tuple[float, ...] = ()  # of every microbatch, in order, from holders of the last stage; else empty
    redone: int = 0  # instructions that an heir ran though the lost owner had finished them
    # Where the job audits (rule 25): digests of the layers' state; of forwards of the stage that the node has run
    # again; of what it has taken of such forwards of the stage before.
    states: tuple[int, ...] = ()
    audited: tuple[Audited, ...] = ()
    taken: tuple[Audited, ...] = ()
    # Of the plan whose audits of these layers are done; None: the node does not say, or nobody audits.
    order: PlanOrder | None = None

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
    # The version that the node knows to be committed, and the plan that it obeys. They count after the last commit
    # alone: then no further one shows that the copy follows (rule 17).
    version: int = 0
    order: PlanOrder = (0, 0)


@dataclass(frozen=True, slots=True)
class Read:
    """A fact: this process has read the samples of the step before the bookmark, all of them, and found this."""

    node: str
    incarnation: int
    bookmark: Bookmark


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
    """A neighbour's stream to or from the suspect broke. Said again for as long as it stays broken."""

    node: str
    incarnation: int
    suspect: str
    suspect_incarnation: int  # to which the stream was: of a successor the neighbour knows nothing yet
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
    """The node is to go: its work is handed over at the next commit. Said again on every stream, and when the time that
    is left changes.
    """

    node: str
    why: str
    seconds_left: float | None = None  # from now on, until its machine may be gone; None if nobody knows
    told: bool = False  # to stop: it waits for nobody to come


@dataclass(frozen=True, slots=True)
class Warned:
    """The node may have to go soon, or not: its work is handed over once the others are enough."""

    node: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """The node has written these layers' files of the checkpoint of this step."""

    node: str
    incarnation: int
    era: int
    step: int
    files: Mapping[int, tuple[File, ...]]  # by layer; whoever else holds the layer writes the very same
    loss: float  # of the step that led to this version, as the commit told it
    best_so_far: BestSoFar | None = None  # before this version; None: the node has heard no commit


@dataclass(frozen=True, slots=True)
class Checkpointed:
    """The manifest is written: the checkpoint is whole."""

    checkpoint: Origin


@dataclass(frozen=True, slots=True)
class CheckpointBad:
    """The manifest, or a file that has its hash, holds no state of this model: the checkpoint is not used again."""

    node: str
    origin: Origin
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """The node cannot read what the era begins from, and asks again: no proof against the checkpoint (rule 14).

    ``absent``: the storage answers, but has no such manifest for this node. ``damaged_layer``: it reads other files of
    this layer than the manifest says. ``being_read``: nothing has failed; it takes long.
    """

    node: str
    incarnation: int
    era: int
    origin: Origin
    why: str
    absent: bool = False
    damaged_layer: int | None = None
    being_read: bool = False


class Sight(StrEnum):
    """What the coordinator itself has seen of an origin."""

    THERE = "there"  # the very manifest, and the files of the layer that was asked for
    WRONG = "wrong"  # the storage answers, and has another manifest, or other files, or none: it is gone for good
    AWAY = "away"  # the storage does not answer, or shows nothing at all
    BUSY = "busy"  # it looks yet


@dataclass(frozen=True, slots=True)
class Examined:
    """The coordinator has looked at the origin that a node does not see."""

    origin: Origin
    sight: Sight
    why: str = ""


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole checkpoint, and what its bits depend on."""

    origin: Origin
    identity: Identity
    evaluated: tuple[float, ...] = ()  # of its weights, if they were


@dataclass(frozen=True, slots=True)
class CheckpointsFound:
    """The whole checkpoints of this job that the storage shows, oldest first; ``why``: it does not answer yet."""

    whole: tuple[Whole, ...] = ()
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
    | Priced
    | Spent
    | Ready
    | CaughtUp
    | Read
    | Fetched
    | Pausing
    | Unpausing
    | SaveAsked
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
    | CheckpointsFound
    | NodeFailed
    | Condemned
    | Tick
)
