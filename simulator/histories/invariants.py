"""What has to hold after every event of a simulated history, by the number of the rule (docs/rules.md)."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

from culm.coordinator import state as co
from culm.coordinator.commands import Command, Commit, Publish
from culm.coordinator.decide import validate
from culm.coordinator.membership import usable
from culm.coordinator.zone_places import most_apart
from culm.pipeline.money.kinds import Done
from culm.pipeline.origin import Origin
from culm.pipeline.terms import ERAS_BITS
from culm.simulator.histories.world import Leader, Node, Storage, World
from culm.stage_server.worker.validate import validate as validate_worker

# Which rule is held where. The worker's and the coordinator's own ``validate`` run after every event besides.
#
#     rule       what must not be seen                                              where
#     2          work, or a commit, on another version; a claimed version that      arithmetic, check_node
#                the arithmetic does not have
#     2, 7, 11   state that differs from the plain loop's at its version            check_node
#     6          a fact on record of a gradient that the node does not have         check_coordinator
#     7          one step of an era committed with two losses                       Cluster.note_commit
#     12, 15     a lower term obeyed after a higher one; two leaders of one term    simulated_attendance
#     8          a plan of its own by a leader that still hears from nodes          check_takeover
#     14         an era that passes over a whole checkpoint                         check_rollback
#     16         a run that failed though the job is not at fault                   start_up.check_verdict
#     done       a run that is done, of which the event log does not say so         check_log
#     17         weights nowhere, nodes kept or let go too early                    after_the_end
#     18         something made as large as a message said                          hostile_peer
#     25         a step that is committed though its holders' states differ            check_gate
#     zones      a new shape whose owners of a stage could be apart, and are not      check_zones
#     all        a loss or a state that differs at the end; a history that is stuck Cluster.run
#
# Rules without a line show by their consequences: a lost or repeated tensor changes a number, or a history is stuck.


def check_node(node: Node, expected: Callable[[Node, int, int], int]) -> None:
    """Raises AssertionError. ``expected``: the state that a node should have of a layer, at a version."""
    worker, arithmetic, name = node.worker, node.arithmetic, node.name
    for layer, version in arithmetic.versions.items():
        claimed = worker.holdings.version_of(layer)
        # While work runs, or a plan is yet to be arranged, the worker may be ahead of the arithmetic or behind it.
        if worker.must_arrange or node.busy or claimed is None:
            continue
        assert claimed == version, f"{name} takes layer {layer} at version {version} for {claimed} (rule 2)"
        exact = arithmetic.states[layer] == expected(node, version, layer)
        assert exact, (
            f"{name} has another layer {layer} at version {version} than it should (rules 2, 4, 7, 11, 19 to 21)"
        )
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
            continue  # it has applied a commit, and dropped its gradients, or has one still to apply
        here, plan = {key.index for key in node.worker.post.mailbox.reduced(state.committed)}, node.worker.plan
        assert plan is not None
        held = {layer for layer, addends in enumerate(plan.addends) if here.issuperset(x.bucket for x in addends)}
        assert layers <= held, f"{name} is on record with gradients of {sorted(layers - held)} that it does not have"


def check_takeover(before: co.State, commands: Sequence[Command]) -> None:
    """Raises AssertionError if a leader that still hears from nodes makes a plan (rule 8)."""
    published = [command for command in commands if isinstance(command, Publish)]
    assert before.took_over_at is None or not published, "a leader makes a plan before it has heard all nodes (rule 8)"


def check_rollback(before: co.State, state: co.State, storage: Storage, doubted: Collection[Origin] = ()) -> None:
    """Raises AssertionError if a new era passes over a checkpoint that is whole and known (rule 14).

    doubted: those that a run that audits goes behind on purpose (rule 25).
    """
    if state.era != max(before.era + 1, state.term << ERAS_BITS):
        return  # no era of this coordinator's own making
    over = [c for c in before.checkpoints if c.step > state.origin.step and c not in doubted and storage.is_whole(c)]
    assert not over, f"an era begins from {state.origin} though {over[-1]} is whole (rule 14)"


def check_beginning(before: co.State, leader: Leader, storage: Storage) -> None:
    """Raises AssertionError if an era begins beside a newer checkpoint that is whole and not on record (rule 14).

    One that was put on record while the era waited for nodes changes its origin no more.
    """
    state = leader.state
    if before.plan is None and state.plan is not None and state.plan.term == state.term:
        over = storage.passed_over(state.origin, leader) if state.committed == state.origin.step else []
        over = [c for c in over if c not in state.checkpoints]
        assert not over, f"an era begins from {state.origin} beside {over[-1]} (rule 14)"


def check_gate(world: World, before: co.State, state: co.State, commit: Commit) -> None:
    """Raises AssertionError if a step is committed though holders of a layer differ in its state (rule 25).

    Not counted is a state of which a bit flipped once its digest was taken: the next gate finds that.
    """
    plan = before.plan
    if plan is None or before.era != commit.era:
        return
    for stage in plan.stages:
        present = [world.nodes[name] for name in stage.required() if name in state.nodes]
        holders = [n for n in present if n.alive and n.incarnation == plan.members[n.name].incarnation]
        for layer in stage.layers:
            said = {
                node.name: node.arithmetic.states[layer]
                for node in holders
                if node.worker.era == commit.era
                and node.arithmetic.versions.get(layer) == commit.step
                and node.arithmetic.late.get(layer) != commit.step
            }
            same = len(set(said.values())) < 2
            assert same, f"step {commit.step} is committed, and layer {layer} is not the same on {said} (rule 25)"


def check_log(world: World) -> None:
    """Raises AssertionError if the run is done and the event log does not say so: who follows it would wait.

    If the history ends before another coordinator takes over from a dead one, it is for that one to say so.
    """
    unwritten = [record for leader in world.leaders if leader.alive for record in leader.unwritten]
    if world.deciding.alive and world.state.phase is co.Phase.DONE:
        said = any(isinstance(record.event, Done) for _, record in [*world.records, *unwritten])
        assert said, "the run is done, and no event says so"


Told = tuple[float, tuple[float, ...], tuple[float, ...]]  # of a commit: the loss, what was measured and evaluated


def check_end(
    world: World,
    losses: Mapping[tuple[int, int], Told],
    expected: Callable[[Node, int, int], int],
    exact: bool,
) -> None:
    """Raises AssertionError unless all that was committed, and all holders' states, are the plain loop's.

    losses: by era and step; of an audited run only those of the last era, since an earlier one may have ended for what
    was wrong in it. expected: as of ``check_node``. exact: false on uneven hardware, where holders agree and no more.
    """
    state, oracle, trained = world.state, world.oracle, world.trained
    plan = state.plan
    assert plan is not None
    assert state.committed == world.end, f"the run ends after {state.committed} steps, not {world.end}"
    for step in range(state.origin.step, world.end):
        assert (state.era, step) in losses, f"step {step} was never committed"
    for (era, step), (loss, measured, evaluated) in losses.items() if exact else ():
        if world.audit and era != state.era:
            continue
        right = oracle.losses[step] if step < trained else loss
        assert loss == right or step >= trained, f"the loss of step {step} in era {era} is {loss}, not {right}"
        right_metrics = oracle.measured[step] if step < trained else ()
        assert measured == right_metrics, f"step {step} in era {era} has measured {measured}, not {right_metrics}"
        found = oracle.evaluated.get(step, ())
        assert evaluated == found, f"step {step} in era {era} has evaluated {evaluated}, not {found}"
    for step, loss in world.storage.losses if exact and not world.audit else ():
        right = oracle.losses[step - 1]
        assert loss == right, f"the checkpoint of step {step} is said to have the loss {loss}, not {right}"
    for s, stage in enumerate(plan.stages):
        for name in stage.required():
            node = world.nodes[name]
            if node.incarnation != plan.members[name].incarnation or not node.alive or node.frozen:
                continue
            for layer in stage.layers:
                same = node.arithmetic.states[layer] == expected(node, world.end, layer)
                assert same, f"{name} ends with another layer {layer} of stage {s}"


def check_zones(before: co.State, state: co.State, zones: Mapping[str, str]) -> None:
    """Raises AssertionError if stages of several owners that were just chosen are not as far apart as can be.

    Stages that an era begins with, or a target. What lost nodes leave is as it comes. ``zones``: of the nodes.
    """
    plan, old = state.plan, before.plan
    if plan is None or plan.term != state.term or plan.generation == before.generation:
        return
    begins = old is None or old.era != plan.era
    chosen = plan.stages if begins else plan.target if old is None or plan.target != old.target else ()
    if any(len(stage.distinct_owners) == 1 for stage in chosen):
        return
    # Of the nodes that were there a beginning may have passed over some, for lack of memory. A target may leave out
    # half of the newcomers or more, where state would not move to all of them before the next one is lost.
    nodes, there = {n for stage in chosen for n in stage.distinct_owners}, set(usable(state))
    if old is not None and not begins:
        known = {n for stage in old.stages for n in stage.distinct_owners}
        nodes = nodes if len(nodes - known) <= len(there - known) // 2 else there
    apart = sum(len({zones[n] for n in stage.distinct_owners if zones.get(n)}) > 1 for stage in chosen)
    most = most_apart(Counter(zones.get(n, "") for n in nodes), len(chosen))
    assert apart >= most, f"of {len(chosen)} stages {apart} have owners in two zones, and {most} could have"
