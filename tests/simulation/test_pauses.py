"""Histories with an operator, who pauses the run, lets it go on and asks for checkpoints (rule 24)."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from culm.coordinator import commits, decide
from culm.coordinator import state as co
from culm.coordinator.edges.persistence import Document, to_document
from culm.pipeline.plan_codec import plan_to_text
from culm.simulator.histories import simulated_coordinators
from culm.simulator.histories.simulated_cluster import Broken, Cluster
from culm.stage_server.worker.applying import Applying
from culm.stage_server.worker.position import Position
from tests.simulation.test_everything import SOAK, history_of_everything
from tests.simulation.test_grid import history_of_the_grid


def history_with_an_operator(seed: int, grid: bool = False) -> Cluster:
    """All that goes wrong elsewhere, at the same moments, and an operator beside it."""
    draw = random.Random(f"paused {seed}")
    asked: dict[str, Any] = {"pauses": draw.choice([1, 1, 2, 3]), "saves": draw.choice([0, 0, 1, 3])}
    return history_of_the_grid(seed, **asked) if grid else history_of_everything(seed, **asked)


@pytest.mark.parametrize("grid", [False, True])
@pytest.mark.parametrize("fifty", range(60 if SOAK else 1))
def test_whatever_goes_wrong_beside_an_operator(fifty: int, grid: bool) -> None:
    paused = 0
    for seed in range(fifty * 50, fifty * 50 + (50 if SOAK else 15)):
        cluster = history_with_an_operator(seed, grid).run()
        assert cluster.state.phase is co.Phase.DONE, f"seed {seed}"
        paused += cluster.faults.operator.paused
    assert paused > 5, "most of them are paused"


@pytest.mark.parametrize(
    ("grid", "seed", "why"),
    [
        (True, 49, "a node went that the stages to be needed: in a pause they were not given up"),
        (False, 1387, "after a takeover newcomers had all files, and nobody was back who knew the loss"),
    ],
)
def test_a_pause_that_failed_once(grid: bool, seed: int, why: str) -> None:
    history_with_an_operator(seed, grid).run()


def test_an_operator_changes_nothing_of_what_is_drawn() -> None:
    """Seeds that are kept mean the same history as before there were operators: theirs is another generator."""
    calm, beside = (history_of_everything(3, **asked) for asked in ({}, {"pauses": 2, "saves": 1}))
    assert calm.random.getstate() == beside.random.getstate()


def forgets(state: co.State) -> Document:
    """What is persisted, without the pause."""
    plan = plan_to_text(replace(state.plan, pause=None)) if state.plan is not None else None
    phase = co.Phase.RUNNING if state.phase is co.Phase.PAUSED else state.phase
    return {**to_document(state), "pause": None, "plan": plan, "phase": phase.value}


def never_rests(without: pytest.MonkeyPatch) -> None:
    """Nodes go on with the next step."""
    without.setattr(Position, "is_paused", property(lambda self: False))


def without_repair(without: pytest.MonkeyPatch) -> None:
    """What was lost stays lost until the run goes on."""
    keep = commits.keep
    without.setattr(decide, "keep", lambda s, now: (s, ()) if s.phase is co.Phase.PAUSED else keep(s, now))


def without_saving(without: pytest.MonkeyPatch) -> None:
    """Nodes save what is due, and not the version of the pause."""
    save = Applying.save_at_rest
    at_the_end = lambda self, last: save(self, last) if self._at.version >= self._at.end else None  # noqa: E731
    without.setattr(Applying, "save_at_rest", at_the_end)


@pytest.mark.parametrize(("rule", "seed"), [(never_rests, 1), (without_repair, 26), (without_saving, 8)])
def test_without_a_part_of_it_a_pause_breaks(
    rule: Callable[[pytest.MonkeyPatch], None], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as without:
        rule(without)
        broken(seed)
    history_with_an_operator(seed).run()


def broken(seed: int) -> None:
    with pytest.raises(AssertionError):
        history_with_an_operator(seed).run()


def test_without_its_persistence_a_pause_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every process ends, and what Redis has says nothing of the pause."""
    with monkeypatch.context() as without:
        without.setattr(simulated_coordinators, "to_document", forgets)
        found = next(seed for seed in range(100) if is_broken(seed))
    stopped_and_paused(found).run()


def stopped_and_paused(seed: int) -> Cluster:
    return Cluster(seed, stages=2, layers=3, steps=8, disturb=0, stops=2, pauses=2)


def is_broken(seed: int) -> bool:
    try:
        stopped_and_paused(seed).run()
    except Broken as error:
        return "is committed in a pause" in str(error)
    return False
