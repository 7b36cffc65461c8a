"""A simulated operator, who pauses the run, lets it go on, and asks for checkpoints, among all that goes wrong."""

# What is drawn here comes from a generator of its own: a seed means the same history whether there is an operator or
# not. The operator is as patient as one at a terminal: what no leader has taken is asked for again.
#
#     pause    asked for until a leader knows it; after a while the run is let go on, until no leader is paused
#     save     asked for once: its checkpoint may be lost with a node
#
# What must hold of a pause (rule 24) is looked at here:
#
# - Once it is in Redis that the run is paused no step is committed before the operator lets the run go on. A Redis that
#   forgets proves nothing, nor does a leader that another one has replaced.
# - A leader that adopts a plan with a pause is paused.
# - In a pause that is long enough every stage that can have a hot standby has one, and the version is in a checkpoint.

import random

from culm.coordinator import commands as cmd
from culm.coordinator import reports, saving
from culm.coordinator import state as co
from culm.coordinator.requests import Pausing, SaveAsked, Unpausing
from culm.pipeline.pause import Pause
from culm.simulator.histories.world import Leader, World

AGAIN_SECONDS = 0.3  # until what nobody has taken is asked for again
CALM_SECONDS = 25.0  # in which what was lost is back, and redundancy is repaired
MOST_ASKED = 60  # times that a pause is asked for: a run may be over, or have no leader


class Operator:
    """Of one history."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = random.Random(f"operator {world.seed}")
        self._wants = False  # the run to be paused
        self._written: co.State | None = None  # what Redis was given last, and has not lost
        self.paused = 0  # pauses that were in effect
        self.repaired = 0  # those in which all was looked at

    def schedule(self, pauses: int, saves: int) -> None:
        """Chooses the moments."""
        moment = 0.05
        for _ in range(pauses):
            moment += self._random.choice([0.03, 0.3, 3.0]) * self._random.random()
            self._world.clock.at(moment, self._pause)
            moment += 0.1
        moment = 0.05
        for _ in range(saves):
            moment += self._random.choice([0.03, 0.3, 3.0]) * self._random.random()
            self._world.clock.at(moment, self._save)

    def written(self, state: co.State) -> None:
        """A leader has written this state to Redis."""
        self._written = state

    def committed(self, commit: cmd.Commit) -> None:
        """A leader commits. Raises AssertionError if the run is paused."""
        known = self._written
        if self._wants and known is not None and known.phase is co.Phase.PAUSED:
            replaced = commit.term < known.term or commit.era < known.era
            assert replaced, f"step {commit.step} is committed in a pause at step {known.committed} (rule 24)"

    def heard(self, before: co.State, report: reports.Report, state: co.State) -> None:
        """A leader has decided on a report. Raises AssertionError if it adopts a plan and not the pause in it."""
        if not isinstance(report, reports.Available) or report.plan is None or report.plan.pause is None:
            return
        adopted = state.plan is not before.plan and state.plan is not None and state.plan.order == report.plan.order
        assert not adopted or state.rests, f"{report.node} obeys a plan with a pause, which is not adopted (rule 24)"

    def forgot(self) -> None:
        """Redis has lost what it was given: the pause may have gone with it."""
        self._written = None

    # ---- pauses -----------------------------------------------------------------------------------------------------

    def _pause(self, attempt: int = 0) -> None:
        world, leader = self._world, self._world.deciding
        if self._wants or attempt > MOST_ASKED or leader.state.phase is co.Phase.DONE:
            return
        if not leader.alive or leader.state.took_over_at is not None:
            world.clock.after(AGAIN_SECONDS, lambda: self._pause(attempt + 1))
            return
        self._wants = True
        leader.take(Pausing(Pause("an operator", world.clock.now)))
        seconds = self._random.choice([0.0, 0.02, 0.3, 3.0, 40.0])
        world.clock.after(seconds, lambda: self._go_on(seconds > CALM_SECONDS, 0))

    def _go_on(self, looks: bool, attempt: int) -> None:
        """Lets the run go on, with every leader that is paused: two may lead at once."""
        world = self._world
        if looks and attempt < MOST_ASKED and not self._is_calm(world.deciding):
            world.clock.after(AGAIN_SECONDS, lambda: self._go_on(True, attempt + 1))
            return
        if looks and self._is_calm(world.deciding):
            self._look(world.deciding)
        self._wants = False
        self._ask_all()

    def _ask_all(self) -> None:
        world = self._world
        if self._wants:
            return  # another pause was asked for meanwhile
        for leader in world.leaders:
            if leader.alive and leader.state.pause is not None:
                self.paused += leader.state.phase is co.Phase.PAUSED
                leader.take(Unpausing("an operator"))
        # Also when nobody is paused: nodes may tell the next leader of the pause.
        if world.state.phase is not co.Phase.DONE or any(x.alive and x.state.pause is not None for x in world.leaders):
            world.clock.after(AGAIN_SECONDS, self._ask_all)

    def _is_calm(self, leader: Leader) -> bool:
        state, now = leader.state, self._world.clock.now
        return (
            leader.alive
            and state.phase is co.Phase.PAUSED
            and state.took_over_at is None
            and now - state.changed_at > CALM_SECONDS
            and state.paused_at is not None
            and now - state.paused_at > CALM_SECONDS
            and not state.evidence
        )

    def _look(self, leader: Leader) -> None:
        """Raises AssertionError if something is not repaired that could be."""
        world, state = self._world, leader.state
        plan = state.plan
        assert plan is not None
        self.repaired += 1
        present = [n for n in state.nodes.values() if n.available and n.attached_since is not None and not n.draining]
        free = [n.node for n in present if n.node not in state.parted]
        for s in plan.exposed():
            owners = plan.stages[s].distinct_owners
            others = [n for n in free if n not in owners and not any(world.faults.cut_off(n, o) for o in owners)]
            assert not others, f"stage {s} was not repaired in a pause, though {others} are there (rule 24)"
        if world.checkpoint_every and not world.storage.fails():
            step = min(state.committed, state.steps)
            whole = step == state.origin.step or saving.is_whole(state, step)
            assert whole, f"step {step}, at which the run is paused, is in no checkpoint (rule 24)"

    # ---- checkpoints ------------------------------------------------------------------------------------------------

    def _save(self) -> None:
        leader = self._world.leader
        if leader.alive:
            leader.take(SaveAsked("an operator"))
