"""The commit of a step: decided once by the coordinator, applied by every holder (rules 5 to 7)."""

from dataclasses import dataclass, replace

from culm.pipeline.bookmark import Bookmark
from culm.pipeline.early_stop import BestSoFar, EarlyStop
from culm.pipeline.neighbours import Neighbours
from culm.pipeline.plan import Plan
from culm.pipeline.ties import Ties


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """Apply the step, then adopt the plan, if there is one."""

    term: int
    era: int
    step: int
    scale: float  # of the step's reduced gradients, as ``culm.pipeline.clip`` gives it
    loss: float = 0.0  # the step's, a mean over its microbatches; of the closing step that of the last one
    norm: float = 0.0  # of the step's whole gradient, before clipping; 0 where the job clips nothing
    measured: tuple[float, ...] = ()  # each metric of training
    learning_rate: float | None = None  # of the model's first parameter group; None: nobody told it, or it has none
    evaluated: tuple[float, ...] = ()  # how good the step's weights were: the loss, then each of the job's metrics
    bookmark: Bookmark | None = None  # the newest that is known of the step after this one, or of an earlier one
    # Before the version to which this commit leads; where it changes no weights, since the run ends, as before it.
    # None: nobody knows. The run, or the checkpoint that it goes on from, is of a version of Culm before.
    best_so_far: BestSoFar | None = None
    next_plan: Plan | None = None  # a switch: it takes effect between this step and the next
    save: bool = False  # a checkpoint of the step, whatever its number

    @property
    def early_stop(self) -> EarlyStop | None:
        """Where the run ends early with this commit: which then applies nothing."""
        stop = self.next_plan.early_stop if self.next_plan is not None else None
        return stop if stop is not None and stop.step == self.step else None

    def of_job(self, ties: Ties, audit: float = 0.0, neighbours: Neighbours | None = None) -> "Commit":
        """With what no message tells of its plan."""
        return replace(self, next_plan=self.next_plan.of_job(ties, audit, neighbours)) if self.next_plan else self
