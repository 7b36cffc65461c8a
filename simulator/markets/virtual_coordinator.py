"""The coordinator's own decisions under a virtual clock, and the shortcuts past reports that would change nothing."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from culm.coordinator import commands as cmd
from culm.coordinator import reports
from culm.coordinator import state as co
from culm.coordinator.decide import advance, begin, validate
from culm.coordinator.watchdog import REMEMBERED
from culm.simulator.markets.market_nodes import HeldPart
from culm.simulator.network import Clock

# ``advance`` decides every report that can change a plan: joins, lost nodes, notices, seeded layers, the last Ready of
# a step, checkpoints. Most reports change nothing but a note in the state. Shortcuts write such notes, and have nothing
# decided:
#
#     shortcut    what it stands for                      what it writes
#     note        all Ready of a step but the last        facts and norms, as ``advance`` would
#     pass_over   calm steps, one commit each             the committed step, the last commit's number
#     keep_time   ticks and heartbeats of a quiet time    when the last tick was
#     time_step   ticks that see how long steps take      the seconds of the newest ones
#
# A shortcut is right only where no decision would have followed. ``calm_steps`` says when that is, and a test takes
# steps one by one and compares.

TICK = 0.5  # seconds between two ticks of a coordinator

Decide = Callable[[co.State, reports.Report, float], tuple[co.State, tuple[cmd.Command, ...]]]


class VirtualCoordinator:
    """One coordinator that never fails."""

    def __init__(self, settings: co.Settings, clock: Clock, decide: Decide = advance) -> None:
        self.state = begin(settings)
        self.decisions = 0  # reports that were decided on
        self._clock = clock
        self._decide = decide

    def take(self, report: reports.Report) -> tuple[cmd.Command, ...]:
        self.decisions += 1
        self.state, commands = self._decide(self.state, report, self._clock.now)
        return commands

    def note(self, ready: Sequence[HeldPart]) -> None:
        """Holders of these are ready, and the step still waits for another one. Gradients are zeros."""
        facts = dict(self.state.facts)
        norms = dict(self.state.norms)
        for part in ready:
            facts[part.node] = facts.get(part.node, frozenset()) | frozenset(part.layers)
            norms |= dict.fromkeys(part.layers, 0.0)
        self.state = replace(self.state, facts=facts, norms=norms)

    def pass_over(self, steps: int) -> None:
        """So many steps like the last one are committed: their commit is its commit, but for the number."""
        last = self.state.last_commit
        assert last is not None
        last = replace(last, step=last.step + steps)
        self.state = replace(self.state, committed=self.state.committed + steps, last_commit=last)

    def time_step(self, seconds: float, steps: int = 1) -> None:
        watch = self.state.watch
        recent = (*watch.recent, *[seconds] * min(steps, REMEMBERED))[-REMEMBERED:]
        self.state = replace(self.state, watch=replace(watch, recent=recent))

    def keep_time(self) -> None:
        """Ticks have come all along: after a gap in them the next one would count nobody's silence."""
        self.state = replace(self.state, last_tick=self._clock.now - TICK)

    def check(self, steps: float) -> None:
        """Raises AssertionError. ``steps``: how many the account has, which are those that are committed."""
        committed = self.state.committed
        assert steps == committed, f"{steps} steps taken, {committed} committed"
        validate(self.state)
