"""How often all copies of a stage go at once, where owners and their predecessors hold them. Pure."""

# The fleet is a ring, in which each node owns the stage of its place. Copies of it are with the nodes before it: with
# three copies
#
#     place      n0    n1    n2    n3    n4
#     holds      0     1     2     3     4        it owns
#                1     2     3     4     0        copies for its successor
#                2     3     4     0     1        and for the one after that
#
# Zones are unknown: a node that comes takes a place that is drawn. When a node goes its place closes. Its stage stays
# with the predecessor, and every stage that it held gets one more copy from the next node back: it counts once it is
# seeded. A stage without any such copy left is a rollback; then all that are there hold their part from a checkpoint.
# Of stages that go within a second of each other one rollback comes, as of one decision.
#
# Nothing of speed, price or steps is here but what "auto" weighs (``costs``): ``culm_run`` has that, with the
# coordinator's own decisions. The number of copies only grows here.

import random
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from culm.coordinator.copies import Losses, and_before, choose
from culm.coordinator.copy_costs import FEWEST, Costs
from culm.coordinator.settling import BULK_SECONDS
from culm.coordinator.state import NOTHING_BEFORE, BulksBefore
from culm.simulator.markets.trace import Change

HOUR = 3600.0
AUTO = 0  # copies: chosen from the bulks that were seen
# Of copies that cost nothing: what speaks against them is how little a rollback costs.
FREE = Costs(step=1.0, of_step=lambda copies: 0.0, to_seed=0.0, rollback=300.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Of one run over a trace."""

    rollbacks: int
    bulks: tuple[int, ...]  # nodes lost within a second of each other; of those that were in the ring
    copies: float  # of a stage, in the mean over the time


@dataclass(slots=True)
class _Stage:
    owner: str
    held_from: dict[str, float]  # by holder: when its copy is, or was, whole


@dataclass(kw_only=True)
class Chain:
    """One run. ``copies``: how many each stage has, or AUTO; ``seeding``: seconds until a new copy is whole.

    ``before``: what a trace told before the run, and ``costs``: what copies cost, both for AUTO.
    """

    changes: Sequence[Change]
    copies: int
    seed: int
    seeding: float
    starts_up: float = 45.0
    before: BulksBefore = NOTHING_BEFORE
    costs: Costs = FREE
    _ring: list[str] = field(default_factory=list)
    _stages: list[_Stage] = field(default_factory=list)
    _wanted: int = FEWEST
    _rollbacks: int = 0
    _bulks: list[int] = field(default_factory=list)

    def run(self) -> Outcome:
        """From the trace's beginning to its end."""
        draw = random.Random(self.seed)
        changes = _named(self.changes)
        gone = {change.node: change.at for change in changes if change.kind == "remove"}
        begun = [change.node for change in changes if change.kind == "add" and change.at == 0.0]
        later = [change for change in changes if change.kind == "add" and change.at > 0.0]
        coming = deque((change.at + self.starts_up + self.seeding, change.node) for change in later)
        end, now, weighted = changes[-1].at, 0.0, 0.0
        self._wanted = self.copies or self._chosen(0.0, len(begun), end)
        self._ring = draw.sample(begun, len(begun))
        self._restore(0.0)
        for bulk in _at_once(changes):
            while coming and coming[0][0] < bulk[0].at:
                at, node = coming.popleft()
                if gone.get(node, end + 1.0) > at:
                    self._join(node, at, draw.randrange(len(self._ring) + 1))
            weighted, now = weighted + self._wanted * (bulk[0].at - now), bulk[0].at
            self._lose(bulk, end)
        weighted += self._wanted * (end - now)
        return Outcome(rollbacks=self._rollbacks, bulks=tuple(self._bulks), copies=weighted / end if end else 0.0)

    def _lose(self, bulk: Sequence[Change], end: float) -> None:
        lost = [change for change in bulk if change.node in self._ring]
        if not lost:
            return  # they were still starting, and held nothing
        self._bulks.append(len(lost))
        rolls_back = False
        nodes = len(self._ring)
        for change in lost:
            place = self._ring.index(change.node)
            heir = self._ring[place - 1]
            self._ring.remove(change.node)
            for stage in self._stages:
                stage.held_from.pop(change.node, None)
                stage.owner = heir if stage.owner == change.node else stage.owner
                rolls_back |= all(since > change.at for since in stage.held_from.values())
            if not rolls_back:
                self._repair(change.at)
        now = lost[-1].at
        if self.copies == AUTO:
            # Of as many nodes as there were before: of those the bulk took its part.
            self._wanted = self._chosen(now, nodes, end)
        if rolls_back:
            self._rollbacks += 1
            self._restore(now)
        else:
            self._repair(now)

    def _chosen(self, now: float, nodes: int, end: float) -> int:
        hours, left = now / HOUR, (end - now) / HOUR
        seen = Losses(bulks=self._bulks, hours=hours, nodes=nodes, owners=[1] * nodes, hours_left=left)
        return max(self._wanted, choose(and_before(seen, self.before), self.costs, self._wanted)[0])

    def _restore(self, now: float) -> None:
        """All holders have their part from a checkpoint."""
        self._stages = [_Stage(node, dict.fromkeys(self._holders(node), now)) for node in self._ring]

    def _join(self, node: str, now: float, place: int) -> None:
        """It has been seeded with its part of its predecessor's stage, and with what it stands by for."""
        before = self._ring[place - 1] if self._ring else None
        self._ring.insert(place, node)
        if before is None:
            self._restore(now)
            return
        divided = next(stage for stage in self._stages if stage.owner == before)
        self._stages.append(_Stage(node, {**divided.held_from, node: now}))
        for stage in self._stages:
            if node in self._holders(stage.owner):
                stage.held_from.setdefault(node, now)
        self._repair(now)

    def _repair(self, now: float) -> None:
        """Copies that are missing begin to be seeded; those that are not needed go once the others are whole."""
        whole: dict[str, _Stage] = {}
        seeded: list[_Stage] = []
        for stage in self._stages:
            holders = self._holders(stage.owner)
            for node in holders:
                stage.held_from.setdefault(node, now + self.seeding)
            if all(stage.held_from[node] <= now for node in holders):
                stage.held_from = {node: stage.held_from[node] for node in holders}
                whole[stage.owner] = stage  # a lost node's stage and its heir's have the same holders now: one stage
            else:
                seeded.append(stage)
        self._stages = [*whole.values(), *seeded]

    def _holders(self, owner: str) -> list[str]:
        place, count = self._ring.index(owner), min(self._wanted, len(self._ring))
        return [self._ring[place - back] for back in range(count)]


def _named(changes: Sequence[Change]) -> list[Change]:
    """A machine that comes again is another one."""
    lives: Counter[str] = Counter()
    found = []
    for change in changes:
        lives[change.node] += change.kind == "add"
        found.append(replace(change, node=f"{change.node}.{lives[change.node]}"))
    return found


def _at_once(changes: Sequence[Change]) -> list[list[Change]]:
    """Removals, together where one comes within a second of the one before."""
    found: list[list[Change]] = []
    for change in changes:
        if change.kind != "remove":
            continue
        if found and change.at - found[-1][-1].at <= BULK_SECONDS:
            found[-1].append(change)
        else:
            found.append([change])
    return found
