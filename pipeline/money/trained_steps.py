"""Which committed steps count, and when the step that runs began: a rollback takes steps back."""

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import NamedTuple

from culm.pipeline.money.kinds import Planned

# A step counts once it is committed and until a rollback goes back behind it. So samples are
# (committed - first) x samples in a step: a step that was trained twice counts once.
#
#     plan      commit 0   commit 1   commit 2     rollback to 1        commit 1
#      |-----------|----------|----------|---- ... -----|--------- ... -----|
#    begun       mark 0     mark 1     mark 2        marks 1, 2 go        mark 1
#                  ^                                                        |
#                  '------ the step that runs began here, in time and money-'
#
# Every commit leaves a mark: its step, its time, and the money spent by then. The step that runs began at the last
# mark, or with training. A rollback drops marks, so the step that runs then began long ago, and all that was spent
# since is what the rollback cost. Only pauses are no part of a step: ``Interruptions.pauses_since`` tells them.
#
# A coordinator that goes on without the events before knows fewer steps than there were. ``first`` then falls to the
# lowest step that is seen: a run that was resumed may also go back behind where it began.

# Commits that a rollback may go back to. Of twice as many every second one of the older half is left out. A rollback
# that goes back so far begins at the mark before, and counts the steps between as lost too.
MARKS_KEPT = 1_024


class Moment(NamedTuple):
    """When, and the money spent by then."""

    time: float
    dollars: float


class Mark(NamedTuple):
    """A commit that counts."""

    step: int
    time: float
    dollars: float


@dataclass(eq=False, kw_only=True)
class TrainedSteps:
    """What a run has trained by now, and what a step of it is."""

    begun: float | None = None  # the first plan: training begins
    begun_dollars: float = 0.0  # spent by then
    first: int | None = None  # the lowest step of this run; Invariant: None as long as ``begun`` is
    committed: int = 0  # the step that runs
    samples: int = 0  # in a step
    tokens: int = 0  # in a step
    chunks: int = 0  # of the graph; 0: the job trains on none
    stages: int = 0
    owners: int = 0  # machines that run the stages, by the newest plan
    # Seconds of the steps that were committed, and of each the same times the owners that it had.
    stepped: float = 0.0
    owner_seconds: float = 0.0
    asked: int = 0  # steps of the job; 0: the log does not say
    marks: list[Mark] = field(default_factory=list)  # Invariant: in the order of steps, each below ``committed``

    @property
    def since(self) -> Moment | None:
        """When the step that runs, or is to run, began; None before training begins."""
        if self.marks:
            return Moment(self.marks[-1].time, self.marks[-1].dollars)
        return None if self.begun is None else Moment(self.begun, self.begun_dollars)

    def plan(self, at: float, step: int, event: Planned, dollars: float) -> bool:
        """Whether training begins with this plan."""
        self.stages = event.stage_count
        owners = {owner for stage in event.stages for owner in stage.owners}
        self.owners = len(owners) or event.stage_count  # an older log may not say who owns what
        self.samples, self.tokens = event.samples_per_step, event.tokens_per_step
        self.chunks = event.chunks or 0
        self.asked = event.steps
        if self.begun is not None:
            return False
        self.begun, self.begun_dollars = at, dollars
        self.first = self.committed = step
        return True

    def commit(self, at: float, step: int, seconds: float, dollars: float) -> None:
        """The step counts. It took so many seconds; ``dollars`` were spent by now."""
        self.stepped += seconds
        self.owner_seconds += seconds * self.owners
        self._lower_first(step)
        self._forget(step)
        self.marks.append(Mark(step, at, dollars))
        if len(self.marks) > 2 * MARKS_KEPT:
            del self.marks[1:MARKS_KEPT:2]
        self.committed = step + 1

    def roll_back(self, step: int) -> None:
        """This step and later ones count no more; it runs again."""
        self._lower_first(step)
        self._forget(step)
        self.committed = step

    def _lower_first(self, step: int) -> None:
        self.first = step if self.first is None else min(self.first, step)

    def _forget(self, step: int) -> None:
        del self.marks[bisect_left(self.marks, step, key=lambda mark: mark.step) :]

    def counted(self) -> int:
        """How many steps count."""
        return self.committed - self.first if self.first is not None else 0

    def mean_owners(self) -> float:
        """Machines that ran the stages, in the mean of the steps' time; before the first commit, those of the plan."""
        return self.owner_seconds / self.stepped if self.stepped > 0 else float(self.owners)
