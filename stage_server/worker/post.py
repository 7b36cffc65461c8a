"""The tensors of a node: what it takes and acknowledges, keeps, and sends to whom (rules 3 to 5).

A tensor that arrives is put into the *mailbox* and acknowledged, if its sender is its producer under this node's plan;
it waits unacknowledged in *early*, if the sender obeys a newer plan or is steps ahead; else it is dropped. A tensor
that is produced here is put into the *outbox* and sent to its consumers. Both keep their tensors until the step is
committed, whoever has them: work may have to be done again, here or by another node's heir. When the plan changes,
whatever a present consumer has not acknowledged is sent again.
"""

# Where a tensor of the running step goes, as decided by ``arrive``:
#
#     its sender obeys a newer plan than this node      early, unacknowledged: taken or dropped once that plan is here
#     it is of another era                              dropped (rule 1)
#     its sender is not its producer under this plan    dropped: another node's value is the one that counts (rule 3)
#     it is more than one step ahead                    early, unacknowledged: this node was passed over, or is slow
#     it is of a step that is over                      acknowledged and not kept: its sender may forget it
#     else                                              mailbox, acknowledged
#
# The producer is looked up in the plan that this node obeys, never in the sender's. So after a lost node only what its
# heir says counts, and a value that the lost node sent before is kept where it has arrived: both have the same bits.
#
# Acknowledgements are what an heir goes by. They say "this incarnation has it", so they die with the incarnation
# (rule 5), and a Hello makes a peer say them again. When it has answered (``told``) all that it holds is known.
#
# The whole sum of a bucket, REDUCED, is taken from its reducer. A reducer itself takes it from any holder: it
# may be one that was named in place of a lost one, which had sent it to some. So whoever has it keeps it to pass on.

from collections.abc import Iterable
from typing import Generic

from culm.pipeline import flow
from culm.pipeline.flow import consumers
from culm.pipeline.instruction import Duty, Instruction
from culm.pipeline.keys import GRADIENT, REDUCED, Key, reduced
from culm.pipeline.plan import Plan, PlanOrder
from culm.pipeline.ties import Addend
from culm.stage_server.worker.early import Arrival, Early
from culm.stage_server.worker.effects import Acknowledge, AnswerHello, Effect, Send, Standing
from culm.stage_server.worker.mailbox import Mailbox
from culm.stage_server.worker.outbox import Outbox
from culm.stage_server.worker.position import Position
from culm.stage_server.worker.work import V


class Post(Generic[V]):
    """Knows the plan and the step, and nothing of what is computed."""

    def __init__(self, position: Position, effects: list[Effect]) -> None:
        """``effects``: where it puts what is to be sent."""
        self._at = position
        self._effects = effects
        self.mailbox: Mailbox[V] = Mailbox()
        self.outbox: Outbox[V] = Outbox(position.node)
        self.early: Early[V] = Early()
        # What each instruction takes, and what of it lacked when somebody asked last, the first one at the end: a step
        # asks many times, and on a graph an instruction takes many. Of one moment: era, step, and plan.
        self._inputs: dict[Instruction, tuple[tuple[Key, ...], list[Key]]] = {}
        self._moment: tuple[int, int, PlanOrder] | None = None
        # What each peer has told last, under the plan of that moment, after all that it holds. An answer to an earlier
        # plan's Hello is not enough: since then the peer may have taken, or given up, other duties.
        self._told: dict[str, Standing] = {}

    # ---- what comes -------------------------------------------------------------------------------------------------

    def arrive(self, arrival: Arrival[V]) -> bool:
        """Takes a tensor, answers a Hello, or lets it wait. Whether a tensor was taken: it may be late or a repeat."""
        plan = self._at.plan
        if plan is None or arrival.order > plan.order:
            self.early.add(arrival)
            return False
        if arrival.key is None or arrival.value is None:
            self._answer_hello(arrival, plan)
            return False
        if not self.is_taken(arrival.peer, arrival.incarnation, arrival.key, plan):
            return False
        if arrival.key.step > self._at.committed + 1:
            self.early.add_of_later_step(arrival, arrival.key)
            return False
        if self._at.keeps(arrival.key):
            self.mailbox.put(arrival.key, arrival.value)
            if arrival.key.kind is REDUCED:
                self.outbox.acknowledge(arrival.key, arrival.peer, arrival.incarnation)
                self.pass_on(arrival.key)
        # A repeat, too: its first acknowledgement may have been lost with a stream.
        self._effects.append(Acknowledge(arrival.peer, arrival.key))
        return True

    def is_taken(self, peer: str, incarnation: int, key: Key, plan: Plan) -> bool:
        """Whether the tensor is of this era, and its sender its producer under the plan (rules 1 and 3)."""
        if key.era != self._at.era:
            return False
        member = plan.members.get(peer)
        known = member is not None and member.incarnation == incarnation
        return known and flow.is_taken(key, peer, self._at.node, plan)

    def _answer_hello(self, arrival: Arrival[V], plan: Plan) -> None:
        for key in self.mailbox:
            if flow.is_taken(key, arrival.peer, self._at.node, plan):
                self._effects.append(Acknowledge(arrival.peer, key))
        self._effects.append(AnswerHello(arrival.peer, self._standing(arrival.peer, arrival.order, plan)))

    def _standing(self, peer: str, order: PlanOrder, plan: Plan) -> Standing:
        """Of the first step that is not committed: its work is what the peer may have inherited."""
        at, step = self._at, self._at.committed
        covers, whole = {}, set()
        for s, bucket in plan.held_buckets(at.node):
            reducer, key = plan.reducer_of(s, bucket), reduced(at.era, step, s, bucket)
            if reducer == at.node:
                for use in plan.uses_of(bucket):
                    if peer in plan.stages[plan.stage_with(use) if use else s].owners:
                        covers[Addend(bucket, use)] = self.mailbox.covers(key, use, plan.pipelines)
            elif reducer == peer and key in self.mailbox:
                whole.add(bucket)
        return Standing(order=order, era=at.era, committed=step, covers=covers, reduced=frozenset(whole))

    def hear_standing(self, peer: str, standing: Standing) -> None:
        """A peer has told all that it has. One that is ahead needs nothing of this step any more.

        An answer to an earlier plan's Hello does not count, nor do the steps of a peer that is in another era.
        """
        plan = self._at.plan
        if plan is None or standing.order != plan.order:
            return
        self._told[peer] = standing
        if standing.era != self._at.era or standing.committed <= self._at.committed:
            return
        if plan.neighbours is not None and plan.neighbours.staleness.most:
            return  # it takes values of this step in later ones
        incarnation = plan.members[peer].incarnation
        for duty in plan.duties_of(self._at.node):
            for instruction in self._at.order(duty):
                for key in self._at.results_of(instruction) if instruction.op != "W" else ():
                    if peer in consumers(key, plan, self._at.node):
                        self.outbox.acknowledge(key, peer, incarnation)

    def told(self, peer: str) -> Standing | None:
        """What the peer has told under the present plan; None: nothing so far."""
        standing, plan = self._told.get(peer), self._at.plan
        return standing if standing is not None and plan is not None and standing.order == plan.order else None

    def has_told(self, peers: Iterable[str], since: PlanOrder) -> bool:
        """Whether all of these have told what they hold, under this plan or a later one."""
        return all(peer in self._told and self._told[peer].order >= since for peer in peers)

    # ---- what is asked before anything of it is in memory, from any thread ------------------------------------------

    # A stream asks without the node's lock, once it has read a tensor's header. A plan may be adopted before the value
    # is here, so ``arrive`` decides again. What was dropped is not lost: its sender sends it again under the new plan.

    def waits(self, order: PlanOrder) -> bool:
        """Whether what was sent under this plan waits until the plan is here."""
        return self._at.plan is None or order > self._at.plan.order

    def drops(self, peer: str, incarnation: int, key: Key) -> bool:
        """Whether a tensor would be dropped if it were here: its sender is not its producer under the present plan."""
        plan = self._at.plan
        if key.era > self._at.era:  # an era is being begun at this very moment, by another thread
            return False
        return plan is not None and not self.is_taken(peer, incarnation, key, plan)

    # ---- what goes --------------------------------------------------------------------------------------------------

    def put_out(self, key: Key, value: V) -> None:
        """Keeps a tensor that was produced here, and sends it to whoever consumes it."""
        self.outbox.put(key, value)
        self._route(key, self._can_wait(key))

    def put_result(self, instruction: Instruction, result: V | None) -> None:
        """The same of what an instruction gave, if anybody consumes it."""
        plan = self._at.plan
        if result is None or instruction.op == "W" or plan is None:
            return
        keys = self._at.results_of(instruction)
        in_parts = plan.neighbours is not None and instruction.op == "B"
        for place, key in enumerate(keys):
            if consumers(key, plan, self._at.node):
                self.put_out(key, result.part(place) if in_parts else result)

    def pass_on(self, key: Key) -> None:
        """The whole sum of a bucket goes to whoever lacks it: what was received, where something was (rule 4)."""
        if key.step == self._at.version:  # of the next step once that begins
            self.put_out(key, self.mailbox.get(key))

    def begin_step(self) -> None:
        """Whole sums may have come before the commit that ended the step before."""
        for key in self.mailbox.reduced(self._at.version):
            self.pass_on(key)

    def send_again(self) -> None:
        """The plan is another one: what its consumers have not acknowledged is on its way once more."""
        # Never ``later``: an heir may wait for it. Of steps before, what a node being seeded still lacks is among it.
        for key in self.outbox:
            self._route(key)

    def _route(self, key: Key, later: bool = False) -> None:
        plan = self._at.plan
        assert plan is not None
        if key.step < self._at.version and not flow.is_producer(self._at.node, key, plan):
            return  # kept for a node that was being seeded from here, and is the reducer's to send now
        for peer in self.outbox.unacknowledged(key, plan):
            value = self.outbox.get(key)
            if peer != self._at.node:
                self._effects.append(Send(peer, key, later))
            elif value is not None and key.step >= self._at.version:
                self.mailbox.put(key, value)  # this node runs both sides

    def _can_wait(self, key: Key) -> bool:
        """Whether it is soon enough once this node's next work has begun: the last stage's gradients but the last one.

        Between its first forward and its last backward the last stage waits for nobody, and so the step for it; with a
        lead the stage before has other microbatches meanwhile.
        """
        plan, schedule = self._at.plan, self._at.schedule
        assert plan is not None
        of_last_stage = key.kind is GRADIENT and flow.ends_in_loss(key.stage, len(plan.stages))
        return of_last_stage and schedule.lead > 1 and key.index + 1 < schedule.microbatches

    # ---- what is here -----------------------------------------------------------------------------------------------

    def holds_whole(self, stage: int) -> bool:
        """Whether the stage's whole reduced gradient of the running step is here."""
        assert self._at.plan is not None
        return self._at.plan.sums_of_stage[stage] <= self.mailbox.whole(self._at.version)

    def lacks(self, instruction: Instruction) -> bool:
        """Whether a consumer of what the instruction gives does not have it, as far as is known here."""
        plan = self._at.plan
        assert plan is not None
        if instruction.op == "W":
            return False
        return any(
            # A node acknowledges nothing to itself.
            key not in self.mailbox if node == self._at.node else node in self.outbox.unacknowledged(key, plan)
            for key in self._at.results_of(instruction)
            for node in consumers(key, plan, self._at.node)
        )

    def missing(self, instruction: Instruction) -> Key | None:
        """The first of the tensors that the instruction takes of others which is not here; None: all of them are."""
        plan, at = self._at.plan, self._at
        assert plan is not None
        if (moment := (at.era, at.version, plan.order)) != self._moment:
            self._moment = moment
            self._inputs.clear()
        found = self._inputs.get(instruction)
        if found is None:
            keys = at.inputs_of(instruction)
            found = self._inputs[instruction] = keys, [*reversed(keys)]
        _, lacking = found
        while lacking and lacking[-1] in self.mailbox:  # which keeps what is here until the step is over
            lacking.pop()
        return lacking[-1] if lacking else None

    def operands(self, instruction: Instruction) -> tuple[V, ...]:
        """What an instruction takes of others, once ``missing`` has found that all of it is here."""
        keys, _ = self._inputs[instruction]
        return tuple([self.mailbox.get(key) for key in keys])

    def kept(self, key: Key) -> V | None:
        """A tensor that was received or produced here; between two duties of this node it is both."""
        return self.mailbox.get(key) if key in self.mailbox else self.outbox.get(key)

    def exchange(self, key: Key, value: V, same: V) -> None:
        """The same value from another place, such as the disk: readers do not notice (rule 4)."""
        self.mailbox.exchange(key, value, same)
        self.outbox.exchange(key, value, same)

    # ---- what ends --------------------------------------------------------------------------------------------------

    def forget_before(self, step: int, plan: Plan | None = None) -> None:
        """The steps before are committed: the position is there. ``plan``: see ``Outbox.forget_before``."""
        self.mailbox.forget_before(step, self._at.keeps)
        self.outbox.forget_before(step, self._at.keeps, plan)

    def forget_duty(self, duty: Duty, layers: range) -> None:
        """What the duty produced is another node's to send. ``layers``: of its stage."""
        self.outbox.forget_duty(duty, layers)

    def end_era(self) -> None:
        self.mailbox.clear()
        self.outbox.clear()
