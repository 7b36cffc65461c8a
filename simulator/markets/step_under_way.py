"""The step that runs: what it takes as planned, what a lost node makes of it, and what its time is booked on."""

from collections import Counter
from collections.abc import Iterator

from culm.pipeline.plan import Plan
from culm.simulator.markets.account import Account, Use
from culm.simulator.markets.job_profile import Cluster
from culm.simulator.markets.run_setup import Lengths, StepTimes
from culm.simulator.markets.step_time import Step

# A step begins as a copy of the calm one, and is as long as its timetable. A node that is lost changes it from that
# moment on: its heir redoes what is lost, and the step ends later.
#
#     begun                    lost                                       ends, planned      ends
#       |------------------------x---------------------------------------------|---------------|
#       |  useful | redundancy | seeding: as planned at the beginning          |    redone     |
#
# What redundancy and moving state add is a share of the useful time (``run_setup``). The whole step is stretched by
# that share, the redone part too. At its end the planned lengths are booked, and all beyond them on redone work.

OF_STEPS = (Use.USEFUL, Use.REDUNDANCY, Use.SEEDING, Use.REDONE)


class StepUnderWay:
    """At most one. After a rollback, or while the run waits, there is none."""

    def __init__(self, pace: StepTimes, cluster: Cluster, samples: int) -> None:
        self._pace, self._cluster, self._samples = pace, cluster, samples
        self.run: Step | None = None
        self._owners: list[tuple[str, ...]] = []  # of its stages, by pipeline
        self.begun = 0.0  # when
        self._planned = Lengths()  # of it, if nothing happens
        self._traffic = 0.0  # dollars for it
        self._calm: Counter[float] = Counter()  # how many steps were booked, by their seconds if nothing had happened

    def begin(self, plan: Plan, now: float, seeding: bool) -> None:
        """``seeding``: state is moving meanwhile."""
        self.begun = now
        self.run = self._pace.calm_step(plan).of(plan.stages)
        self._owners = [stage.owners for stage in plan.stages]
        self._planned = self._pace.lengths(plan, seeding)
        self._traffic = self._pace.traffic(plan)

    def adopt(self, plan: Plan, now: float) -> None:
        """A plan in the middle of the step: where it names another owner the one before is lost."""
        assert self.run is not None
        owners = [stage.owners for stage in plan.stages]
        if self._owners == owners:
            return
        self._owners = owners
        resumed = now - self.begun
        gone = max(0.0, resumed - self._cluster.detect_seconds)  # it was gone before anybody noticed
        self.run.lose(gone, resumed, plan.stages, self._pace.ahead(plan), self._pace.ships(plan))

    def calm_seconds(self) -> float:
        """What a step takes while nothing happens and no state moves: the median, as shapes change."""
        if not self._calm:
            return self._planned.useful + self._planned.redundancy
        return next(seconds for seconds, so_far in _running_total(self._calm) if 2 * so_far >= self._calm.total())

    def planned_seconds(self) -> float:
        """What this one takes if nothing happens."""
        return sum(self._planned)

    def ends_at(self) -> float:
        assert self.run is not None
        longer = sum(self._planned) / self._planned.useful
        return self.begun + (self.run.seconds + self._cluster.commit_seconds) * longer

    # ---- what its time is spent on -----------------------------------------------------------------------------------

    def book(self, account: Account) -> None:
        """It ends now, committed."""
        redone = account.now - self.begun - sum(self._planned)
        for use, seconds in zip(OF_STEPS, (*self._planned, redone), strict=True):
            account.spent[use] += seconds
        account.pay(self._traffic)
        account.step(self._samples)
        self._calm[self._planned.useful + self._planned.redundancy] += 1

    def book_calm(self, account: Account, steps: int) -> None:
        """So many calm steps like this one have gone by; it begins anew now."""
        for use, seconds in zip(OF_STEPS, (*self._planned, 0.0), strict=True):
            account.spent[use] += steps * seconds
        account.pay(steps * self._traffic)
        account.step(self._samples, steps)
        self._calm[self._planned.useful + self._planned.redundancy] += steps
        self.begun = account.now

    def give_up(self, account: Account, use: Use) -> None:
        """It ends without a commit; the time since it began is booked on ``use``."""
        if self.run is not None:
            account.spent[use] += account.now - self.begun
            self.run = None

    def end(self) -> None:
        """It was the last one."""
        self.run = None


def _running_total(counts: Counter[float]) -> Iterator[tuple[float, int]]:
    """Values, ascending, each with how many are no larger."""
    so_far = 0
    for value, count in sorted(counts.items()):
        so_far += count
        yield value, so_far
