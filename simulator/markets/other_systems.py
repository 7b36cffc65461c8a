"""What others do with the same machines, by their published rules and constants, at the rates of a published model."""

from collections.abc import Sequence
from dataclasses import dataclass

from culm.simulator.markets.account import Account, Row, Use
from culm.simulator.markets.trace import Change
from culm.simulator.markets.workload import BAMBOO, ON_DEMAND, SPOT, Published
from culm.simulator.network import Clock

# A rule is a pause after each lost node, the work that is lost with it, and which nodes are of use. Between two changes
# training goes on at one rate, so nothing but changes is played: time passes, steps are counted in parts, and the
# account closes.
#
# Step times are what Bamboo measured with its redundancy on. Without it they would be shorter, by the 10 to 20 % that
# it says it costs: the comparison is in Bamboo's favour.

STARTS_UP = 45.0  # seconds from a machine's coming to its readiness: as Bamboo's simulator has it
OOBLECK = "share of effective work with a node lost every 600 s, from the artifact of Oobleck (SOSP 2023), BERT-large"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One strategy. Seconds."""

    name: str
    source: str
    pause: float = 0.0  # after a node is lost, until training goes on; and to take new nodes in
    writes: float = 0.0  # of an asynchronous checkpoint, one after another; work since the last whole one is lost
    any_nodes: bool = False  # pipelines of unequal length put every node to use, not only whole pipelines
    drops_samples: bool = False  # the other pipelines go on; the one that lost a node adds nothing till it is whole


CHECKPOINTS = Rule(
    name="checkpoint and restart",
    source=f"write 89 s, load 50 s, reconfiguration 83 s: {BAMBOO}, its checkpointing profile",
    pause=50.0 + 83.0,
    writes=89.0,
)
DROPPING = Rule(
    name="sample dropping",
    source="Bamboo (NSDI 2023), section 3: a pipeline that lost a node is suspended; 83 s to cut anew as above",
    pause=83.0,
    drops_samples=True,
)
VARUNA = Rule(name="varuna-like", source=f"54 %: {OOBLECK}: 276 s lost with each", pause=0.46 * 600.0, any_nodes=True)
OOBLECK_LIKE = Rule(
    name="oobleck-like", source=f"95.5 %: {OOBLECK}: 27 s lost with each", pause=0.045 * 600.0, any_nodes=True
)
RULES = (CHECKPOINTS, DROPPING, VARUNA, OOBLECK_LIKE)


def on_demand(work: Published, seconds: float) -> Row:
    """The published run without spot machines: nothing is lost."""
    account = Account()
    for i in range(work.on_demand_machines):
        account.rent(f"node{i}", ON_DEMAND)
    account.begin()
    account.pass_to(seconds, Use.USEFUL)
    account.step(work.samples_per_step, seconds / work.on_demand_step_seconds)
    return account.row("on-demand")


def rate(work: Published, nodes: int, any_nodes: bool) -> float:
    """Steps a second on so many nodes; those of part of a pipeline count by their share where any are of use."""
    known = {0: 0.0} | {pipelines: 1.0 / seconds for pipelines, seconds in work.step_seconds.items()}
    whole = min(nodes // work.stages, max(known))
    if not any_nodes or whole == 0 or whole == max(known):
        return known[whole]
    part = (nodes - whole * work.stages) / work.stages
    return known[whole] + part * (known[whole + 1] - known[whole])


class Peer:
    """One run of a rule over a trace."""

    def __init__(self, changes: Sequence[Change], work: Published, rule: Rule, spot: float = SPOT) -> None:
        self._work, self._rule, self._spot = work, rule, spot
        self._account = Account()
        self._clock = Clock()
        self._ready: set[str] = set()
        self._active: list[str] = []  # in the order of their places: pipeline by pipeline
        self._rate = 0.0  # steps a second
        self._pausing = False
        self._version = 0
        self._kept = 0.0  # steps in the last whole checkpoint
        for change in changes:
            self._clock.at(change.at, lambda change=change: self._changed(change))  # type: ignore[misc]

    def run(self, seconds: float) -> Row:
        """Until so many seconds, or the run's steps, are done."""
        while not self._account.has_trained(self._work.steps) and self._clock.next_at <= seconds and self._clock.step():
            pass
        self._clock.now = max(self._clock.now, seconds)
        self._pass()
        return self._account.row(self._rule.name)

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
            self._ready.discard(change.node)
            if change.node in self._active:
                self._lose(change.node)

    def _comes(self, name: str) -> None:
        self._pass()
        if name in self._account.rented and not self._account.has_trained(self._work.steps):
            self._ready.add(name)
            # Nodes that make no whole pipeline more are taken in with the next lost node, where they are of use.
            more = rate(self._work, len(self._ready), any_nodes=False)
            if more > rate(self._work, len(self._active), any_nodes=False) and not self._pausing:
                self._pause()

    def _lose(self, name: str) -> None:
        rule, work = self._rule, self._work
        if rule.drops_samples:
            place = self._active.index(name) // work.stages
            stages = slice(place * work.stages, (place + 1) * work.stages)
            self._active = self._active[: stages.start] + self._active[stages.stop :]
            pipelines = len(self._active) // work.stages
            if pipelines and not self._pausing:
                # The others' step is as long as before; it has fewer samples, which counts as fewer steps.
                self._rate *= pipelines / (pipelines + 1)
                if len(self._ready) // work.stages > pipelines:
                    self._pause()
                return
        if rule.writes and self._account.steps > self._kept:
            lost = self._account.steps - self._kept
            self._account.lose_steps(lost, work.samples_per_step)
            seconds = min(lost / self._rate if self._rate else 0.0, self._account.spent[Use.USEFUL])
            self._account.spent[Use.USEFUL] -= seconds
            self._account.spent[Use.ROLLBACK] += seconds
        self._account.fatal += 1
        self._pause()

    def _pause(self) -> None:
        self._rate, self._pausing = 0.0, True
        self._version += 1
        version = self._version
        self._clock.after(self._rule.pause, lambda: self._resume(version))

    def _resume(self, version: int) -> None:
        if version != self._version:
            return
        self._pass()
        self._pausing = False
        count = len(self._ready)
        if not self._rule.any_nodes:
            count = min(count // self._work.stages, max(self._work.step_seconds)) * self._work.stages
        self._active = sorted(self._ready)[:count]
        self._rate = rate(self._work, count, self._rule.any_nodes)
        if self._rate:
            self._account.begin()
            if self._rule.writes:
                self._save(version)

    def _save(self, version: int) -> None:
        """A checkpoint of the state as it is begins; when it is whole, the next one."""
        steps = self._account.steps

        def written() -> None:
            if version == self._version:
                self._pass()
                self._kept = steps
                self._save(version)

        self._clock.after(self._rule.writes, written)
