"""What happens to a simulated run after its last commit: nodes are lost and join, and coordinators are told to stop."""

from dataclasses import dataclass

from culm.coordinator import ending, reports
from culm.coordinator import state as co
from culm.pipeline.origin import Origin
from culm.simulator.histories.world import World

# An afterlife holds rule 17 against random happenings:
#
#     last commit    happenings        calm                      fetch, or a checkpoint was enough      over
#         |---x----x-------x--------------------------------------------|------------------------------|
#                                every stage is repaired        weights equal the plain loop's    every node has gone
#
# Whatever happens begins the calm anew. A run that loses every copy of a stage leaves DONE, trains again from its
# checkpoint, and the calm begins after its next last commit.

PAUSES = (0.05, 1.0, 4.0)  # seconds between two happenings, at most
CALM_SECONDS = 25.0  # in which what was lost is back, and redundancy is repaired
AWAY_SECONDS = (0.1, 1.0, 5.0, 12.0)  # that a coordinator which was told to stop is away


@dataclass(frozen=True)
class Afterlife:
    """``happenings`` after the last commit, each at a random moment. ``apart``: calm lies between two of them."""

    happenings: int = 0
    apart: bool = False
    coordinators: bool = True  # are killed and told to stop as well


class Ending:
    """The end of a history, from its last commit on. Without an afterlife it is over once all holders are there."""

    def __init__(self, world: World, afterlife: Afterlife | None) -> None:
        self._world = world
        self._afterlife = afterlife
        self._begun = False
        self._calm_at: float | None = None  # until then nothing more happens
        self._late = 0
        self.rolled_back = 0  # how often the run left the phase done again
        self.fetched = False

    def over(self) -> bool:
        """Whether the history is at its end. Raises AssertionError if the weights cannot be fetched, or are wrong."""
        world, leader = self._world, self._world.deciding
        state = leader.state
        if self._afterlife is None:
            return world.at_its_end()
        if self.fetched:
            return self._all_gone()
        if state.ending.released:
            self._read_checkpoint()
            return False
        if state.phase is not co.Phase.DONE or state.plan is None:
            if self._calm_at is not None and state.phase is not co.Phase.DONE:
                self.rolled_back += 1
                self._calm_at = None
            return False
        if not self._begun:
            self._begun = True
            self._schedule(self._afterlife)
        if self._calm_at is None or (world.checkpoint_every and world.storage.fails(readers=True)):
            self._calm_at = max(self._calm_at or 0.0, world.clock.now + CALM_SECONDS)
        if any(node.deaf and node.alive for node in world.nodes.values()):
            return False  # one that was ordered to die, which nobody knows any more where Redis has forgotten it
        if world.clock.now >= self._calm_at and leader.alive and state.took_over_at is None:
            self._fetch()
        return False

    def disturbed(self) -> None:
        """Something has happened: what follows from it takes its time."""
        if self._calm_at is not None:
            self._calm_at = max(self._calm_at, self._world.clock.now + CALM_SECONDS)

    def stop_coordinator(self) -> None:
        """SIGTERM: it writes what is to outlive it, ends, and is started again after a while."""
        world = self._world
        if world.leader.alive:
            world.leader.stop()
            world.clock.after(world.random.choice(AWAY_SECONDS), world.lead)

    def _schedule(self, afterlife: Afterlife) -> None:
        world = self._world
        moment = world.clock.now
        for _ in range(afterlife.happenings):
            moment += CALM_SECONDS if afterlife.apart else world.random.choice(PAUSES) * world.random.random()
            world.clock.at(moment, self._happen)
        self._calm_at = moment + CALM_SECONDS

    def _happen(self) -> None:
        """Something, after which there is calm again."""
        world = self._world
        assert self._afterlife is not None
        what = world.random.random()
        live = [n for n in world.nodes.values() if n.alive and not n.frozen]
        self.disturbed()
        if what < 0.15:
            self._late += 1
            world.boot(f"after{self._late}")
        elif what < 0.35 and self._afterlife.coordinators:
            if what < 0.25 and world.leader.alive:
                world.faults.crash_coordinator()
            else:
                self.stop_coordinator()
        elif live:
            node = world.random.choice(live)
            if what < 0.85:
                world.faults.kill(node)
            elif what < 0.95:
                world.faults.freeze(node)
            else:
                node.tell(reports.Draining(node.name, "its machine is to go"))

    def _fetch(self) -> None:
        """Takes every layer from its stage's owner, as ``culm weights`` does, and says so."""
        world, leader = self._world, self._world.deciding
        state = leader.state
        plan, weights = state.plan, world.oracle.states[world.end]
        assert plan is not None
        for s, stage in enumerate(plan.stages):
            for name in stage.required():
                node = world.nodes[name]
                there = node.alive and node.incarnation == plan.members[name].incarnation
                assert there, f"{name} holds stage {s} of a run that is done, and is gone"
                for layer in stage.layers:
                    assert node.arithmetic.states.get(layer) == weights[layer], f"{name} has another layer {layer}"
        present = [n.node for n in state.nodes.values() if n.available and not n.draining]
        present = [name for name in present if name not in state.parted]
        for s in plan.exposed():
            owner = plan.stages[s].owner
            others = [n for n in present if n != owner and not world.faults.cut_off(n, owner)]
            assert not others, f"stage {s} was not repaired after the run was done, though {others} are there"
        assert ending.is_saved(state) or not world.checkpoint_every, "the last step has no checkpoint, and never will"
        self.fetched = True
        leader.take(reports.Fetched("the simulated user"))

    def _read_checkpoint(self) -> None:
        """The nodes went before anybody fetched: then a checkpoint holds the weights.

        Unless the storage has torn it since it was whole. Culm does not read back what a storage has taken; whoever
        does goes on from the checkpoint before.
        """
        world = self._world
        checkpoints, weights = self._world.deciding.state.checkpoints, world.oracle.states[world.end]
        newest = checkpoints[-1] if checkpoints else Origin()
        assert newest.step == world.trained, "the nodes were let go, and the weights are nowhere"
        if newest.folder not in world.storage.torn:
            assert world.storage.is_whole(newest), f"the nodes were let go, and {newest} is not whole"
            assert world.storage.states(newest) == dict(enumerate(weights)), f"{newest} holds other weights"
        self.fetched = True

    def _all_gone(self) -> bool:
        """Whether every node that attended the one who let them go has ended."""
        leader = self._world.deciding
        if not leader.alive:
            return False
        assert leader.state.ending.released, "the weights were fetched, and the nodes are kept"
        attached = [n for n in self._world.nodes.values() if n.attendance.leader is leader]
        return not any(node.alive and not node.frozen for node in attached)
