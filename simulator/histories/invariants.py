"""What has to hold after every event of a simulated history, by the number of the rule (docs/protocol.md)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from culm.coordinator import state as co
from culm.coordinator.decide import validate
from culm.pipeline.keys import Kind
from culm.pipeline.terms import ERAS_BITS
from culm.stage_server.worker.outbox import COMMITS_TO_WAIT

if TYPE_CHECKING:
    from culm.simulator.histories.cluster import Cluster
    from culm.simulator.histories.node import SimulatedNode
    from culm.simulator.histories.storage import SimulatedStorage


def check_node(node: "SimulatedNode", states: Sequence[Sequence[int]]) -> None:
    """Raises AssertionError. ``states`` are the plain loop's, by version and layer."""
    worker, arithmetic, name = node.worker, node.arithmetic, node.name
    for layer, version in arithmetic.versions.items():
        claimed = worker.holdings.version_of(layer)
        if worker.must_arrange or node.busy or claimed is None:
            continue
        assert claimed == version, f"{name} takes layer {layer} at version {version} for {claimed} (rule 2)"
        exact = arithmetic.states[layer] == states[version][layer]
        assert exact, f"{name} has another layer {layer} at version {version} than the plain loop (rules 2, 7, 11)"
    for key in worker.post.mailbox:
        assert key.era == worker.era, f"{name} holds {key} in era {worker.era} (rule 1)"
        assert worker.version <= key.step <= worker.committed + 1, f"{name} holds {key} in {worker.version} (rule 5)"
    for key in worker.post.outbox:
        oldest = worker.version - (COMMITS_TO_WAIT if key.kind is Kind.REDUCED else 0)
        kept = key.era == worker.era and oldest <= key.step <= worker.version
        assert kept, f"{name} keeps {key} in step {worker.version} of era {worker.era} (rule 5)"
        assert key.duty in worker.runner.duties.owned(), f"{name} keeps {key} of a stage that is not its own (rule 3)"
    for fact in worker.repeat_facts():
        assert (fact.era, fact.step) == (worker.era, worker.version), f"{name} repeats an old fact (rule 6)"
    owned = worker.plan.duties_of(name) if worker.plan is not None else ()
    runs = tuple(worker.runner.duties.owned())
    assert runs == owned, f"{name} runs {runs}, its plan gives it {owned}"
    # One that is told of a commit beyond its next has been passed over: it has given up all that it held, and forfeits
    # its place with that commit.
    passed_over = worker.committed > worker.version and not worker.holdings.kept()
    for s, stage in enumerate(worker.plan.stages if worker.plan is not None and not passed_over else ()):
        for layer in stage.layers if name in stage.required() else ():
            here = worker.holdings.version_of(layer) is not None or worker.holdings.lacks(layer)
            assert here, f"{name} is taken for a holder of stage {s} and has no state of layer {layer} (rule 6)"


def check_coordinator(cluster: "Cluster", state: co.State) -> None:
    """Raises AssertionError if the state breaks an invariant of its own, or takes for a fact what is none (rule 6)."""
    validate(state)
    for name, layers in state.facts.items():
        node = cluster.nodes.get(name)
        known = state.nodes.get(name)
        if node is None or known is None or node.incarnation != known.incarnation or node.worker.era != state.era:
            continue
        if node.worker.version != state.committed:
            continue
        held = {key.index for key in node.worker.post.mailbox.reduced(state.committed)}
        assert layers <= held, f"{name} is on record with gradients of {sorted(layers - held)} that it does not have"


def check_rollback(before: co.State, state: co.State, storage: "SimulatedStorage") -> None:
    """Raises AssertionError if a new era passes over a checkpoint that is whole and known (rule 14)."""
    if state.era != max(before.era + 1, state.term << ERAS_BITS):
        return  # no era of this coordinator's own making
    over = [c for c in before.checkpoints if c.step > state.origin.step and storage.is_whole(c)]
    assert not over, f"an era begins from {state.origin} though {over[-1]} is whole (rule 14)"
