"""What has become of each duty on this node in the running step: one record a (pipeline, stage), gone at the commit."""

# The life of a record. ``Runner`` moves it; into which block its gradient went ``Summing`` writes:
#
#     a plan names this node the owner        a tenure begins, with a number that never comes again on this node
#     ... within a step, after a lost node    takeover is set, forwards that were run ahead count as done
#     an instruction has run                  it is in done
#     its last backward runs                  layers that are through are merged into a block, and sent
#     its last backward has run               its gradient is merged into blocks of pipelines, and the largest is sent
#     its sum turns out to be needed anew     restart(): all of the step goes
#     the plan names another owner            give_up(): tenure and done go; ahead stays for a node that stands by
#     the node no longer stands by either     drop_ahead(): its graphs are gone, so nothing is run ahead in this step
#     the step is committed                   a new record, with the tenure alone
#
# Why tenure and not just "mine": a duty may go to another node and come back within one step. A backward that was
# begun before must not count after: its graph was dropped with the duty. So every piece of work carries the tenure that
# it was begun under, and what it gives is taken only under the same one. Generations of plans would not do as numbers:
# two leaders at once may give the same one, in two eras.

from collections import defaultdict
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from typing import Generic

from culm.pipeline.choice import Left
from culm.pipeline.instruction import Duty, Instruction, Pass
from culm.pipeline.tree import Block
from culm.stage_server.worker import reduction
from culm.stage_server.worker.heir import Takeover
from culm.stage_server.worker.work import V


@dataclass(slots=True, kw_only=True)
class DutyStep(Generic[V]):
    """A duty that the node runs, or runs ahead for as a standby."""

    # Since the duty came here; None: it is another node's. Work that was begun under another tenure is void: the duty
    # was somewhere else meanwhile, and its graphs with it.
    tenure: int | None = None
    # By this node as the owner, never by another. Invariant: empty where there is no tenure.
    done: set[Instruction] = field(default_factory=set)
    under_way: set[Instruction] = field(default_factory=set)  # that wait for somebody else, and are not done
    count: defaultdict[Pass, int] = field(default_factory=lambda: defaultdict(int))  # of these, by kind
    # Outputs of redundant forwards, microbatch 0 first; an output that no node consumes is None.
    ahead: list[V | None] = field(default_factory=list)
    spoilt: bool = False  # graphs were dropped within the step: nothing more is run ahead
    # Forwards among ``done`` that had been run ahead when the duty came here: they were not redone.
    adopted: int = 0
    # How the duty came here, if that was within the step. Invariant: None where there is no tenure.
    takeover: Takeover | None = None
    # Microbatches in the gradients that the lost owner had shipped. Their backwards may still run, for the gradient
    # that the stage before lacks, and add nothing. Invariant: 0 unless there is a takeover.
    inherited: int = 0
    # Whether backwards add to the gradients here. An heir's do not where every reducer has the pipeline already: then
    # single ones run, for results that a neighbour lacks. Invariant: True unless there is a takeover.
    sums: bool = True
    # The largest block of pipelines that its gradient was merged into here, or is just being merged into; None: it was
    # not merged yet.
    block: Block | None = None
    sent: bool = False  # the block was put out. Invariant: False where there is none
    # By layer, the largest block that was put out with its gradient: of that compute keeps nothing. Invariant: empty
    # where there is no block.
    left: dict[int, Block] = field(default_factory=dict)

    def note(self, instruction: Instruction) -> None:
        """It has run."""
        self.under_way.discard(instruction)
        if instruction not in self.done:
            self.done.add(instruction)
            self.count[instruction.op] += 1

    def heads(
        self,
        duty: Duty,
        turn: int,
        microbatches: int,
        evaluated: int,
        splits: bool,
        part: Container[Instruction] | None = None,
    ) -> Left:
        """Of what is not done; of a part, where not all is to be done. ``splits``: whether its backwards are split."""
        if part is None and not self.under_way:
            # All is to be done: microbatches run in order, so the number of those done tells the next one.
            forwards, backwards, evaluations = self.count["F"], self.count["B"], self.count["E"]
            weights = self.count["W"] if splits else backwards
            return Left(
                duty=duty,
                turn=turn,
                forward=Instruction(duty, "F", forwards) if forwards < microbatches else None,
                backward=Instruction(duty, "B", backwards) if backwards < forwards else None,
                weights=Instruction(duty, "W", weights) if weights < backwards else None,
                graphs=forwards - backwards,
                evaluation=Instruction(duty, "E", evaluations) if evaluations < evaluated else None,
                halves=forwards - weights if splits else 0,
            )
        forward = self._next_of(duty, "F", microbatches, part)
        return Left(
            duty=duty,
            turn=turn,
            forward=forward,
            keeps_graph=part is None or (forward is not None and Instruction(duty, "B", forward.microbatch) in part),
            backward=self._next_over_graph(duty, "B", microbatches, part),
            weights=self._next_over_graph(duty, "W", microbatches, part) if splits else None,
            graphs=self._kept(duty, "B", microbatches, part),
            evaluation=self._next_of(duty, "E", evaluated, part),
            halves=self._kept(duty, "W", microbatches, part) if splits else 0,
        )

    def _next_of(
        self, duty: Duty, op: Pass, microbatches: int, part: Container[Instruction] | None
    ) -> Instruction | None:
        """The first of a kind that is not done, in order of microbatch."""
        each = (Instruction(duty, op, m) for m in range(microbatches))
        found = next((i for i in each if (part is None or i in part) and i not in self.done), None)
        return found if found not in self.under_way else None

    def _next_over_graph(
        self, duty: Duty, op: Pass, microbatches: int, part: Container[Instruction] | None
    ) -> Instruction | None:
        """The same of backwards, or of their second halves: the first one that has what it takes of this stage.

        That is the forward's graph, or what the first half has left.
        """
        before: Pass = "F" if op == "B" else "B"
        if part is None:
            found = self._next_of(duty, op, microbatches, part)
            return found if found is not None and Instruction(duty, before, found.microbatch) in self.done else None
        # History: an heir had the sum of microbatch 0, and ran forward 1. Then the stage before lacked what 0 gives.
        # Forward 0 found no room: the graph of 1 was kept. So what adds nothing holds up no backward after it.
        for m in range(microbatches):
            instruction = Instruction(duty, op, m)
            if instruction in part and instruction not in self.done:
                if Instruction(duty, before, m) in self.done:
                    return instruction if instruction not in self.under_way else None
                if self.sums and reduction.accumulates(instruction, self.inherited):
                    return None  # gradients add up in order of microbatch
        return None

    def _kept(self, duty: Duty, until: Pass, microbatches: int, part: Container[Instruction] | None) -> int:
        """Microbatches whose forward has run, and whose B, or W, is still to run: what is kept for these."""
        if part is None:
            return self.count["F"] - self.count[until]
        pairs = ((Instruction(duty, "F", m), Instruction(duty, until, m)) for m in range(microbatches))
        return sum(f in self.done and last in part and last not in self.done for f, last in pairs)

    def restart(self) -> None:
        """It begins the step again: its graphs and gradients are dropped. What was put out stays as it is."""
        self.done.clear()
        self.under_way.clear()
        self.count.clear()
        self.ahead.clear()
        self.adopted = self.inherited = 0
        self.spoilt, self.sums = True, True
        self.block, self.sent = None, False
        self.left.clear()

    def give_up(self) -> None:
        """The duty is another node's. What was run ahead for it stays, if this node goes on standing by."""
        self.tenure = self.takeover = self.block = None
        self.inherited = self.adopted = 0
        self.sums, self.sent = True, False
        self.left.clear()
        self.done.clear()
        self.under_way.clear()
        self.count.clear()

    def drop_ahead(self) -> None:
        """This node does not stand by any more, and its graphs go."""
        if self.ahead:
            self.ahead.clear()
            self.spoilt = True


class Duties(dict[Duty, DutyStep[V]]):
    """The records: to look one up makes it, if nothing of the duty has happened here in this step.

    ``ticket`` tells forwards that are run ahead in this step and era from those begun before: it is negative, a tenure
    never is.
    """

    def __init__(self) -> None:
        super().__init__()
        # What this node runs, ascending: the duties with a tenure. A plan that is being adopted puts it down last.
        self.owned: tuple[Duty, ...] = ()
        self.owned_at: dict[int, list[Duty]] = {}  # the same by stage
        self._tenures = 0  # begun so far, in all eras
        self.ticket = -1  # stands in for a tenure in work that is run ahead; one less with every step and era
        self.stopped = False  # memory is short: nothing more is run ahead in this step

    def __missing__(self, duty: Duty) -> DutyStep[V]:
        found = self[duty] = DutyStep()
        return found

    def own(self, duties: tuple[Duty, ...]) -> None:
        """These are what this node runs."""
        self.owned = duties
        self.owned_at = {duty.stage: [] for duty in duties}
        for duty in duties:
            self.owned_at[duty.stage].append(duty)

    def of_stage(self, stage: int) -> Iterator[tuple[Duty, DutyStep[V]]]:
        return ((duty, step) for duty, step in self.items() if duty.stage == stage)

    def has_done(self, instruction: Instruction) -> bool:
        step = self.get(instruction.duty)
        return step is not None and instruction in step.done

    def is_current(self, duty: Duty, tenure: int) -> bool:
        """Whether work that was begun under this tenure still counts, within its step."""
        step = self.get(duty)
        return step is not None and step.tenure == tenure

    def new_tenure(self) -> int:
        self._tenures += 1
        return self._tenures

    def end_step(self) -> None:
        """The step is committed: of each record the tenure is left."""
        kept: dict[Duty, DutyStep[V]] = {duty: DutyStep(tenure=self[duty].tenure) for duty in self.owned}
        self.clear()
        self.update(kept)
        self.ticket -= 1
        self.stopped = False

    def end_era(self) -> None:
        """All of it is void."""
        self.clear()
        self.own(())
        self.ticket -= 1
        self.stopped = False
