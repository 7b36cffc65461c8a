"""Histories of everything with several pipelines: a stage's owner runs it in all of them."""

import os

import pytest

from culm.coordinator import state as co
from tests.simulation.test_everything import history_of_everything

SOAK = os.environ.get("CULM_SOAK") == "1"


@pytest.mark.parametrize("fifteen", range(200 if SOAK else 1))
def test_however_many_pipelines_the_history_ends_exact(fifteen: int) -> None:
    for seed in range(fifteen * 15, fifteen * 15 + 15):
        cluster = history_of_everything(seed, pipelines=(2, 3, 5)[seed % 3]).run()
        assert cluster.state.phase is co.Phase.DONE, f"seed {seed}"
