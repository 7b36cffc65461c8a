"""What the coordinator knows: plain frozen data."""

# What outlives the process (``edges.persistence``) is what a successor begins with: term and era, the plan, what is
# committed and how, checkpoints, who was fenced, what operators asked for. What nodes tell of it counts more. All else
# is learnt anew: a coordinator that takes over hears from every node what it holds, and goes on with nothing half done.
#
# Invariants (``validate`` checks them after every report):
#
# - the plan's era is the state's, and no plan is newer than the state's generation;
# - every holder that the plan names is a node here, with the incarnation that the plan names;
# - a fenced incarnation is no node;
# - facts are of (era, committed) alone, and of nodes that are here.

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from culm.coordinator.agreement import Agreement
from culm.coordinator.checks import Checks
from culm.coordinator.commands import WriteManifest
from culm.coordinator.failures import Failures
from culm.coordinator.node_prices import FREE, NodePrice
from culm.coordinator.reports import CheckpointBad, Unread
from culm.coordinator.requests import Limits, Saving, Spending
from culm.coordinator.shares import Shares
from culm.coordinator.slowness import Pace
from culm.coordinator.tensor_work import Bounds, TensorWork
from culm.pipeline.bookmark import Bookmark
from culm.pipeline.commit import Commit
from culm.pipeline.early_stop import EarlyStop
from culm.pipeline.evaluations import BY_LOSS, NEVER, Best, Evaluations
from culm.pipeline.layer_bytes import LayerBytes
from culm.pipeline.machine import Machine
from culm.pipeline.neighbours import FRESH, Staleness
from culm.pipeline.origin import Origin
from culm.pipeline.patience import Patience
from culm.pipeline.pause import Pause
from culm.pipeline.plan import Plan
from culm.pipeline.resources import Resources
from culm.pipeline.tally import LOSS_ALONE, TallyForm
from culm.pipeline.times import TimeSplit


class Phase(StrEnum):
    """Where the run stands."""

    WAITING = "waiting"  # for nodes: to begin, or to go on
    RUNNING = "running"
    PAUSED = "paused"  # no step is begun until somebody lets it go on; see culm.coordinator.pausing
    DONE = "done"
    FAILED = "failed"  # the job itself is at fault


@dataclass(frozen=True, slots=True)
class BulksBefore:
    """What a market took before this run began, as a trace of it tells: how many machines went at once, how often."""

    shares: tuple[float, ...]  # of each bulk: the machines that went, of those that were there
    hours: float  # in which these were seen


NOTHING_BEFORE = BulksBefore((), 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The parts of the job and of the service's settings that decisions depend on. Times in seconds."""

    # What the job asks for. The present plan may have fewer, after a new cut for fewer nodes, or up to ``most_stages``.
    stages: int
    microbatches: int  # of each pipeline
    steps: int  # that are trained
    pipelines: int = 1
    by_value: bool = False  # whether a shape is chosen by dollars for a step, in place of its length
    measured: bool = False  # whether the model is cut by times that nodes measure
    clip_norm: float | None = None
    tally: TallyForm = LOSS_ALONE  # numbers that a microbatch tells
    evaluations: Evaluations = NEVER
    best: Best = BY_LOSS  # which evaluation is better than another
    keeps_best: bool = False  # whether the best checkpoint stays; else it does as long as newer ones leave it
    worse_allowed: int = 0  # evaluations in a row that are no better than the best, until the run ends; 0: any number
    copies: int = 2  # of every stage, the owner's among them; 1: without redundancy
    chooses_copies: bool = False  # whether their number follows how nodes are lost, and what copies cost
    bulks_before: BulksBefore = NOTHING_BEFORE
    auto: bool = False  # which redundancy is chosen at run time
    on_accelerators: bool = False  # whose memory holds the layers; boundary tensors lie in the host's
    hosts_standbys: bool = False  # whether standbys lie in the host's memory, beside an accelerator's
    nodes: int = 0  # how many to wait for before the run begins; 0: one for each stage
    most_stages: int = 0  # 0: as many as the job asks for
    spares: int = 1  # of one pipeline, nodes that ``most_stages`` leaves idle, to repair with
    settle_seconds: float = 30.0  # how long the set of nodes is left as it is before the model is cut anew for it
    seed_bytes_per_second: float = 1e8
    checkpoint_url: str = ""
    checkpoint_every: int = 0  # steps; 0: none is saved but after the last one, or where every node is to go
    checkpoints_kept: int = 3
    searches: bool = False  # whether whole checkpoints may lie there that a leader does not know of as it begins
    samples_per_step: int = 0
    tokens_per_step: int = 0  # 0: the job does not say
    # How long nodes keep final weights that are neither saved nor fetched, and a run that has come to a limit.
    keep_after_done: float = 3600.0
    limits: Limits = field(default_factory=Limits)
    audit: float = 0.0  # the share of forwards that are audited; above 0 holders compare their state, too (rule 25)
    # Whether a node runs all stages of its pipelines, and the cut stays: on a graph every layer is a stage.
    whole_pipelines: bool = False
    staleness: Staleness = FRESH  # of what chunks of a graph take of each other
    nonfinite: str = "stop"  # or "skip": what becomes of a step whose loss or gradient is not finite
    tensor_work: Bounds | None = None  # None: how many tensor workers there are is not decided here
    coordinator: str = ""  # the name of the one that decides, as events tell it
    same_hardware: bool = True  # whether a node of another kind than those before it is refused
    # Silence after which a node is lost; also for how long a broken order stream may mend if no neighbour misses the
    # node. Every other limit is in ratio to it.
    patience: Patience = field(default_factory=Patience)

    @property
    def redundancy(self) -> bool:
        return self.copies > 1

    @property
    def microbatches_of_step(self) -> int:
        return self.pipelines * self.microbatches

    @property
    def kept_microbatches(self) -> int:
        """Of each pipeline: whose boundary tensors are kept until a commit, those of an evaluation among them.

        Of these there is no gradient, so two count as one.
        """
        asked = self.evaluations
        size = max(1, self.samples_per_step // self.microbatches_of_step)  # samples in one that is trained
        return self.microbatches + -(-(asked.microbatches * asked.size) // (2 * size) if asked.every else 0)

    @property
    def end(self) -> int:
        """How many steps are committed when a run that does not end early is done, its closing step among them."""
        return self.evaluations.end(self.steps)

    def evaluated_in(self, step: int) -> int:
        """Numbers that each pipeline tells of what the step evaluates."""
        return self.evaluations.in_step(step, self.steps) * self.tally.evaluated

    def told_in(self, step: int) -> int:
        """All numbers that the loss tells in a step."""
        trained = self.microbatches if step < self.steps else 0
        return self.pipelines * self.tally.told(trained, self.evaluations.in_step(step, self.steps))


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node that has joined with this incarnation and is not lost."""

    node: str
    incarnation: int
    address: str
    pid: int = 0
    zone: str = ""
    available: bool = False  # has built the model
    layer_seconds: tuple[float, ...] = ()  # that it has measured, and why it has not: see culm.coordinator.cutting
    unmeasured: str = ""
    memory_bytes: int = 0  # that it may use; 0: nobody knows, and nothing binds it
    spill_above: int = 0  # bytes of boundary tensors that it keeps in memory; 0: all of them
    # None while its order stream is broken. Invariant: of this and the next one exactly one is None.
    attached_since: float | None = 0.0
    detached_at: float | None = None
    heard_at: float = 0.0
    version: int = 0
    instruction: str = ""
    finished: int = 0  # instructions since the process started: the progress watermark
    running_seconds: float = 0.0  # how long its present piece of work has been running, without the time of loading
    loading_seconds: float = 0.0  # how long it has been loading samples, if it does
    median_seconds: float = 0.0  # of its own pieces of work like that one, and their deviation
    deviation_seconds: float = 0.0
    samples: int = 0
    pace: Pace = field(default_factory=Pace)  # how many times slower it has become since it started
    times: TimeSplit = field(default_factory=TimeSplit)  # where its compute thread's time went
    sent_bytes: Mapping[str, int] = field(default_factory=dict)  # of tensors, by peer
    bytes_per_second: float = 0.0  # at which large ones went lately
    resources: Resources | None = None  # of its process, as of its last look; on a graph workers are wanted by it
    machine: Machine = field(default_factory=Machine)  # what it runs on
    price: NodePrice = FREE  # as far as the price table knows it
    draining: str = ""  # why it is to go
    warning: str = ""  # why it may have to go soon
    leaves_at: float | None = None  # when its machine may be gone. Invariant: None unless ``draining``
    told: bool = False  # its process was told to stop: it waits for nobody to come. Invariant: only if ``draining``
    condemned_at: float | None = None  # when it was ordered to die
    announced: bool = True  # the event log knows that it has joined
    back: bool = False  # it has opened its order stream again, and the event log does not know yet
    gone: str = ""  # why it is to be declared lost, once this leader has heard from the others


@dataclass(frozen=True, slots=True)
class Missed:
    """Since when a node has been saying that it does not reach another, and when it said so last."""

    # ``first`` is moved on by every commit that needed both nodes, also beyond ``last``: see culm.coordinator.links.
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


@dataclass(frozen=True, slots=True)
class Watch:
    """Since when the run has been at which step, and what its last steps took. See culm.coordinator.watchdog."""

    era: int = 0
    step: int = 0
    at: float | None = None  # when this step was first seen; None: never looked at
    recent: tuple[float, ...] = ()  # seconds of the last steps
    stalled: str = ""  # for what a run that stands still waits; empty while it does not


Layers = Mapping[str, frozenset[int]]  # node -> layers


@dataclass(frozen=True, slots=True, kw_only=True)
class LostOwner:
    """A stage whose owner was lost in the step being committed, kept until that commit."""

    node: str
    stage: int
    heir: str
    at: float
    detect_seconds: float  # silence of the lost node before it was declared lost
    resumed_at: float | None = None
    redone: int = 0


class Search(StrEnum):
    """Whether this leader knows which whole checkpoints there are.

    What was persisted may name none but such that have been deleted since: Redis may have come back older.
    """

    NEEDED = "needed"  # before an era begins
    UNDER_WAY = "under way"
    OVER = "over"


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """How it stands with the storage of checkpoints: what is asked of it, and what it does not do."""

    # Node -> why it has not read the era's origin. Invariant: once an attempt has failed, the last that did.
    unread: Mapping[str, Unread] = field(default_factory=dict)
    proof: CheckpointBad | None = None  # that is looked at once a takeover is over
    examined: bool = False  # whether the coordinator is looking at the origin itself. Invariant: one look at a time
    fault: str = ""  # why no checkpoint can be written at present: told once, until this one is whole, or a newer one
    fault_step: int = 0  # of the checkpoint that this is about; 0: none
    search: Search = Search.OVER  # invariant: no era begins before it is over
    proved_bad: frozenset[Origin] = frozenset()  # to this leader: a search may find them again
    # The step of the newest checkpoint that a commit took off the record since nodes write it anew; 0: none. The one of
    # before is whole until they do.
    written_over: int = 0
    # Of this era: the steps whose manifests were ordered, and those that wait until their state is beyond doubt.
    ordered: frozenset[int] = frozenset()
    pending: tuple[WriteManifest, ...] = ()


@dataclass(frozen=True, slots=True)
class Ending:
    """How far the run is on its way to its end, which is decided once and persisted (rule 17)."""

    done_at: float | None = None  # since when every step is committed
    early_stop: EarlyStop | None = None  # why there are fewer steps than the job asks for. Invariant: as the plan says
    fetched: str = ""  # who has the final weights whole, in words; empty: nobody has fetched them
    # Why the nodes were let go; empty: they were not. Invariant: if they were the run is DONE, and without a plan.
    released: str = ""


@dataclass(frozen=True, slots=True)
class Stopping:
    """Every node is to go, so that nobody is left to hand over to: they go once a last checkpoint is whole."""

    since: float
    step: int | None = None  # of that checkpoint; None: no commit has asked for it yet


@dataclass(frozen=True, kw_only=True)
class State:
    """Everything that the coordinator decides from. ``committed`` counts steps."""

    settings: Settings
    # -- who leads, and where the run stands
    term: int = 1
    leader: int = 0  # drawn by whoever leads: a plan of this term without it is another leader's (rule 15)
    phase: Phase = Phase.WAITING
    # Invariant: above every era that an earlier term began, so two leaders at once never begin the same one (rule 1).
    era: int = 0
    # Steps, the closing one among them. Invariant: never falls within an era.
    committed: int = 0
    # Of the newest plan that was made, published or not. Invariant: never falls.
    generation: int = 0
    plan: Plan | None = None  # None while too few nodes are there to begin an era, and once all were let go
    # -- what all nodes have in common; empty until the first one has built the model
    layer_costs: tuple[float, ...] = ()  # parameters of each
    layer_seconds: tuple[float, ...] = ()  # by which the model is cut, once known: see culm.coordinator.cutting
    layer_bytes: tuple[LayerBytes, ...] = ()
    fingerprint: str = ""
    agreement: Agreement = field(default_factory=Agreement)
    # -- who is there
    nodes: Mapping[str, Node] = field(default_factory=dict)
    # Incarnations that were declared lost, or left: refused for good. Invariant: none of them is in ``nodes``; bounded.
    fenced: frozenset[tuple[str, int]] = frozenset()
    fenced_up_to: int = 0  # the newest of those that were left out: incarnations are microseconds since 1970
    evidence: Mapping[str, Mapping[str, Missed]] = field(default_factory=dict)  # suspect -> reporter
    parted: Mapping[str, Parted] = field(default_factory=dict)
    # -- the step being committed
    # Who holds which layer's whole reduced gradient of (era, committed), over a copy at that version: rule 6's facts.
    facts: Layers = field(default_factory=dict)
    # Who, being seeded, reported so for an earlier step: it has caught up, and commits wait for it from now on.
    following: Layers = field(default_factory=dict)
    # Layer -> squared norm, and the tallies of the step's microbatches. The first report of each counts: an heir
    # reports what its owner had reported already, and to add that up would count it twice (rule 7).
    norms: Mapping[int, float] = field(default_factory=dict)
    tallies: tuple[float, ...] = ()
    checks: Checks = field(default_factory=Checks)  # what was computed twice, where the job audits
    # Of an iterable dataset, by version, as the first node has told it. Invariant: few, about now (bookmarks.KEPT).
    bookmarks: Mapping[int, Bookmark] = field(default_factory=dict)
    last_commit: Commit | None = None
    # Invariant: empty after every commit, and added to only while the run is RUNNING.
    lost_owners: tuple[LostOwner, ...] = ()
    # When time was last looked at. A gap means that this process stood still: nobody's silence counts then.
    last_tick: float | None = None
    # -- copies
    # Stage -> since when it is without a hot standby. Invariant: just those stages of the present plan.
    exposed_since: Mapping[int, float] = field(default_factory=dict)
    origin: Origin = field(default_factory=Origin)  # what the present era begins from (rule 14)
    resumed: bool = False  # whether the run began from a checkpoint
    # Whole ones, oldest first: what a later era may begin from. Invariant: what is about to be deleted is not here.
    checkpoints: tuple[Origin, ...] = ()
    # Step -> what was evaluated of its weights. Invariant: of checkpoints, and of a few new steps (best.KEPT).
    evaluated: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    # By step. Invariant: of few steps, the newest (checkpoints.SHARES_KEPT).
    saved: Mapping[int, Shares] = field(default_factory=dict)
    storage: Storage = field(default_factory=Storage)
    # -- what decisions about the shape go by
    changed_at: float = 0.0  # when the set of nodes, or the cut of the model, changed last
    lost_at: tuple[float, ...] = ()  # when each of the last nodes was lost
    copies: int = 0  # of every stage, if the run has chosen a number; see ``culm.coordinator.copies``
    # Since when a new leader waits for the nodes to attach to it; None: it decides. Meanwhile it loses nobody and
    # commits nothing: what was persisted may be older than what the nodes know (rule 8).
    took_over_at: float | None = None
    review: Review | None = None
    watch: Watch = field(default_factory=Watch)
    tensor_work: TensorWork = field(default_factory=TensorWork)
    # -- what operators ask for
    # Asked for. Invariant: set in PAUSED, and as the plan says then; persisted, as the limits are.
    pause: Pause | None = None
    paused_at: float | None = None  # since when it is in effect, by this process's clock
    limits: Limits | None = None  # in place of the job's
    spending: Spending | None = None  # None: nobody has told yet
    saving: Saving | None = None
    # -- the end
    ending: Ending = field(default_factory=Ending)
    stopping: Stopping | None = None
    waits: Mapping[str, str] = field(default_factory=dict)  # what the run waits for, in words, by topic: see waiting
    failures: Failures = field(default_factory=Failures)
    detail: str = "waiting for nodes"

    @property
    def steps(self) -> int:
        """That are trained: those of the job, or fewer where the run has ended early."""
        stop = self.ending.early_stop
        return stop.step if stop is not None else self.settings.steps

    @property
    def end(self) -> int:
        """How many steps are committed when the run is done, its closing step among them."""
        return self.settings.evaluations.end(self.steps)

    @property
    def rests(self) -> bool:
        """Whether no step runs though there is a plan: nothing is in flight."""
        return self.phase in (Phase.DONE, Phase.PAUSED)

    @property
    def takes_old(self) -> bool:
        """Whether the step takes values of earlier ones, which lie with present owners and in no checkpoint."""
        return self.settings.staleness.lag(self.committed, self.origin.step) > 0

    @property
    def copies_wanted(self) -> int:
        """Of every stage; 1 without redundancy."""
        return max(self.copies, self.settings.copies)
