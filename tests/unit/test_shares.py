"""Shares of checkpoints come from nodes that write at their own pace (rule 14)."""

from dataclasses import replace

from culm.coordinator.checkpoints import SHARES_KEPT, saved
from culm.coordinator.commands import Command, Record, WriteManifest
from culm.coordinator.decide import begin
from culm.coordinator.reports import Saved
from culm.coordinator.state import Settings, State
from culm.pipeline.checkpoints.manifest import File

SETTINGS = Settings(stages=2, microbatches=1, steps=10_000, checkpoint_url="file:///runs")
STATE = replace(begin(SETTINGS), layer_costs=(1.0, 1.0), committed=10_000)


def share(layer: int, step: int) -> Saved:
    name = f"layer-{layer:05d}.safetensors"
    files = {layer: (File(name, 8, "ab" * 32),)}
    return Saved(node=f"n{layer}", incarnation=1, era=0, step=step, files=files, loss=0.5)


def after(state: State, *shares: Saved) -> tuple[State, list[Command]]:
    commands: list[Command] = []
    for each in shares:
        state, more = saved(state, each)
        commands.extend(more)
    return state, commands


def test_a_share_that_comes_many_checkpoints_later_makes_its_step_whole() -> None:
    """One node needs as long for a share as the other for five: no step was ever whole, and nobody was told."""
    state, commands = after(STATE, *(share(0, step) for step in range(10, 60, 10)))
    assert not commands
    state, commands = after(state, share(1, 10))
    assert [c.step for c in commands if isinstance(c, WriteManifest)] == [10]


def test_a_node_that_never_writes_its_share_is_told_of_once() -> None:
    shares = [share(0, 10 * (n + 1)) for n in range(SHARES_KEPT + 2)]
    state, commands = after(STATE, *shares)
    assert len(state.saved) == SHARES_KEPT
    (record,) = commands
    assert isinstance(record, Record)
    assert "no node has written layer 1 in the last 64 checkpoints" in record.text
    assert "no node has written layer 1" in state.storage.fault
