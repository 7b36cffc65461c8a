"""The pieces of work that a worker gives its node's one compute thread, one after another: frozen data."""

from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, Self, TypeVar

from culm.pipeline.bookmark import Bookmark
from culm.pipeline.early_stop import BestSoFar
from culm.pipeline.instruction import Duty, Instruction
from culm.pipeline.ties import Addend
from culm.pipeline.tree import Block


class ValueFacts(Protocol):
    """What a worker reads of a value; all else in it is opaque to it. The first two are of reduced gradients."""

    @property
    def squared_norms(self) -> tuple[float, ...]: ...
    @property
    def tallies(self) -> tuple[float, ...]: ...
    @property
    def digest(self) -> int: ...
    def part(self, place: int) -> Self:
        """Of a backward's result on a graph: what goes to the chunk at this place (``flow.results``)."""
        ...


V = TypeVar("V", bound=ValueFacts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrange:
    """Hold exactly these layers (new ones at their initial state) and be ready to run these duties.

    ``anew``: a new era; drop all state first.
    """

    layers: tuple[int, ...]
    duties: tuple[tuple[Duty, range], ...]  # with their layers: owned, or to be run ahead
    stages: int  # of the plan: where the chain of stages ends
    step: int
    anew: bool
    fresh: tuple[Duty, ...] = ()  # that begin the step again: what was run ahead for them does not count
    initial: tuple[int, ...] = ()  # layers whose initial state is what the run goes on from
    addends: tuple[tuple[Addend, ...], ...] = ()  # of each of the layers; empty: one bucket, with the layer's number


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduce(Generic[V]):
    """Every backward of these pipelines is done at the stage: merge their gradients into the block's."""

    stage: int
    step: int
    block: Block
    # Give the block's gradient, a value an addend, and keep nothing of it; else keep it for a larger one.
    leaves: bool
    tenures: tuple[tuple[Duty, int], ...]  # of the block's duties, ascending; see Run
    left: frozenset[int] = frozenset()  # layers that were merged and given while the last backward ran
    # What has left in smaller blocks of these pipelines. Of an addend whose whole sum is here it is not among these,
    # and nothing is merged.
    given: tuple[tuple[Addend, Block, V], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Run(Generic[V]):
    """A forward or backward. ``operands``: the activations or gradients that it takes, in ``flow.inputs``'s order."""

    instruction: Instruction
    step: int
    tenure: int  # since when the node has the duty, see duty.py; negative: the node stands by for it
    operands: tuple[V, ...] = ()
    accumulates: bool = True  # False: what it adds to parameter gradients is in what the lost owner shipped
    ships: int = 0  # after so many microbatches give what the parameter gradients have come to
    # The block that leaves once this backward is done. Its layers may be given before that, one by one, as the backward
    # comes to the layers before them: see ``Summing``.
    completes: Reduce[V] | None = None

    @property
    def redundant(self) -> bool:
        return self.tenure < 0


@dataclass(frozen=True, slots=True)
class Resume(Generic[V]):
    """Accumulate the duty's parameter gradients upon these, which are those of the first ``count`` microbatches."""

    duty: Duty
    step: int
    count: int
    accumulated: V


@dataclass(frozen=True, slots=True)
class Sum(Generic[V]):
    """What has come of a bucket of the layer covers all pipelines: add each use up the tree, then the uses."""

    stage: int
    layer: int
    bucket: int
    step: int
    uses: tuple[tuple[int, tuple[tuple[Block, V], ...]], ...]  # ascending; the blocks of each too, and disjoint


@dataclass(frozen=True, slots=True)
class Apply(Generic[V]):
    """The one place where weights change: apply a committed step to these layers."""

    step: int
    scale: float
    gradients: tuple[tuple[int, tuple[V, ...]], ...]  # (layer, reduced gradients, as ``Plan.addends`` has them)
    catch_up: bool = False  # for one layer that was seeded at an older version


@dataclass(frozen=True, slots=True)
class Install(Generic[V]):
    """Replace a layer's state by a copy. ``source``: the holder that sent it; empty: the checkpoint of the era."""

    layer: int
    version: int
    state: V
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """Copy these layers, all at version ``step`` of an era, for a checkpoint.

    ``loss``: of the step that led to this version, and what was the best before it: the commit that tells them is at
    hand only now. ``last``: of the run's last step, or of a pause: no later checkpoint makes good for it.
    """

    era: int
    step: int
    layers: tuple[int, ...]
    loss: float
    bookmark: Bookmark | None = None  # the newest known; whoever saves layer 0 writes it
    best_so_far: BestSoFar | None = None  # None: this node has heard no commit
    last: bool = False


@dataclass(frozen=True, slots=True)
class Check:
    """Take the digest of a layer's state, which is at this version: its holders compare theirs."""

    layer: int
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit(Generic[V]):
    """Run a forward again that another node has run, and take its output's digest. It leaves nothing behind."""

    duty: Duty
    layers: range  # of the duty's stage
    stages: int  # of the plan
    step: int
    microbatch: int
    operand: V | None  # None: the stage takes samples


class Load(NamedTuple):
    """Take a microbatch's samples from the dataset before a forward wants them, while there is nothing to do."""

    step: int
    pipeline: int
    microbatch: int
    evaluated: bool = False  # it is one of an evaluation, from that one's dataset

    def __str__(self) -> str:
        return f"loading microbatch {self.microbatch}{' of the evaluation' if self.evaluated else ''}"


Work = Arrange | Run[V] | Resume[V] | Reduce[V] | Sum[V] | Apply[V] | Install[V] | Save | Check | Audit[V]
