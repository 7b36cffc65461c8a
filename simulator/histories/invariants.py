"""What has to hold after every event of a simulated history, by the number of the rule (docs/protocol.md)."""

from collections.abc import Sequence

from culm.coordinator import state as co
from culm.coordinator.decide import validate
from culm.pipeline.terms import ERAS_BITS
from culm.simulator.histories.world import Node, Storage, World
from culm.stage_server.worker.validate import validate as validate_worker


def check_node(node: Node, states: Sequence[Sequence[int]]) -> None:
    """Raises AssertionError. ``states`` are the plain loop's, by version and layer."""
    worker, arithmetic, name = node.worker, node.arithmetic, node.name
    for layer, version in arithmetic.versions.items():
        claimed = worker.holdings.version_of(layer)
        if worker.must_arrange or node.busy or claimed is None:
            continue
        assert claimed == version, f"{name} takes layer {layer} at version {version} for {claimed} (rule 2)"
        exact = arithmetic.states[layer] == states[version][layer]
        assert exact, f"{name} has another layer {layer} at version {version} than the plain loop (rules 2, 7, 11)"
    validate_worker(worker)


def check_coordinator(world: World, state: co.State) -> None:
    """Raises AssertionError if the state breaks an invariant of its own, or takes for a fact what is none (rule 6)."""
    validate(state)
    for name, layers in state.facts.items():
        node = world.nodes.get(name)
        known = state.nodes.get(name)
        if node is None or known is None or node.incarnation != known.incarnation or node.worker.era != state.era:
            continue
        if node.worker.version != state.committed:
            continue
        held = {key.index for key in node.worker.post.mailbox.reduced(state.committed)}
        assert layers <= held, f"{name} is on record with gradients of {sorted(layers - held)} that it does not have"


def check_rollback(before: co.State, state: co.State, storage: Storage) -> None:
    """Raises AssertionError if a new era passes over a checkpoint that is whole and known (rule 14)."""
    if state.era != max(before.era + 1, state.term << ERAS_BITS):
        return  # no era of this coordinator's own making
    over = [c for c in before.checkpoints if c.step > state.origin.step and storage.is_whole(c)]
    assert not over, f"an era begins from {state.origin} though {over[-1]} is whole (rule 14)"
