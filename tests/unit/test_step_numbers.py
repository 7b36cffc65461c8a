"""What the facts of a step come to."""

import math
from dataclasses import replace

from culm.coordinator.decide import begin
from culm.coordinator.state import Settings, State
from culm.coordinator.step_numbers import numbers_of
from culm.pipeline.clip import SKIPPED, clip_scale
from culm.pipeline.commit import Commit
from culm.pipeline.evaluations import Evaluations
from culm.pipeline.tally import TallyForm

SETTINGS = Settings(stages=1, microbatches=2, steps=3, clip_norm=1.0)


def with_facts(settings: Settings, *tallies: float, step: int = 0, norms: tuple[float, ...] = (9.0, 16.0)) -> State:
    return replace(begin(settings, 1, 1, None), committed=step, norms=dict(enumerate(norms)), tallies=tallies)


def test_the_norm_is_told_where_it_was_taken() -> None:
    found = numbers_of(with_facts(SETTINGS, 2.0, 4.0))
    assert (found.loss, found.norm, found.scale) == (3.0, 5.0, clip_scale([9.0, 16.0], 1.0))
    assert numbers_of(with_facts(replace(SETTINGS, clip_norm=None), 2.0, 4.0)).norm == 0.0


def test_a_sum_is_divided_and_so_is_its_norm() -> None:
    found = numbers_of(with_facts(replace(SETTINGS, tally=TallyForm(counted=True)), 6.0, 2.0, 4.0, 3.0))
    assert (found.loss, found.norm) == (2.0, 1.0)


def test_a_number_that_is_not_finite_skips_the_step_and_has_no_norm() -> None:
    found = numbers_of(with_facts(SETTINGS, 2.0, math.inf))
    assert (found.scale, found.norm) == (SKIPPED, 0.0)
    assert found.fault == found.skipped != ""


def test_the_closing_step_changes_nothing_and_evaluates() -> None:
    settings = replace(
        SETTINGS, tally=TallyForm(metrics=("right",)), evaluations=Evaluations(every=2, samples=2, size=1)
    )
    state = with_facts(settings, *(1.0, 1.0, 0.0, 1.0), *(3.0, 1.0, 1.0, 1.0), step=3, norms=(0.0,))
    found = numbers_of(replace(state, last_commit=Commit(term=1, era=0, step=2, scale=1.0, loss=0.75)))
    assert (found.scale, found.loss, found.evaluated, found.skipped) == (SKIPPED, 0.75, (2.0, 0.5), "")
    assert math.isnan(numbers_of(state).loss), "nobody knows the last step's"
