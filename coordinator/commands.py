"""What the coordinator can order, and have done: plain frozen data."""

# The commands of a decision are carried out in their order, and before those of the next decision. So a node hears of a
# commit before it hears of its goodbye.
#
#     to all that attend     Publish, Commit; only to nodes that have said where they stand
#     to one node            SendPlan, SendCommit, Ask, Dismiss
#     to the store           Persist, Record; neither is waited for
#     to the storage         WriteManifest, Examine, FindCheckpoints, whose results come back as reports;
#                            WriteEvaluation, Retain
#     to the leader itself   LeadAnew
#
# Persist is done once the orders are on their way, wherever it stands: nodes wait for orders, and none waits for Redis.
# If the coordinator dies in between, the nodes that obeyed tell its successor what was ordered (rule 8).

from collections.abc import Mapping
from dataclasses import dataclass, field

from culm.pipeline.checkpoints.manifest import File
from culm.pipeline.commit import Commit as Commit  # as a command: send it to every attached node
from culm.pipeline.early_stop import BestSoFar
from culm.pipeline.identity import Identity
from culm.pipeline.money.kinds import Event
from culm.pipeline.origin import Origin
from culm.pipeline.plan import Plan


@dataclass(frozen=True, slots=True)
class Publish:
    """Send the plan to every attached node that has said where it stands."""

    plan: Plan


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
    # Neither: the process ends, with ``why`` as its error. Invariant: not both.
    join_anew: bool = False  # it starts again as another incarnation, without state
    goodbye: bool = False  # nothing is wrong with the node: it ends with exit code 0


@dataclass(frozen=True, slots=True)
class Ask:
    """Have the node say once more where it stands (Available, and its facts)."""

    node: str


@dataclass(frozen=True, slots=True)
class LeadAnew:
    """Another leader had this leader's term, or a higher one: nothing more is decided before a term above (rule 15)."""

    above: int
    why: str


@dataclass(frozen=True, slots=True)
class Persist:
    """Write the state that a successor needs, soon: what of it is lost the nodes tell (rule 8)."""


@dataclass(frozen=True, kw_only=True)
class WriteManifest:
    """Every layer of the checkpoint is written: make it whole, then report it (Checkpointed)."""

    era: int
    step: int
    loss: float
    fingerprint: str
    files: Mapping[int, tuple[File, ...]]
    best_so_far: BestSoFar | None = None  # before this version; None: nobody who is left knows
    identity: Identity = field(default_factory=Identity)


@dataclass(frozen=True, slots=True)
class WriteEvaluation:
    """Write beside a whole checkpoint how good its weights are: the loss, then each of the job's metrics."""

    folder: str
    evaluated: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Retain:
    """Delete what is older than the checkpoint of this step, whole or not, but for the checkpoints of these steps."""

    step: int
    kept: frozenset[int]  # steps; the origin that nodes may still be reading is among them


@dataclass(frozen=True, slots=True)
class Examine:
    """Look whether the storage answers, and has this very checkpoint, then report it (Examined).

    ``era``: that is to begin from it. ``layer``: this one's files are read as well, and compared with the manifest.
    """

    era: int
    origin: Origin
    layer: int | None = None


@dataclass(frozen=True, slots=True)
class FindCheckpoints:
    """Look which whole checkpoints of this job there are, until the storage answers (CheckpointsFound)."""


@dataclass(frozen=True, slots=True)
class Record:
    """Add to the event log, with what is to be said of it in words."""

    event: Event
    text: str

    @property
    def kind(self) -> str:
        return self.event.kind


ForStorage = WriteManifest | WriteEvaluation | Retain | Examine | FindCheckpoints
Command = Publish | Commit | SendPlan | SendCommit | Dismiss | Ask | LeadAnew | Persist | ForStorage | Record
