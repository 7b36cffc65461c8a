"""What GetStatus answers: how fast the run is."""

import time
from dataclasses import replace
from pathlib import Path

import pytest

from culm.coordinator.decide import begin
from culm.coordinator.edges.coordinator_settings import CoordinatorSettings
from culm.coordinator.edges.event_log import EventLog
from culm.coordinator.edges.run_status import RunStatus
from culm.coordinator.edges.store import MemoryStore
from culm.coordinator.state import Phase, State
from culm.pipeline.job import load_job

EXAMPLES = Path(__file__).parents[2] / "examples"
HOURS = 3600.0


class Run:
    """A run whose steps take a second, and its status."""

    def __init__(self) -> None:
        settings = CoordinatorSettings(job=load_job(EXAMPLES / "digits_mlp.toml", []))
        self.samples = settings.job.samples_per_step
        self.state: State = replace(begin(settings.decisions()), phase=Phase.RUNNING)
        self.now = 0.0
        self._status = RunStatus(settings)
        self._log = EventLog(MemoryStore(), 1, time.time)

    def commits(self, steps: int, then: Phase = Phase.RUNNING) -> None:
        for left in reversed(range(steps)):
            self.now += 1.0
            self.state = replace(self.state, phase=Phase.RUNNING if left else then)
            self._status.committed(self.state, self.now)

    def steps_per_second(self) -> float:
        return self._status.response(self.state, self._log, self.now, 0.0).samples_per_second / self.samples


def test_a_pause_is_no_slow_step() -> None:
    run = Run()
    run.commits(20, then=Phase.PAUSED)
    assert run.steps_per_second() == 0.0
    run.now += 8 * HOURS
    run.state = replace(run.state, phase=Phase.RUNNING)
    assert run.steps_per_second() == 0.0, "no step of it is known yet"
    run.commits(2)
    assert run.steps_per_second() == 1.0


@pytest.mark.parametrize("phase", [Phase.WAITING, Phase.FAILED])
def test_a_run_that_trains_nothing_has_no_speed(phase: Phase) -> None:
    run = Run()
    run.commits(20)
    run.state = replace(run.state, phase=phase)
    assert run.steps_per_second() == 0.0


def test_the_wait_after_a_rollback_is_no_slow_step() -> None:
    run = Run()
    run.commits(20)
    run.now += 8 * HOURS
    run.state = replace(run.state, era=run.state.era + 1)
    run.commits(2)
    assert run.steps_per_second() == 1.0


def test_a_run_that_is_done_shows_the_speed_it_had() -> None:
    run = Run()
    run.commits(20, then=Phase.DONE)
    run.now += 8 * HOURS
    assert run.steps_per_second() == 1.0
