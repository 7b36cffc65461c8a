"""A checkpoint that somebody asked for: the next commit asks the nodes for it. Pure."""

# The way of it: SaveAsked, a commit with ``save``, the nodes' shares, a manifest (``checkpoints``). It is asked for
# again by the next commit where a node was lost that may not have written its share yet: no later checkpoint may follow
# soon. Whoever waits for it looks at the checkpoints on record, so nothing of this is persisted.
#
# In a pause no commit comes. The nodes save the version at which the run rests by themselves.

from dataclasses import replace

from culm.coordinator.commands import Record
from culm.coordinator.decisions import Decision
from culm.coordinator.requests import SaveAsked, Saving
from culm.coordinator.state import Phase, State
from culm.pipeline.money import kinds


def step_of(state: State) -> int:
    """Of the checkpoint that somebody gets who asks for one now: the least step that it can be of."""
    return min(state.committed + (state.phase is Phase.RUNNING), state.steps)


def is_whole(state: State, step: int) -> bool:
    """Whether a checkpoint of this step, or a later one, is whole."""
    return bool(state.checkpoints) and state.checkpoints[-1].step >= step


def ask(state: State, report: SaveAsked) -> Decision:
    """Notes that somebody waits for a checkpoint; one that asks again is answered by the same."""
    if not state.settings.checkpoint_url or state.saving is not None or state.phase not in _SAVES:
        return state, ()
    if state.phase is Phase.PAUSED:
        step = step_of(state)
        return (state if is_whole(state, step) else replace(state, saving=Saving(step))), ()
    text = f"{report.who or 'somebody'} asks for a checkpoint: the next commit brings it"
    return replace(state, saving=Saving()), (Record(kinds.SaveAsked(who=report.who), text),)


_SAVES = (Phase.RUNNING, Phase.PAUSED)


def is_due(state: State) -> bool:
    """Whether the commit that is being made is to ask for it."""
    return state.saving is not None and state.saving.step is None and not state.takes_old


def last_is_due(state: State) -> bool:
    """The same of the last one, where every node is to go."""
    return state.stopping is not None and state.stopping.step is None and not state.takes_old


def asked_for(state: State) -> State:
    """The commit that led to the present step asks for it."""
    return replace(state, saving=Saving(min(state.committed, state.steps))) if is_due(state) else state


def made(state: State) -> State:
    """A checkpoint has become whole."""
    saving = state.saving
    over = saving is not None and saving.step is not None and is_whole(state, saving.step)
    return replace(state, saving=None) if over else state


def again(state: State) -> State:
    """A share may be gone, or the run goes on before its nodes have saved: the next commit asks once more."""
    if state.saving is None or state.phase is Phase.PAUSED:
        return state
    return replace(state, saving=Saving())
