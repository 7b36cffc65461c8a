"""When a checkpoint is whole, and which one a new era begins from."""

from dataclasses import replace

from coordinator.commands import Persist, Record, WriteManifest
from coordinator.decisions import Decision
from coordinator.events import CheckpointBad, Checkpointed, Saved
from coordinator.membership import roll_back
from coordinator.state import State
from pipeline.manifest import folder_of


def saved(state: State, event: Saved) -> Decision:
    """Files of one step, layer by layer: all holders write the same, so it does not matter whose they are."""
    known = any(step == event.step for step, _ in state.checkpoints)
    if event.era != state.era or known or event.step > state.committed:
        return state, ()
    before = state.saved.get(event.step, {})
    files = {**before, **event.files}
    state = replace(state, saved={**state.saved, event.step: files})
    if len(before) == len(state.layer_costs) or len(files) < len(state.layer_costs):
        return state, ()
    commit = state.last_commit
    loss = commit.loss if commit is not None else 0.0
    return state, (WriteManifest(event.step, loss, state.fingerprint, files),)


def checkpointed(state: State, event: Checkpointed) -> Decision:
    folder = folder_of(state.settings.checkpoint_url, event.step)
    kept = [c for c in state.checkpoints if c[0] in event.kept and c[0] != event.step]
    state = replace(
        state,
        checkpoints=tuple(sorted([*kept, (event.step, folder)])),
        saved={step: files for step, files in state.saved.items() if step > event.step},
    )
    text = f"the checkpoint of step {event.step} is whole: {folder}"
    return state, (Persist(), Record("checkpoint", text, {"step": str(event.step), "folder": folder}))


def bad(state: State, event: CheckpointBad) -> Decision:
    """The era's origin cannot be read: another era begins from the one before."""
    if not any(step == event.step for step, _ in state.checkpoints):
        return state, ()
    state = replace(state, checkpoints=tuple(c for c in state.checkpoints if c[0] != event.step))
    if state.plan is None or state.plan.origin_step != event.step or state.committed != event.step:
        return state, (Persist(),)
    return roll_back(state, f"{event.node} cannot read the checkpoint of step {event.step}: {event.why}")
