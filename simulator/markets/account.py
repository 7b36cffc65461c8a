"""What a simulated run came to: machines rented, steps taken, where the time went. And the row that is shown of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from statistics import mean

# Three sums have to close at a run's end, and ``row`` raises where one does not:
#
#     the uses                  add up to the wall time
#     the lives of machines     add up to the seconds that were paid for
#     steps and seconds         are nowhere below zero
#
# A rollback takes nothing out of these sums: it moves what was spent on the lost steps to ROLLBACK. ``exposed_seconds``
# lies beside them.

HOUR = 3600.0


class Use(StrEnum):
    """What a run's wall time is spent on: every moment on one of these."""

    USEFUL = "useful"  # steps that stay, as long as they take without lost nodes and redundancy
    REDUNDANCY = "redundancy"  # by what redundancy makes them longer
    SEEDING = "seeding"  # by what state on its way to new holders makes them longer
    REDONE = "redone"  # work done again after a node is lost, and what it takes to notice and begin
    WAITING = "waiting"  # for machines, or while the run is set up anew
    ROLLBACK = "rollback"  # steps that were lost, and loading what they are done again from


@dataclass(frozen=True, kw_only=True)
class Row:
    """The columns of Bamboo's simulator (its Table 3), and the breakdown of the wall time in seconds.

    ``value``: samples/s for each $/h, averaged over the time from the first step's beginning. ``exposed_seconds``: for
    how long some stage had no hot standby, beside the rest.
    """

    strategy: str
    preemptions: int
    interval_hours: float  # between two preemptions
    lifetime_hours: float  # of a machine
    fatal: int  # times that nodes were lost after which the run began anew from a checkpoint, or all nodes met again
    nodes: float
    throughput: float  # samples/s
    cost_per_hour: float
    value: float
    steps: int
    samples: float
    seconds: float
    cost: float
    spent: dict[str, float] = field(default_factory=dict)
    exposed_seconds: float = 0.0


@dataclass(kw_only=True)
class Account:
    """Told what happens in order of time (seconds), it adds up."""

    began: float | None = None  # when the first step began
    first_step: float | None = None  # when it ended
    now: float = 0.0
    steps: float = 0
    samples: float = 0.0
    cost: float = 0.0
    node_seconds: float = 0.0
    fatal: int = 0
    exposed_seconds: float = 0.0
    spent: dict[Use, float] = field(default_factory=lambda: dict.fromkeys(Use, 0.0))
    _rented: dict[str, tuple[float, float]] = field(default_factory=dict)  # machine -> since when, dollars an hour
    _per_hour: float = 0.0
    _lifetimes: list[float] = field(default_factory=list)
    _gone_at: list[float] = field(default_factory=list)
    _step_began: tuple[float, float] = (0.0, 0.0)  # when, and what had been paid by then
    _value: float = 0.0  # samples/s for each $/h, times seconds

    def has_trained(self, most: float) -> bool:
        """Whether a job of so many steps is done. What is counted in parts may add up to a trifle less."""
        return self.steps >= most * (1.0 - 1e-12)

    def at_rate(self, rate: float, now: float, most: float, samples: float) -> None:
        """Up to ``now`` so many steps a second, of so many samples each, until there are ``most``."""
        steps, left = rate * (now - self.now), most - self.steps
        if rate and steps > left:
            now, steps = self.now + left / rate, left
        self.pass_to(max(now, self.now), Use.USEFUL if rate else Use.WAITING)
        if steps > 0.0:
            self.step(samples, steps)

    def pass_to(self, now: float, use: Use | None = None) -> None:
        """Time goes on to ``now``, spent on ``use``; None where the caller books it otherwise."""
        seconds = now - self.now
        assert seconds >= 0.0, f"time goes back from {self.now} to {now}"
        self.cost += self._per_hour * seconds / HOUR
        self.node_seconds += len(self._rented) * seconds
        if use is not None:
            self.spent[use] += seconds
        self.now = now

    def rent(self, node: str, per_hour: float) -> None:
        self._rented[node] = (self.now, per_hour)
        self._per_hour += per_hour

    def pay(self, dollars: float) -> None:
        """For anything else, such as traffic."""
        self.cost += dollars

    def release(self, node: str, preempted: bool) -> None:
        since, _ = self._rented.pop(node)
        self._per_hour = sum(rate for _, rate in self._rented.values())
        self._lifetimes.append(self.now - since)
        if preempted:
            self._gone_at.append(self.now)

    @property
    def rented(self) -> set[str]:
        return set(self._rented)

    def price_of(self, node: str) -> float:
        """Dollars an hour, of a machine that is rented."""
        return self._rented[node][1]

    def begin(self) -> None:
        """The first step begins."""
        if self.began is None:
            self.began = self.now
            self._step_began = (self.now, self.cost)

    def step(self, samples: float, steps: float = 1) -> None:
        """So many steps, alike and one after another, have just been taken; each of so many samples.

        Steps may be in parts, where a rule knows nothing smaller than a rate.
        """
        if self.first_step is None:
            self.first_step = self.now
        then, paid = self._step_began
        self._step_began = (self.now, self.cost)
        self.steps += steps
        self.samples += steps * samples
        # samples/s for each $/h, times the seconds for which it held: those of samples/s cancel, those of $/h stay.
        hours = (self.now - then) / HOUR
        if self.cost > paid and hours > 0.0:
            self._value += steps * samples / ((self.cost - paid) / hours)

    def lose_steps(self, steps: float, samples: float) -> None:
        """The newest so many steps are to be done again; they are taken to have been worth as much as the others."""
        if steps > 0.0:
            self._value *= 1.0 - steps / self.steps
        self.steps -= steps
        self.samples -= steps * samples

    def roll_back(self, before: Mapping[Use, float]) -> None:
        """What was spent on steps since then was for nothing."""
        for use in (Use.USEFUL, Use.REDUNDANCY, Use.SEEDING, Use.REDONE):
            self.spent[Use.ROLLBACK] += self.spent[use] - before[use]
            self.spent[use] = before[use]

    def row(self, strategy: str) -> Row:
        hours = self.now / HOUR
        trained = self.now - self.began if self.began is not None else 0.0
        lives = [*self._lifetimes, *(self.now - since for since, _ in self._rented.values())]
        self._check(sum(lives))
        pairs = list(pairwise(self._gone_at))
        return Row(
            strategy=strategy,
            preemptions=len(self._gone_at),
            interval_hours=mean(b - a for a, b in pairs) / HOUR if pairs else 0.0,
            lifetime_hours=mean(lives) / HOUR if lives else 0.0,
            fatal=self.fatal,
            nodes=self.node_seconds / self.now if self.now else 0.0,
            throughput=self.samples / trained if trained else 0.0,
            cost_per_hour=self.cost / hours if hours else 0.0,
            value=self._value / trained if trained else 0.0,
            steps=int(self.steps + 1e-9),
            samples=self.samples,
            seconds=self.now,
            cost=self.cost,
            spent={use.value: seconds for use, seconds in self.spent.items()},
            exposed_seconds=self.exposed_seconds,
        )

    def _check(self, lived: float) -> None:
        """What came in went somewhere: every second of the run, every second of a machine, every sample of a step."""
        near = 1e-6 * (1.0 + self.now + self.node_seconds)
        assert abs(sum(self.spent.values()) - self.now) < near, f"{self.spent} is not {self.now} s"
        assert abs(self.node_seconds - lived) < near, f"machines lived {lived} s, {self.node_seconds} s were paid"
        assert self.steps >= 0, f"{self.steps} steps"
        assert all(seconds > -near for seconds in self.spent.values()), f"{self.spent}"
