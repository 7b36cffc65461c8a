"""Bamboo by the rules of its released simulator, and the same with the work that a fatal preemption loses."""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from culm.simulator.markets.account import Account, Row, Use
from culm.simulator.markets.trace import Change
from culm.simulator.markets.workload import SPOT, Published

# Source: ``workload.BAMBOO``. Its rules:
#
#     a node goes                              its neighbour runs both stages; a step takes half as long again
#     a node goes that runs two stages, or     fatal: all nodes meet for 30 s, and places are given out anew
#       whose neighbour does
#     a step ends                              the nodes meet for a shorter while, if waiting nodes can take the places
#                                              of doubled ones, make a pipeline more, or too many stages are at risk
#     the nodes meet, and one of them goes     they meet again, for as long
#
# As published, a fatal preemption takes no work back. With ``charges_preemptions`` it takes the steps since the last
# checkpoint, and the time to load that.

STARTS_UP = 45.0  # seconds from a machine's coming to its readiness
MEETING = 30.0  # seconds of all nodes, to begin, and after a fatal preemption
SLOWDOWN = 1.5  # of a step while some node runs two stages
RISK = 0.05  # of nodes that must not be lost, above which the pipelines are cut anew
LOAD_SECONDS = 50.0  # of a checkpoint; it and the next: Bamboo's own profile of checkpointing, in the same release
# Between two checkpoints. Bamboo's paper names none, so what pipeline/money/prices.toml compares with.
CHECKPOINT_SECONDS = 600.0


@dataclass
class _Node:
    ready: bool = False
    places: list[tuple[int, int]] = field(default_factory=list)  # (pipeline, stage) that it runs


class Bamboo:
    """One run over one trace. ``charges_preemptions``: a fatal one takes the steps since a checkpoint, and a load."""

    def __init__(
        self, changes: Sequence[Change], work: Published, charges_preemptions: bool = False, spot: float = SPOT
    ) -> None:
        self._changes = changes
        self._work = work
        self._charges = charges_preemptions
        self._spot = spot
        self._account = Account()
        self._nodes: dict[str, _Node] = {}
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._meeting: list[str] | None = None  # who takes part, while one is on
        self._pipelines = 0
        self._waiting = 0
        self._version = 0
        self._step_seconds = 0.0
        self._slow_since: tuple[float, float] | None = None  # the step in which, and when a neighbour took over
        self._slow_charged = False
        self._saved_at: tuple[float, float] = (0, 0.0)  # steps in the last checkpoint, and when
        self._use = Use.WAITING

    def run(self, seconds: float | None = None) -> Row:
        """Until so many seconds, or the run's steps, are done or the trace is at its end."""
        for change in self._changes:
            self._at(change.at, lambda change=change: self._changed(change))  # type: ignore[misc]
        while self._heap and self._account.steps < self._work.steps:
            if seconds is not None and self._heap[0][0] > seconds:
                break
            now, _, action = heapq.heappop(self._heap)
            self._account.pass_to(now, self._use)
            action()
        if seconds is not None and self._account.steps < self._work.steps:
            self._account.pass_to(max(seconds, self._account.now), self._use)
        return self._account.row("bamboo, with lost work" if self._charges else "bamboo, as published")

    def _at(self, when: float, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._heap, (when, self._count, action))

    def _after(self, seconds: float, action: Callable[[], None]) -> None:
        self._at(self._account.now + seconds, action)

    # ---- machines ---------------------------------------------------------------------------------------------------

    def _changed(self, change: Change) -> None:
        if change.kind == "add":
            self._nodes[change.node] = _Node()
            self._account.rent(change.node, change.price if change.price is not None else self._spot)
            self._after(STARTS_UP, lambda: self._ready(change.node))
        elif change.kind == "remove":
            self._account.release(change.node, preempted=True)
            self._lose(self._nodes.pop(change.node))

    def _ready(self, name: str) -> None:
        node = self._nodes.get(name)
        if node is None:
            return
        node.ready = True
        if self._meeting is not None:
            self._meeting.append(name)
        elif self._pipelines == 0:
            self._meet(MEETING)
        else:
            self._waiting += 1

    def _lose(self, lost: _Node) -> None:
        if lost.places:
            pipeline, stage = lost.places[0]
            before = (pipeline, (stage - 1) % self._work.stages)
            neighbour = next((n for n in self._nodes.values() if before in n.places), None)
            if len(lost.places) > 1 or (neighbour is not None and len(neighbour.places) > 1):
                self._fatal()
                return
            if neighbour is not None:
                neighbour.places.append(lost.places[0])
        if self._meeting is None and self._pipelines and self._slow_since is None:
            self._slow_since, self._slow_charged = (self._account.steps, self._account.now), False
            self._step_seconds *= SLOWDOWN

    def _fatal(self) -> None:
        self._account.fatal += 1
        load = 0.0
        if self._charges:
            steps, since = self._saved_at
            lost = self._account.steps - steps
            self._account.lose_steps(lost, self._work.samples_per_step)
            seconds = min(self._account.spent[Use.USEFUL], self._account.now - since if lost else 0.0)
            self._account.spent[Use.USEFUL] -= seconds
            self._account.spent[Use.ROLLBACK] += seconds
            load = LOAD_SECONDS
        self._meet(MEETING + load)

    # ---- meetings ---------------------------------------------------------------------------------------------------

    def _meet(self, seconds: float) -> None:
        self._use = Use.WAITING
        self._meeting = [name for name, node in self._nodes.items() if node.ready]
        self._after(seconds, lambda: self._met(seconds))

    def _met(self, seconds: float) -> None:
        if self._meeting is None:
            return
        if any(name not in self._nodes for name in self._meeting):
            self._meet(seconds)
            return
        stages = self._work.stages
        self._pipelines = min(len(self._meeting) // stages, max(self._work.step_seconds))
        places = [(p, s) for p in range(self._pipelines) for s in range(stages)]
        for i, name in enumerate(self._meeting):
            self._nodes[name].places = [places[i]] if i < len(places) else []
        self._waiting = len(self._meeting) - len(places)
        self._meeting, self._slow_since = None, None
        self._version += 1
        if self._pipelines:
            self._use = Use.USEFUL
            self._step_seconds = self._work.step_seconds[self._pipelines]
            self._account.begin()
            self._next_step()

    # ---- steps ------------------------------------------------------------------------------------------------------

    def _next_step(self) -> None:
        version = self._version
        self._after(self._step_seconds, lambda: self._stepped(version))

    def _stepped(self, version: int) -> None:
        if version != self._version or self._meeting is not None:
            return
        account = self._account
        if self._slow_since is not None and not self._slow_charged and self._slow_since[0] == account.steps:
            self._slow_charged = True  # the rest of the step in which it happened was slow already
            self._after((account.now - self._slow_since[1]) * (SLOWDOWN - 1.0), lambda: self._stepped(version))
            return
        account.step(self._work.samples_per_step)
        if account.now - self._saved_at[1] >= CHECKPOINT_SECONDS:
            self._saved_at = (account.steps, account.now)
        if self._should_meet():
            self._meet(self._work.local_meeting_seconds)
        else:
            self._next_step()

    def _should_meet(self) -> bool:
        doubled = sum(len(node.places) > 1 for node in self._nodes.values())
        if doubled and self._waiting >= doubled:
            return True
        active = self._pipelines * self._work.stages - doubled
        if doubled and 2 * doubled / active > RISK:
            return True
        more = min((active + self._waiting) // self._work.stages, max(self._work.step_seconds))
        return more > self._pipelines
