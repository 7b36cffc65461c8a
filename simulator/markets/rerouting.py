"""ReCycle-like: a lost node's microbatches go to the nodes that run the same stage in the other pipelines."""

from collections.abc import Sequence

from culm.simulator.markets.account import Account, Row, Use
from culm.simulator.markets.other_systems import CHECKPOINTS, OOBLECK_LIKE, STARTS_UP
from culm.simulator.markets.trace import Change
from culm.simulator.markets.workload import SPOT, Published, fitted, summing
from culm.simulator.network import Clock

# Source: the abstract of ReCycle (SOSP 2024, arXiv 2405.14009). There are no spare nodes. Peers of a lost node run its
# microbatches, in the bubbles of their pipelines as far as these last. Backwards are split in two, and the optimizer's
# steps are staggered, to have more bubbles to use. Training stops only if all nodes of a stage are lost.
#
# What has no published figure is taken in its favour. With f of D owners of some stage lost a step takes as long as the
# longer of
#
#     (M / D + P - 1) t        the step without lost nodes: all that is rerouted fits into bubbles
#     M / (D - f) t            the busiest peer has no bubble left
#
# and the sum over the owners. A lost node costs PAUSE seconds, in which nothing is done. So does a machine that takes a
# lost node's place, with the state that it is given. Pipelines are formed anew when there are machines for one more, or
# when all owners of a stage were lost: then as under ``CHECKPOINTS``, and the steps since the last one are lost too.

PAUSE = OOBLECK_LIKE.pause  # assumed: ReCycle's abstract has no seconds, and Oobleck changes by precomputed plans too


class Rerouting:
    """One run over one trace. ``pause``: seconds for a lost node, and for one that takes a lost one's place."""

    def __init__(self, changes: Sequence[Change], work: Published, spot: float = SPOT, pause: float = PAUSE) -> None:
        self._work, self._spot, self._pause_seconds = work, spot, pause
        self._fit = fitted(work)
        self._account = Account()
        self._clock = Clock()
        self._idle: list[str] = []  # ready, and without a place
        self._place: dict[str, int] = {}  # node -> stage
        self._lost: list[int] = []  # of each stage's owners
        self._pipelines = 0
        self._rate = 0.0  # steps a second
        self._version = 0
        self._kept = 0.0  # steps in the last whole checkpoint
        self._forms = False  # pipelines when the pause is over
        for change in changes:
            self._clock.at(change.at, lambda change=change: self._changed(change))  # type: ignore[misc]

    def run(self, seconds: float) -> Row:
        """Until so many seconds, or the run's steps, are done."""
        while not self._account.has_trained(self._work.steps) and self._clock.next_at <= seconds and self._clock.step():
            pass
        self._clock.now = max(self._clock.now, seconds)
        self._pass()
        return self._account.row("recycle-like")

    def _pass(self) -> None:
        self._account.at_rate(self._rate, self._clock.now, self._work.steps, self._work.samples_per_step)

    def _changed(self, change: Change) -> None:
        self._pass()
        if self._account.has_trained(self._work.steps):
            return
        if change.kind == "add":
            self._account.rent(change.node, change.price if change.price is not None else self._spot)
            self._clock.after(STARTS_UP, lambda: self._comes(change.node))
        elif change.kind == "remove":
            self._account.release(change.node, preempted=True)
            if change.node in self._idle:
                self._idle.remove(change.node)
            elif change.node in self._place:
                self._lose(self._place.pop(change.node))

    def _comes(self, name: str) -> None:
        self._pass()
        if name not in self._account.rented or self._account.has_trained(self._work.steps):
            return
        self._idle.append(name)
        here = len(self._idle) + len(self._place)
        if min(here // self._work.stages, max(self._work.step_seconds)) > self._pipelines:
            self._pause(CHECKPOINTS.pause if not self._pipelines else self._pause_seconds, forms=True)
        elif any(self._lost):
            self._fill()
            self._pause(self._pause_seconds)

    def _fill(self) -> None:
        """Whoever has no place takes that of a lost node, at the stage that has lost most first."""
        while self._idle and any(self._lost):
            stage = max(range(len(self._lost)), key=self._lost.__getitem__)
            self._lost[stage] -= 1
            self._place[self._idle.pop(0)] = stage

    def _lose(self, stage: int) -> None:
        self._lost[stage] += 1
        if self._lost[stage] < self._pipelines:
            self._fill()
            self._pause(self._pause_seconds)
            return
        account = self._account
        account.fatal += 1
        lost = max(0.0, account.steps - self._kept)
        account.lose_steps(lost, self._work.samples_per_step)
        seconds = min(lost * self._step_seconds(0), account.spent[Use.USEFUL])
        account.spent[Use.USEFUL] -= seconds
        account.spent[Use.ROLLBACK] += seconds
        self._pipelines = 0
        self._pause(CHECKPOINTS.pause, forms=True)

    def _pause(self, seconds: float, forms: bool = False) -> None:
        self._rate = 0.0
        self._forms = self._forms or forms
        self._version += 1
        version = self._version
        self._clock.after(seconds, lambda: self._resume(version))

    def _resume(self, version: int) -> None:
        if version != self._version:
            return
        self._pass()
        stages = self._work.stages
        if self._forms:
            self._forms = False
            everyone = [*self._place, *self._idle]
            self._pipelines = min(len(everyone) // stages, max(self._work.step_seconds))
            active = self._pipelines * stages
            self._place = {name: i % stages for i, name in enumerate(everyone[:active])}
            self._idle, self._lost = everyone[active:], [0] * stages
        if self._pipelines:
            self._account.begin()
            self._rate = 1.0 / self._step_seconds(max(self._lost))
            self._save(version)

    def _step_seconds(self, lost: int) -> float:
        d, calm = self._pipelines, self._work.step_seconds.get(self._pipelines, 0.0)
        if not lost:
            return calm
        return max(calm, self._fit.microbatches / (d - lost) * self._fit.each + summing(self._work, d - lost))

    def _save(self, version: int) -> None:
        """A checkpoint of the state as it is begins; when it is whole, the next one."""
        steps = self._account.steps

        def written() -> None:
            if version == self._version:
                self._pass()
                self._kept = steps
                self._save(version)

        self._clock.after(CHECKPOINTS.writes, written)
