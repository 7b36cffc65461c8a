"""How good the weights were before the running step, and what follows from that where the run has ended early."""

# What was best before a version is kept in two places, and nowhere else (``culm.pipeline.early_stop``):
#
#     the last commit         of the step that led to the version; nodes repeat it, and it is persisted
#     the era's origin        until the era's first commit; the plan tells it, and so does the checkpoint's manifest
#
# So whoever knows what is committed knows this as well: a holder that a commit waits for has heard every commit of its
# era since it became one.

from culm.coordinator.state import Settings, State
from culm.pipeline.early_stop import BestSoFar, EarlyStop


def best_so_far(state: State) -> BestSoFar | None:
    """Before the version that the running step begins with; None: nobody who is here knows."""
    last = state.last_commit
    if last is not None and last.step + 1 == state.committed:
        return last.best_so_far
    return state.origin.best_so_far if state.committed == state.origin.step else None


def forgotten(state: State) -> str:
    """Why the running step cannot be committed, or nothing: whether the run ends with it would be a guess."""
    last = state.last_commit
    known = state.committed == state.origin.step or (last is not None and last.step + 1 == state.committed)
    if known or not state.settings.worse_allowed:
        return ""
    return f"nobody is left who knows which evaluation was the best before step {state.committed}"


def of_checkpoint(state: State, step: int) -> BestSoFar | None:
    """Before the version of a checkpoint, as far as it is known here."""
    last, stop = state.last_commit, state.ending.early_stop
    if last is not None and min(last.step + 1, state.steps) == step:
        return last.best_so_far
    return stop.best_so_far if stop is not None and stop.step == step else None


def over_in_words(state: State) -> str:
    """Of a run of which no step follows: why."""
    stop = state.ending.early_stop
    return in_words(state.settings, stop) if stop is not None else "every step is committed"


def in_words(settings: Settings, stop: EarlyStop) -> str:
    """Why the run has ended."""
    return stop.in_words(("loss", *settings.tally.metrics)[settings.best.place])
