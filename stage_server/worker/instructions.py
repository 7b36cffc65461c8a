"""What a worker is ordered, and what it asks its node to compute and to send: frozen data between them and I/O."""

from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

from culm.pipeline.keys import Key
from culm.pipeline.origin import Origin
from culm.pipeline.plan import Plan, PlanOrder
from culm.pipeline.schedule import Instruction


class Facts(Protocol):
    """What a worker reads of a reduced gradient; all else in a value is opaque to it."""

    @property
    def squared_norm(self) -> float: ...
    @property
    def losses(self) -> tuple[float, ...]: ...


V = TypeVar("V", bound=Facts)

# ---- ordered by the coordinator --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CommitOrder:
    """Apply the step; then adopt the plan, if there is one."""

    term: int
    era: int
    step: int
    scale: float
    next_plan: Plan | None = None
    loss: float = 0.0
    save: bool = False  # a checkpoint of the step, whatever its number


# ---- computed on the node's one compute thread, in order ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Arrange:
    """Hold exactly these layers (new ones at their initial state) and be ready to run the owned stages.

    ``anew``: a new era; drop all state first.
    """

    layers: tuple[int, ...]
    stages: tuple[tuple[int, int, int], ...]  # (stage, first layer, end layer): owned, or to be run ahead
    step: int
    anew: bool
    fresh: tuple[int, ...] = ()  # stages that begin the step again: what was run ahead for them does not count
    initial: tuple[int, ...] = ()  # layers whose initial state is what the run goes on from


@dataclass(frozen=True, slots=True)
class Run(Generic[V]):
    """A forward or backward. ``operand`` is the activation or gradient it takes; None at the pipeline's ends."""

    instruction: Instruction
    step: int
    tenure: int  # the generation in which this node became the stage's owner; negative: it stands by for it
    operand: V | None
    accumulates: bool = True  # False: what it adds to parameter gradients is in what the lost owner shipped
    ships: int = 0  # after so many microbatches give what the parameter gradients have come to

    @property
    def redundant(self) -> bool:
        return self.tenure < 0


@dataclass(frozen=True, slots=True)
class Resume(Generic[V]):
    """Accumulate the stage's parameter gradients upon these, which are those of the first ``count`` microbatches."""

    stage: int
    step: int
    count: int
    accumulated: V


@dataclass(frozen=True, slots=True)
class Reduce:
    """Every backward of the stage is done: give its reduced gradient, a value a layer."""

    stage: int
    step: int
    tenure: int


@dataclass(frozen=True, slots=True)
class Apply(Generic[V]):
    """The one place where weights change: apply a committed step to these layers."""

    step: int
    scale: float
    gradients: tuple[tuple[int, V], ...]  # (layer, reduced gradient)
    catch_up: bool = False  # for one layer that was seeded at an older version


@dataclass(frozen=True, slots=True)
class Install(Generic[V]):
    """Replace a layer's state by a copy that another holder sent."""

    layer: int
    version: int
    state: V


@dataclass(frozen=True, slots=True)
class Save:
    """Copy these layers, all at version ``step``, for a checkpoint."""

    step: int
    layers: tuple[int, ...]


class Load(NamedTuple):
    """Take a microbatch's samples from the dataset before a forward wants them, while there is nothing to do."""

    step: int
    microbatch: int

    def __str__(self) -> str:
        return f"loading microbatch {self.microbatch}"


Work = Arrange | Run[V] | Resume[V] | Reduce | Apply[V] | Install[V] | Save

# ---- sent -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Send:
    """Send the outbox's value of the key to a peer."""

    peer: str
    key: Key
    later: bool = False  # the node's own next work goes first


@dataclass(frozen=True, slots=True)
class Acknowledge:
    peer: str
    key: Key


@dataclass(frozen=True, slots=True)
class SayHello:
    """Tell a peer which plan this node obeys; it answers with what it has."""

    peer: str


@dataclass(frozen=True, slots=True)
class AnswerHello:
    peer: str
    order: PlanOrder
    era: int
    version: int


@dataclass(frozen=True, slots=True)
class Forfeit:
    """What this node holds can be brought up to the committed step no more: it is to join anew, holding nothing."""

    why: str


@dataclass(frozen=True, slots=True)
class FetchLayers:
    """Ask a holder for the state of these layers."""

    peer: str
    layers: tuple[int, ...]
    era: int


@dataclass(frozen=True, slots=True)
class ReportReady:
    era: int
    step: int
    stage: int
    first_layer: int
    squared_norms: tuple[float, ...]
    losses: tuple[float, ...]
    redone: int


@dataclass(frozen=True, slots=True)
class RestoreLayers:
    """Read these layers' state from the checkpoint that the era begins from."""

    origin: Origin
    layers: tuple[int, ...]
    era: int


@dataclass(frozen=True, slots=True)
class ReportCaughtUp:
    """Layers that were behind are at this node's version."""

    era: int
    first_layer: int
    end_layer: int
    version: int
    order: PlanOrder  # of the plan that this node obeys


@dataclass(frozen=True, slots=True)
class ReportResumed:
    generation: int
    stage: int


@dataclass(frozen=True, slots=True)
class Adopted:
    """A plan took effect: streams to peers that it does not name can go, others must be there."""

    plan: Plan


Effect = (
    Send
    | Acknowledge
    | SayHello
    | AnswerHello
    | Forfeit
    | FetchLayers
    | RestoreLayers
    | ReportReady
    | ReportCaughtUp
    | ReportResumed
    | Adopted
)
