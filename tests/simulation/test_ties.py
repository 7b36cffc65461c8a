"""Layers that use one parameter, on grids that lose nodes: each holder applies the sum over all uses (rule 22)."""

import random
from dataclasses import replace
from typing import Any

import pytest

from culm.coordinator import state as co
from culm.simulator.histories.simulated_cluster import Cluster
from culm.stage_server.worker.work import Sum
from culm.stage_server.worker.worker import Worker
from tests.simulation.test_everything import SOAK
from tests.simulation.test_grid import history_of_the_grid


def history(seed: int, **rule: Any) -> Cluster:
    """One of ``history_of_the_grid``, with one to three pairs of layers that are tied."""
    draw = random.Random(seed)
    layers = history_of_the_grid(seed).layers
    pairs = [(first, layer) for layer in range(layers) for first in range(layer)]
    tied = tuple(sorted(draw.sample(pairs, min(len(pairs), draw.choice([1, 1, 2, 3])))))
    return history_of_the_grid(seed, tied=tied, **rule)


@pytest.mark.parametrize("fifty", range(200 if SOAK else 1))
def test_every_holder_applies_the_sum_over_all_uses(fifty: int) -> None:
    for seed in range(fifty * 50, fifty * 50 + (50 if SOAK else 12)):
        cluster = history(seed).run()
        assert cluster.state.phase is co.Phase.DONE, f"seed {seed}"


def test_a_history_with_ties_that_failed_once() -> None:
    """A checkpoint that became whole in the next era was off the record with the commit of its step."""
    history(11909).run()


class TakesTheFirstUse(Worker[Any]):
    """Rule 22 off: a reducer adds up the use of the bucket's own layer alone."""

    def next_work(self) -> Any:
        work = super().next_work()
        return replace(work, uses=work.uses[:1]) if isinstance(work, Sum) else work


def test_a_sum_of_one_use_is_found() -> None:
    with pytest.raises(AssertionError, match=r"another layer|differ|loss"):
        history(1, make_worker=TakesTheFirstUse).run()
