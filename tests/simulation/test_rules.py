"""Every rule of exactness is needed: with the rule switched off, histories that it protects go wrong.

Each history must break without the rule and end exact with it: this shows that the simulation sees what the rule
prevents.
"""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from coordinator import commands as cmd
from coordinator import events as ev
from coordinator import state as co
from coordinator.machine import advance
from pipeline.keys import Key, Kind
from pipeline.plan import Plan
from pipeline.schedule import Schedule
from simulator.arithmetic import Number
from simulator.cluster import Cluster
from stage_server.instructions import CommitOrder, Install
from stage_server.outbox import Outbox
from stage_server.worker import Worker

Decide = Callable[[co.State, ev.Event, float], tuple[co.State, tuple[cmd.Command, ...]]]


class WithoutEra(Worker[Number]):
    """Rule 1 off: keys forget their era."""

    def _key(self, kind: Kind, stage: int, index: int) -> Key:
        return super()._key(kind, stage, index)._replace(era=0)

    def _of_this_era(self, key: Key) -> bool:
        return True

    def _begin_era(self, plan: Plan) -> None:
        kept = [(k, self.mailbox.get(k)) for k in self.mailbox]
        super()._begin_era(plan)
        for key, value in kept:
            self.mailbox.put(key, value)


class WithoutVersion(Worker[Number]):
    """Rule 2 off: the next step begins before the commit is applied."""

    def take_commit(self, commit: CommitOrder) -> None:
        if commit.era == self.era and commit.step == self.version:
            self.version += 1
            self._forget_step()


class WithoutProducer(Worker[Number]):
    """Rule 3 off: a tensor is taken and acknowledged whatever the plans of sender and receiver say."""

    def _arrive(self, arrival: Any) -> None:
        if self.plan is not None:
            arrival = arrival._replace(order=(0, 0))
        super()._arrive(arrival)

    def _is_stale(self, plan: Plan) -> bool:
        return False


class Forgetful(Outbox[Number]):
    def acknowledge(self, key: Key, node: str, incarnation: int) -> None:
        super().acknowledge(key, node, incarnation)
        self._values.pop(key, None)


class WithoutKeeping(Worker[Number]):
    """Rule 5 off: a producer drops what has been acknowledged."""

    def __init__(self, node: str, incarnation: int, schedule: Schedule, steps: int) -> None:
        super().__init__(node, incarnation, schedule, steps)
        self.outbox = Forgetful()


class WithoutHeir(Worker[Number]):
    """Rule 9 off: the heir goes on where the lost owner stood, as if its accumulators had come along."""

    def _promote(self, stage: int, plan: Plan) -> None:
        super()._promote(stage, plan)
        self._done |= self._heir._known


class WithoutSeedingByLayer(Worker[Number]):
    """Rule 11 off: a fetched layer counts as if it were at the version that its new holder has."""

    def next_work(self) -> Any:
        work = super().next_work()
        return replace(work, version=self.version) if isinstance(work, Install) else work


def without_facts(state: co.State, event: ev.Event, now: float) -> tuple[co.State, tuple[cmd.Command, ...]]:
    """Rule 6 off: a plan change throws away who was ready."""
    before = state.generation
    state, commands = advance(state, event, now)
    return (replace(state, facts={}), commands) if state.generation != before else (state, commands)


def without_determinism(state: co.State, event: ev.Event, now: float) -> tuple[co.State, tuple[cmd.Command, ...]]:
    """Rule 7 off: losses are added up as reports come in, a repeated one twice."""
    if isinstance(event, ev.Ready) and event.losses and state.losses and event.step == state.committed:
        state = replace(state, losses=state.losses + event.losses[:1])
    return advance(state, event, now)


def without_double_role(state: co.State, event: ev.Event, now: float) -> tuple[co.State, tuple[cmd.Command, ...]]:
    """Rule 10 off: the lost node goes on as a standby that commits wait for."""
    before = state.plan
    state, commands = advance(state, event, now)
    plan = state.plan
    if plan is not None and before is not None and plan.generation == before.generation + 1 and plan.era == before.era:
        stages = tuple(
            replace(s, standbys=b.standbys) if s.owner == b.owner else s
            for s, b in zip(plan.stages, before.stages, strict=True)
        )
        plan = replace(plan, stages=stages, members={**before.members, **plan.members})
        state = replace(state, plan=plan)
        commands = tuple(replace(c, plan=plan) if isinstance(c, cmd.Publish) else c for c in commands)
    return state, commands


def without_incarnation(state: co.State, event: ev.Event, now: float) -> tuple[co.State, tuple[cmd.Command, ...]]:
    """Rule 13 off: a process that was started again counts as the one before."""
    known = state.nodes.get(getattr(event, "node", ""))
    if known is not None and getattr(event, "incarnation", known.incarnation) != known.incarnation:
        event = replace(event, incarnation=known.incarnation)  # type: ignore[arg-type]
    return advance(state, event, now)


def without_versions(state: co.State, event: ev.Event, now: float) -> tuple[co.State, tuple[cmd.Command, ...]]:
    """Rule 8 off: a coordinator that took over trusts what was persisted, not what the nodes have applied."""
    if isinstance(event, ev.Available) and event.version > state.committed:
        event = replace(event, version=state.committed, plan=None, last_commit=None)
    return advance(state, event, now)


class WithoutTerm(Worker[Number]):
    """Rule 12 off: a leader that was replaced is attended and obeyed as well."""

    @property
    def term(self) -> int:
        return 0

    @term.setter
    def term(self, value: int) -> None:
        pass

    def _is_stale(self, plan: Plan) -> bool:
        return self.plan is not None and plan.generation <= self.plan.generation


def play(seed: int, make_worker: Any = Worker, decide: Decide = advance, outages: bool = False) -> None:
    draw = random.Random(seed)
    stages = draw.choice([2, 3, 4])
    Cluster(
        seed,
        stages=stages,
        layers=stages + draw.choice([0, 1, 3]),
        microbatches=draw.choice([1, 2, 3]),
        steps=draw.choice([8, 15] if outages else [3, 5]),
        spares=draw.choice([0, 1]),
        disturb=draw.choice([1, 2, 3]),
        outages=draw.choice([2, 3]) if outages else 0,
        make_worker=make_worker,
        decide=decide,
    ).run()


WORKERS = [WithoutEra, WithoutVersion, WithoutProducer, WithoutKeeping, WithoutHeir, WithoutSeedingByLayer]
DECISIONS = [without_facts, without_determinism, without_double_role, without_incarnation]
OUTAGES = [without_versions, WithoutTerm]


def first_failure(limit: int, **rule: Any) -> int | None:
    """The first seed that breaks without the rule."""
    for seed in range(limit):
        try:
            play(seed, **rule)
        except (AssertionError, KeyError, IndexError):
            return seed
    return None


@pytest.mark.parametrize("rule", [*WORKERS, *DECISIONS, *OUTAGES], ids=lambda rule: rule.__name__)
def test_without_the_rule_a_history_breaks(rule: Any) -> None:
    switched_off = {"make_worker": rule} if isinstance(rule, type) else {"decide": rule}
    outages = rule in OUTAGES
    seed = first_failure(1500, outages=outages, **switched_off)
    assert seed is not None, "the simulation does not see what this rule prevents"
    play(seed, outages=outages)  # and with the rule that very history is exact
