"""How good the weights in checkpoints are, and which of them are the best so far."""

# An evaluation of version t is known with the commit of step t. Its checkpoint may be whole before that, or after. When
# both are known the numbers are written beside the checkpoint. A leader that knows nothing else reads them there.

from collections.abc import Mapping
from dataclasses import replace

from culm.coordinator.commands import WriteEvaluation
from culm.coordinator.state import State
from culm.pipeline.origin import Origin

KEPT = 64  # steps that were evaluated and have no checkpoint: it may come late


def noted(state: State, known: Mapping[int, tuple[float, ...]]) -> State:
    """These are on record, by step."""
    found = {**state.evaluated, **{step: numbers for step, numbers in known.items() if numbers}}
    saved = {checkpoint.step for checkpoint in state.checkpoints}
    newest = sorted(found.keys() - saved)[-KEPT:]
    return replace(state, evaluated={step: found[step] for step in sorted(found) if step in saved or step in newest})


def written(state: State, step: int) -> tuple[WriteEvaluation, ...]:
    """What is to be written now that the step has an evaluation, or a checkpoint: nothing, unless it has both."""
    folders = [checkpoint.folder for checkpoint in state.checkpoints if checkpoint.step == step]
    return tuple(WriteEvaluation(folder, state.evaluated[step]) for folder in folders if step in state.evaluated)


def best_checkpoint(state: State) -> Origin | None:
    """The one to keep, if the job asks for it and one was evaluated."""
    if not state.settings.keeps_best:
        return None
    saved = {checkpoint.step: checkpoint for checkpoint in state.checkpoints}
    step = state.settings.best.of({step: state.evaluated[step] for step in saved if step in state.evaluated})
    return saved[step] if step is not None else None
