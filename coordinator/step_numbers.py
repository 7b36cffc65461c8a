"""What the facts of a step come to: the scale of its gradient, its loss, and how good its weights were (rule 7)."""

# From the facts alone, so any coordinator with these facts comes to the same numbers, bit for bit.

import math
from dataclasses import dataclass

from culm.coordinator.state import State
from culm.coordinator.stopping_early import best_so_far
from culm.pipeline import tally
from culm.pipeline.clip import SKIPPED, clip_scale, fault_in, norm_of
from culm.pipeline.early_stop import NONE_SO_FAR, BestSoFar, EarlyStop, early_stop


@dataclass(frozen=True, slots=True, kw_only=True)
class StepNumbers:
    """Of the step that is to be committed."""

    scale: float
    loss: float
    norm: float = 0.0  # of the whole gradient, before clipping; 0 where the job clips nothing, or the step is skipped
    measured: tuple[float, ...] = ()  # each metric of training
    learning_rate: float | None = None  # as ``Commit.learning_rate``
    evaluated: tuple[float, ...] = ()  # the loss of what was evaluated, then each metric; of most steps nothing
    best_so_far: BestSoFar | None  # as ``Commit.best_so_far``
    early_stop: EarlyStop | None = None  # the run ends with the weights that were evaluated: the step changes nothing
    fault: str = ""  # which number is not finite, in words
    skipped: str = ""  # why the step changes nothing, in words; the closing step changes nothing anyhow


def numbers_of(state: State) -> StepNumbers:
    """Every holder that the plan requires is on record."""
    settings, step = state.settings, state.committed
    trained, evaluated = tally.parted(state.tallies, settings.evaluated_in(step), settings.pipelines)
    means = tally.means(evaluated, settings.tally.evaluated, settings.pipelines) if evaluated else ()
    best = best_so_far(state)
    if settings.worse_allowed and best is None:  # its origin does not tell: it counts from there on
        best = NONE_SO_FAR
    closes = step >= settings.steps
    stop = None
    if best is not None and not closes:
        stop = early_stop(best, settings.best, settings.worse_allowed, step, means)
    if closes or stop is not None:
        loss = state.last_commit.loss if state.last_commit is not None else math.nan
        return StepNumbers(scale=SKIPPED, loss=loss, evaluated=means, best_so_far=best, early_stop=stop)
    form = settings.tally
    fault = fault_in(state.norms, tally.losses(trained, form), settings.pipelines)
    count = tally.counted(trained, form, settings.pipelines)
    skipped = fault or ("" if count else "nothing counts in any of its microbatches")
    norms = [state.norms[layer] for layer in sorted(state.norms)]
    return StepNumbers(
        scale=SKIPPED if skipped else clip_scale(norms, settings.clip_norm, count),
        loss=tally.loss(trained, form, settings.pipelines),
        measured=tally.measured(trained, form, settings.pipelines),
        learning_rate=tally.learning_rate(trained, form),
        norm=norm_of(norms, count) if settings.clip_norm is not None and not skipped else 0.0,
        evaluated=means,
        best_so_far=best.after(settings.best, step, means) if means and best is not None else best,
        fault=fault,
        skipped=skipped,
    )
