"""Where a node stands in the run: whom it obeys, in which era and step it is, and what it knows to be committed."""

from collections import deque
from dataclasses import dataclass, field
from functools import lru_cache

from culm.pipeline import flow, keys
from culm.pipeline.bookmark import Bookmark
from culm.pipeline.commit import Commit
from culm.pipeline.evaluations import NEVER, Evaluations
from culm.pipeline.instruction import Duty, Instruction, Pass
from culm.pipeline.keys import ACCUMULATED, Key
from culm.pipeline.neighbours import Neighbours
from culm.pipeline.plan import Plan
from culm.pipeline.schedule import Schedule
from culm.pipeline.ties import Addend, Ties
from culm.pipeline.tree import Block

# Steps beyond the first uncommitted one of which this node remembers who has their tensors. A peer that waits for this
# node's work may know one more commit, and may have a tensor of the step after that (``Mailbox``). A node that is being
# seeded may be any number of commits behind, since nobody waits for it: its orders come on a stream of their own. Of
# steps still further ahead it forgets what peers say, which would stay in memory until then. When it comes to such a
# step a repeat costs little, and is acknowledged again (rule 4).
AHEAD = 2


@lru_cache(maxsize=1024)
def _order(duty: Duty, stages: int, schedule: Schedule, trains: bool, evaluated: int) -> tuple[Instruction, ...]:
    evaluations = tuple(Instruction(duty, "E", m) for m in range(evaluated))
    return evaluations + (schedule.order(duty, stages) if trains else ())


@dataclass(slots=True, kw_only=True)
class Position:
    """The worker moves it; of its parts ``Later`` alone writes here, the term."""

    node: str
    incarnation: int
    schedule: Schedule
    job_steps: int  # that are trained, unless the run ends early
    evaluations: Evaluations = NEVER
    ties: Ties = ()  # the model's, which no plan tells
    audit: float = 0.0  # the share of forwards that are audited; the same
    neighbours: Neighbours | None = None  # which chunks exchange values, where the job trains on a graph; the same

    term: int = 0  # the highest heard of; it never falls (rule 12)
    era: int = 0  # of the plan; part of every key, so that nothing of the era before fits (rule 1)
    version: int = 0  # steps applied to all that is held; also the number of the running step. ``begin`` moves it
    # Of the running step, as ``begin`` puts them down; nothing runs before an era has begun.
    trains: bool = False  # the closing step does not
    microbatches: int = 0  # a pipeline's, that it trains on
    evaluated: int = 0  # a pipeline's, that it evaluates
    rests: bool = False  # no step runs here: the run is over, or paused before this one
    # The one obeyed. Its (term, generation) never falls (rule 3). Streams read it without the node's lock: it is
    # replaced whole, and it is never None again.
    plan: Plan | None = None
    # Known and not applied. Invariant: their steps are version, version + 1, ... without a gap (rule 2).
    commits: deque[Commit] = field(default_factory=deque)
    # The newest told. It stays over eras. Whoever reads samples looks at it without the node's lock: it is replaced
    # whole.
    bookmark: Bookmark | None = None

    @property
    def committed(self) -> int:
        """Steps known to be committed, applied here or not yet."""
        return self.version + len(self.commits)

    def awaits(self, key: Key) -> bool:
        """Whether it is of use to know who has the tensor: it is of this era, and of a step that this node may owe."""
        return key.era == self.era and key.step <= self.committed + AHEAD

    def keeps(self, key: Key) -> bool:
        """Whether the tensor is still of use here: of the running step, a later one, or an epoch before on a graph."""
        old = self.neighbours.staleness.most if self.neighbours is not None and key.kind in flow.CROSSES else 0
        return key.step >= self.version - old

    @property
    def steps(self) -> int:
        """That are trained. A plan may tell sooner than its commit that the run has ended early: then the commit of the
        step that was to be trained is still to be applied here.
        """
        stop = self.plan.early_stop if self.plan is not None else None
        return stop.step if stop is not None and self.version > stop.step else self.job_steps

    @property
    def end(self) -> int:
        """The version at which the run is over."""
        return self.evaluations.end(self.steps)

    @property
    def is_paused(self) -> bool:
        """Whether the plan has this node begin no step now."""
        plan = self.plan
        return plan is not None and plan.pause is not None and self.version >= plan.step

    @property
    def will_pause(self) -> bool:
        """Whether the run pauses once all commits that are known here are applied."""
        plans = [commit.next_plan for commit in self.commits if commit.next_plan is not None]
        plan = plans[-1] if plans else self.plan
        return plan is not None and plan.pause is not None

    def begin(self, version: int) -> None:
        """The step of this number is the running one from now on."""
        self.version = version
        self.trains = version < self.steps
        self.rests = version >= self.end or self.is_paused
        (_, self.microbatches), (_, self.evaluated) = self.forwards_in(version)

    def places_of(self, bucket: int) -> list[tuple[int, int]]:
        """Each layer that the bucket's gradient is applied to, and its place there."""
        assert self.plan is not None
        return self.plan.places_of(bucket)

    def size_of(self, stage: int) -> int:
        """How many instructions a duty of the stage is in the running step."""
        return self.evaluated + self.microbatches * (3 if self.schedule.splits_at(stage) else 2)

    def order(self, duty: Duty) -> tuple[Instruction, ...]:
        """All that the duty is in the running step."""
        assert self.plan is not None
        return _order(duty, len(self.plan.stages), self.schedule, self.trains, self.evaluated)

    def inputs_of(self, instruction: Instruction) -> tuple[Key, ...]:
        """The keys of what the instruction takes in the running step."""
        assert self.plan is not None
        return flow.inputs(instruction, self.plan, self.era, self.version)

    def results_of(self, instruction: Instruction) -> tuple[Key, ...]:
        """The keys of what it gives in the running step."""
        assert self.plan is not None
        return flow.results(instruction, self.plan, self.era, self.version)

    def reduced(self, bucket: int) -> Key:
        """The key of a bucket's reduced gradient of the running step."""
        assert self.plan is not None
        return keys.reduced(self.era, self.version, self.plan.stage_of(bucket), bucket)

    def partial(self, addend: Addend, block: Block) -> Key:
        """The key of what a block's gradient adds to a bucket, of the running step."""
        assert self.plan is not None
        bucket, use = addend
        return keys.partial(self.era, self.version, self.plan.stage_of(bucket), bucket, block, use)

    def accumulated(self, duty: Duty, count: int) -> Key:
        """The key of what the duty's gradients have come to after so many microbatches of the running step."""
        return Key(self.era, self.version, duty.pipeline, ACCUMULATED, duty.stage, count)

    def forwards_in(self, step: int) -> tuple[tuple[Pass, int], ...]:
        """How many microbatches of each kind go forward in a step, of a pipeline."""
        trained = self.schedule.microbatches if step < self.steps else 0
        return ("F", trained), ("E", self.evaluations.in_step(step, self.steps))
