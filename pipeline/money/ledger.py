"""The ledger: what a run has cost, and for what, from its event log and nothing else (docs/cost.md has the formulas).

The same events give the same figures, live or replayed: money is settled at events only, in the order of the log.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from statistics import median
from typing import Any

from culm.pipeline.machine import Machine
from culm.pipeline.messages import machine_to_proto
from culm.pipeline.money.codec import Entry
from culm.pipeline.money.counterfactual import History, with_checkpoints
from culm.pipeline.money.kinds import (
    Committed,
    Dismissed,
    Done,
    Joined,
    Left,
    Lost,
    Planned,
    Priced,
    RolledBack,
    Tariff,
    Used,
)
from culm.pipeline.times import TimeSplit
from culm.protos import coordinator_pb2 as pb

HOUR = 3600.0
GB = 1e9
CALM_STEPS = 20  # the steps that tell how long one takes when nothing happens
USES = tuple(f.name for f in fields(TimeSplit))
LIVES_KEPT = 1_000  # of nodes that are gone: the figures of each; of those before, what they cost together
INTERRUPTIONS_KEPT = 1_000
MARKS_KEPT = 1_024  # commits that a rollback may go back to, before every second of the older half is left out


@dataclass(eq=False, kw_only=True)
class Life:
    """One incarnation of a node, from joining to its end. Money in dollars, settled until ``since``."""

    node: str
    incarnation: int
    machine: Machine
    joined: float
    since: float
    ended: float | None = None
    per_hour: float = 0.0
    on_demand: float = 0.0
    per_gb: Mapping[str, float] = field(default_factory=dict)  # to another zone, to another region
    source: str = ""
    priced: bool = False
    settled: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)  # by use, as last reported
    sent: dict[str, int] = field(default_factory=dict)  # by peer, as last reported

    def dollars(self, now: float) -> float:
        until = now if self.ended is None else self.ended
        return self.settled + self.per_hour * max(0.0, until - self.since) / HOUR

    def settle(self, now: float) -> None:
        self.settled, self.since = self.dollars(now), max(self.since, now)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruption:
    """Time in which nothing new was trained, because of a lost node or a rollback."""

    kind: str
    time: float
    step: int
    node: str
    seconds: float
    dollars: float


@dataclass(frozen=True, slots=True)
class _Pending:
    """Something that went wrong since the last commit; what it cost is known at the next."""

    kind: str
    time: float
    step: int
    node: str


PLAIN = (  # what a ledger knows beside its lives, as JSON has it
    "_closed_dollars",
    "_begun",
    "_done",
    "_first_step",
    "_committed",
    "_samples_per_step",
    "_tokens_per_step",
    "_stages",
    "_marks",
    "_since",
    "_lost_seconds",
    "_by_use",
    "_transfer",
    "_crossing_bytes",
    "_machines_before",
    "_on_demand_before",
)


class Ledger:
    """Takes the events of one run in their order; ``figures`` may be asked for at any time."""

    def __init__(self) -> None:
        self.lives: list[Life] = []
        self._lives: dict[tuple[str, int], Life] = {}  # the newest by node and incarnation, and by node
        self._newest: dict[str, Life] = {}
        self._open: dict[str, Life] = {}  # those that have not ended
        self._closed_dollars = 0.0
        self._fixed = Life(node="", incarnation=0, machine=Machine(), joined=0.0, since=0.0)
        self._begun: float | None = None
        self._done: float | None = None
        self._first_step: int | None = None
        self._committed = 0
        self._samples_per_step = 0
        self._tokens_per_step = 0
        self._stages = 0
        self._marks: list[tuple[int, float, float]] = []  # of commits that count: step, time, money spent by then
        self._calm: deque[float] = deque(maxlen=CALM_STEPS)
        self._pending: deque[_Pending] = deque(maxlen=INTERRUPTIONS_KEPT)
        self._since: tuple[float, float] | None = None  # time and money when the step that runs began
        self.interruptions: list[Interruption] = []
        self._machines_before = 0.0  # dollars of the lives that are left out; their on-demand prices: sum, and count
        self._on_demand_before = [0.0, 0.0]
        self._lost_seconds = 0.0
        self._by_use = dict.fromkeys(USES, 0.0)
        self._transfer = 0.0
        self._crossing_bytes = 0
        self._history = History()

    # ---- events -----------------------------------------------------------------------------------------------------

    def take(self, entry: Entry) -> None:
        if self._done is not None:
            return
        at, event = entry.time, entry.event
        match event:
            case Joined():
                self._joined(at, event)
            case Priced():
                self._priced(at, event)
            case Tariff():
                self._tariff(at, event)
            case Used():
                self._used(event)
            case Planned():
                self._planned(at, entry.step, event)
            case Committed():
                self._commit(at, event.step)
            case RolledBack():
                self._rolled_back(at, event.step)
            case Done():
                self._done = at
            case Lost():
                self._lost(at, entry.step, event)
                self._end(at, event.node)
            case Left() | Dismissed():
                self._end(at, event.node)

    def _lost(self, at: float, committed: int, event: Lost) -> None:
        if self._begun is None:
            return
        # Of the step that it happened in: by the time it is on record, that may be committed.
        step = event.step if event.step is not None else committed
        self._pending.append(_Pending("lost", at, step, event.node))
        if event.stages:
            self._history.lost(at)

    def _joined(self, at: float, event: Joined) -> None:
        known = self._open.get(event.node)
        if known is not None and known.incarnation == event.incarnation:
            return
        self._end(at, event.node)  # the log of a leader that died may lack the end of the one before
        machine = Machine(event.provider, event.instance_type, event.region, event.zone, event.market)
        life = Life(node=event.node, incarnation=event.incarnation, machine=machine, joined=at, since=at)
        self.lives.append(life)
        self._lives[event.node, event.incarnation] = self._newest[event.node] = self._open[event.node] = life
        self._history.nodes(at, len(self._open))

    def _end(self, at: float, node: str) -> None:
        life = self._open.pop(node, None)
        if life is not None:
            life.ended = max(at, life.joined)
            self._closed_dollars += life.dollars(at)
            self._history.nodes(at, len(self._open))
            self._forget_lives()

    def _forget_lives(self) -> None:
        """Leaves out the oldest of too many nodes that are gone; what they cost stays counted."""
        gone = [life for life in self.lives if life.ended is not None]
        if len(gone) <= LIVES_KEPT:
            return
        for life in gone[: LIVES_KEPT // 2]:
            self.lives.remove(life)
            self._lives.pop((life.node, life.incarnation), None)
            if self._newest.get(life.node) is life:
                del self._newest[life.node]
            if life.on_demand > 0:
                self._on_demand_before[0] += life.on_demand
                self._on_demand_before[1] += 1
            self._machines_before += life.dollars(life.ended or 0.0)

    def _priced(self, at: float, event: Priced) -> None:
        life = self._open.get(event.node)
        if life is None or life.incarnation != event.incarnation:
            return
        if life.priced:  # a later price counts from now on, the first one from the beginning
            life.settle(at)
        life.priced = True
        life.per_hour, life.on_demand = event.per_hour, event.on_demand_per_hour
        life.per_gb = {"zones": event.per_gb_zones, "regions": event.per_gb_regions}
        life.source = event.source

    def _tariff(self, at: float, event: Tariff) -> None:
        if not self._fixed.priced:
            self._fixed.joined = self._fixed.since = at
        self._fixed.settle(at)
        self._fixed.priced = True
        self._fixed.per_hour = event.fixed_per_hour
        self._history.restart_seconds = event.restart_seconds
        self._history.checkpoint_seconds = event.checkpoint_seconds

    def _used(self, event: Used) -> None:
        """Where the node's time went and what it sent, since it started."""
        life = self._lives.get((event.node, event.incarnation))  # it may be gone by now
        if life is None:
            return
        for use in USES:
            seconds = getattr(event, use)
            self._by_use[use] += max(0.0, seconds - life.seconds.get(use, 0.0)) * life.per_hour / HOUR
            life.seconds[use] = seconds
        for peer, sent in event.sent.items():
            more = sent - life.sent.get(peer, 0)
            life.sent[peer] = sent
            between = self._between(life, peer)
            if between:
                self._crossing_bytes += more
                self._transfer += more / GB * life.per_gb.get(between, 0.0)

    def _between(self, life: Life, peer: str) -> str:
        """What bytes to the peer cross: "zones", "regions" or, for all that is known, nothing."""
        known = self._newest.get(peer)
        if known is None:
            return ""
        own, other = life.machine, known.machine
        if own.region and other.region and own.region != other.region:
            return "regions"
        return "zones" if own.zone and other.zone and own.zone != other.zone else ""

    def _planned(self, at: float, step: int, event: Planned) -> None:
        self._stages = event.stage_count
        self._samples_per_step = event.samples_per_step
        self._tokens_per_step = event.tokens_per_step
        if self._begun is None:
            self._begun = at
            self._first_step = self._committed = step
            self._since = (at, self._spent(at))
            self._history.begin(at)

    def _commit(self, at: float, step: int) -> None:
        if step < 0:
            raise ValueError(f"step {step}")
        if self._since is None or self._first_step is None:
            return
        since, money_then = self._since
        money = self._spent(at)
        duration = at - since
        if self._pending:
            calm = median(self._calm) if self._calm else 0.0
            self._interrupted(duration, max(0.0, duration - calm), money - money_then)
        elif step == self._committed:  # else commits are missing in the log: that of a leader that died
            self._calm.append(duration)
        self._first_step = min(self._first_step, step)  # it may lie before all that is on record
        self._forget_marks(step)
        self._marks.append((step, at, money))
        if len(self._marks) > 2 * MARKS_KEPT:
            del self._marks[1:MARKS_KEPT:2]
        self._committed = step + 1
        self._since = (at, money)

    def _interrupted(self, duration: float, lost: float, spent: float) -> None:
        """The step took longer than calm ones: the nodes lost in it share what it took longer, a rollback takes all."""
        rollbacks = [p for p in self._pending if p.kind == "rollback"]
        causes = rollbacks[-1:] or list(self._pending)
        if rollbacks:  # what was lost in the steps that were rolled back is on record already
            assert self._since is not None
            known = [x for x in self.interruptions if x.time >= self._since[0]]
            lost = max(0.0, lost - sum(x.seconds for x in known))
        share = lost / len(causes)
        rate = spent / duration if duration > 0 else 0.0
        for cause in causes:
            self.interruptions.append(
                Interruption(
                    kind=cause.kind,
                    time=cause.time,
                    step=cause.step,
                    node=cause.node,
                    seconds=share,
                    dollars=share * rate,
                )
            )
        del self.interruptions[:-INTERRUPTIONS_KEPT]
        self._lost_seconds += lost
        self._pending.clear()

    def _rolled_back(self, at: float, step: int) -> None:
        if self._begun is None or self._first_step is None:
            return
        self._first_step = min(self._first_step, step)  # a run that was resumed may go back behind where it began
        self._forget_marks(step)
        self._since = self._marks[-1][1:] if self._marks else (self._begun, 0.0)
        self._committed = step
        self._pending.append(_Pending("rollback", at, step, ""))

    def _forget_marks(self, step: int) -> None:
        """Of this step and later ones."""
        del self._marks[bisect_left(self._marks, step, key=lambda mark: mark[0]) :]

    # ---- what a successor goes on from -------------------------------------------------------------------------------

    def to_document(self) -> dict[str, Any]:
        """All of it as JSON-able data."""
        plain = {name: getattr(self, name) for name in PLAIN}
        return {
            **plain,
            "lives": [asdict(life) for life in self.lives],
            "open": [[life.node, life.incarnation] for life in self._open.values()],
            "newest": [[life.node, life.incarnation] for life in self._newest.values()],
            "fixed": asdict(self._fixed),
            "calm": list(self._calm),
            "pending": [asdict(p) for p in self._pending],
            "interruptions": [asdict(x) for x in self.interruptions],
            "history": asdict(self._history),
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "Ledger":
        """What ``to_document`` was made from. Raises KeyError, TypeError or ValueError for what is none."""
        ledger = cls()
        for name in PLAIN:
            setattr(ledger, name, document[name])
        ledger._marks = [(int(step), at, money) for step, at, money in document["_marks"]]
        ledger._since = None if document["_since"] is None else (document["_since"][0], document["_since"][1])
        ledger.lives = [_life(x) for x in document["lives"]]
        ledger._lives = {(life.node, life.incarnation): life for life in ledger.lives}
        ledger._open = {node: ledger._lives[node, incarnation] for node, incarnation in document["open"]}
        ledger._newest = {node: ledger._lives[node, incarnation] for node, incarnation in document["newest"]}
        ledger._fixed = _life(document["fixed"])
        ledger._calm.extend(document["calm"])
        ledger._pending.extend(_Pending(**p) for p in document["pending"])
        ledger.interruptions = [Interruption(**x) for x in document["interruptions"]]
        ledger._history = History(**document["history"])
        return ledger

    # ---- figures ----------------------------------------------------------------------------------------------------

    def _spent(self, now: float) -> float:
        lives = sum(life.dollars(now) for life in self._open.values())
        return self._closed_dollars + lives + self._fixed_dollars(now) + self._transfer

    def _fixed_dollars(self, now: float) -> float:
        return self._fixed.dollars(now) if self._fixed.priced else 0.0

    def dollars(self, now: float) -> float:
        """So far, as of ``now``; after the run's end, as of the end."""
        return self._spent(self._done if self._done is not None else now)

    def dollars_per_hour(self) -> float:
        """Of all that runs now."""
        return sum(x.per_hour for x in self._open.values()) + self._fixed.per_hour

    def life_of(self, node: str) -> Life | None:
        """The node that takes part under this name."""
        return self._open.get(node)

    def figures(self, now: float) -> pb.GetCostResponse:
        """Everything that the ledger knows, at ``now`` in unix seconds; after the run's end, as of the end."""
        at = self._done if self._done is not None else now
        dollars = self._spent(at)
        cost = pb.GetCostResponse(
            as_of=at,
            dollars=dollars,
            dollars_per_hour=self.dollars_per_hour(),
            transfer_dollars=self._transfer,
            crossing_bytes=self._crossing_bytes,
            fixed_dollars=self._fixed_dollars(at),
            unpriced=[life.node for life in self._open.values() if not life.priced],
        )
        for life in self.lives:
            _add_node(cost, life, at)
        machines = self._machines_before + sum(node.dollars for node in cost.nodes)
        for use in USES:
            cost.dollars_by_use[use] = self._by_use[use]
        cost.dollars_by_use["other"] = max(0.0, machines - sum(self._by_use.values()))
        for x in self.interruptions:
            cost.interruptions.add(
                kind=x.kind, time=x.time, step=x.step, node=x.node, seconds=x.seconds, dollars=x.dollars
            )
        if self._begun is not None and self._first_step is not None:
            self._add_training(cost, at - self._begun, self._committed - self._first_step)
        return cost

    def _add_training(self, cost: pb.GetCostResponse, seconds: float, steps: int) -> None:
        cost.seconds = seconds
        cost.useful_seconds = max(0.0, seconds - self._lost_seconds)
        cost.samples, cost.tokens = steps * self._samples_per_step, steps * self._tokens_per_step
        if cost.samples:
            cost.dollars_per_thousand_samples = 1e3 * cost.dollars / cost.samples
        if cost.tokens:
            cost.dollars_per_million_tokens = 1e6 * cost.dollars / cost.tokens
        if cost.dollars > 0:
            cost.value = cost.samples / (HOUR * cost.dollars)
        on_demand = [life.on_demand for life in self.lives if life.on_demand > 0]
        total, count = self._on_demand_before
        if on_demand or count:
            each = (total + sum(on_demand)) / (count + len(on_demand))
            cost.on_demand_dollars = self._stages * each * cost.useful_seconds / HOUR
        if seconds > 0:
            cost.checkpoint_seconds = with_checkpoints(self._history, cost.useful_seconds, self._stages)
            cost.checkpoint_dollars = cost.checkpoint_seconds * cost.dollars / seconds


def _life(document: Mapping[str, Any]) -> Life:
    return Life(**{**document, "machine": Machine(**document["machine"])})


def _add_node(cost: pb.GetCostResponse, life: Life, at: float) -> None:
    cost.nodes.add(
        node=life.node,
        incarnation=life.incarnation,
        machine=machine_to_proto(life.machine),
        joined=life.joined,
        ended=life.ended or 0.0,
        price_per_hour=life.per_hour,
        on_demand_per_hour=life.on_demand,
        dollars=life.dollars(at),
        source=life.source,
    )
