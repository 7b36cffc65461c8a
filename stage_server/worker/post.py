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
# (rule 5), and a Hello makes a peer say them again. When it has answered (``synced``) all that it holds is known.

from collections.abc import Iterator
from typing import Generic

from culm.pipeline import flow
from culm.pipeline.flow import consumers, producer
from culm.pipeline.instruction import Duty, Instruction
from culm.pipeline.keys import GRADIENT, Key
from culm.pipeline.plan import Plan, PlanOrder
from culm.stage_server.worker.early import Arrival, Early
from culm.stage_server.worker.effects import Acknowledge, AnswerHello, Effect, Send
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
        self.outbox: Outbox[V] = Outbox()
        self.early: Early[V] = Early()
        # Peer -> the plan under which it has told all that it holds. An answer to an earlier plan's Hello is not
        # enough: since then the peer may have taken, or given up, other duties.
        self.synced: dict[str, PlanOrder] = {}

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
        if not self.is_taken(arrival, arrival.key, plan):
            return False
        if arrival.key.step > self._at.committed + 1:
            self.early.add_of_later_step(arrival, arrival.key)
            return False
        if arrival.key.step >= self._at.version:
            self.mailbox.put(arrival.key, arrival.value)
        # A repeat, too: its first acknowledgement may have been lost with a stream.
        self._effects.append(Acknowledge(arrival.peer, arrival.key))
        return True

    def is_taken(self, arrival: Arrival[V], key: Key, plan: Plan) -> bool:
        """Whether the tensor is of this era, and its sender its producer under the plan (rules 1 and 3)."""
        if key.era != self._at.era:
            return False
        member = plan.members.get(arrival.peer)
        known = member is not None and member.incarnation == arrival.incarnation
        return known and producer(key, plan) == arrival.peer and self._at.node in consumers(key, plan)

    def _answer_hello(self, arrival: Arrival[V], plan: Plan) -> None:
        for key in self.mailbox:
            if producer(key, plan) == arrival.peer:
                self._effects.append(Acknowledge(arrival.peer, key))
        self._effects.append(AnswerHello(arrival.peer, arrival.order, self._at.era, self._at.version))

    def hear_synced(self, peer: str, order: PlanOrder, era: int, version: int) -> None:
        """A peer has told all that it has. One that is ahead needs nothing of this step any more.

        An answer to an earlier plan's Hello does not count, nor do the steps of a peer that is in another era.
        """
        plan = self._at.plan
        if plan is None or order != plan.order:
            return
        self.synced[peer] = order
        if era != self._at.era or version <= self._at.version:
            return
        incarnation = plan.members[peer].incarnation
        for duty in plan.duties_of(self._at.node):
            for instruction in self._at.order(duty):
                key = self._at.result_of(instruction)
                if instruction.op != "W" and peer in consumers(key, plan):
                    self.outbox.acknowledge(key, peer, incarnation)

    # ---- what is asked before anything of it is in memory, from any thread ------------------------------------------

    # A stream asks without the node's lock, once it has read a tensor's header. A plan may be adopted before the value
    # is here, so ``arrive`` decides again. What was dropped is not lost: its sender sends it again under the new plan.

    def waits(self, order: PlanOrder) -> bool:
        """Whether what was sent under this plan waits until the plan is here."""
        return self._at.plan is None or order > self._at.plan.order

    def drops(self, peer: str, incarnation: int, order: PlanOrder, key: Key) -> bool:
        """Whether a tensor would be dropped if it were here: its sender is not its producer under the present plan."""
        plan = self._at.plan
        return plan is not None and not self.is_taken(Arrival(peer, incarnation, order), key, plan)

    # ---- what goes --------------------------------------------------------------------------------------------------

    def put_out(self, key: Key, value: V) -> None:
        """Keeps a tensor that was produced here, and sends it to whoever consumes it."""
        self.outbox.put(key, value)
        self._route(key, self._can_wait(key))

    def put_result(self, instruction: Instruction, result: V | None) -> None:
        """The same of what an instruction gave, if anybody consumes it."""
        plan, key = self._at.plan, self._at.result_of(instruction)
        if result is not None and instruction.op != "W" and plan is not None and consumers(key, plan):
            self.put_out(key, result)

    def ship(self, stage: int) -> None:
        """The reduced gradient goes to every other holder: what was received, where something was (rule 4)."""
        for key in self._reduced(stage):
            self.put_out(key, self.mailbox.get(key))

    def send_again(self) -> None:
        """The plan is another one: what its consumers have not acknowledged is on its way once more."""
        # Never ``later``: an heir may wait for it. Of steps before, what a node being seeded still lacks is among it.
        for key in self.outbox:
            self._route(key)

    def _route(self, key: Key, later: bool = False) -> None:
        plan = self._at.plan
        assert plan is not None
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
        of_last_stage = key.kind is GRADIENT and flow.takes_targets(key.stage, len(plan.stages))
        return of_last_stage and schedule.lead > 1 and key.index + 1 < schedule.microbatches

    # ---- what is here -----------------------------------------------------------------------------------------------

    def _reduced(self, stage: int) -> Iterator[Key]:
        assert self._at.plan is not None
        return (self._at.reduced(stage, layer) for layer in self._at.plan.stages[stage].layers)

    def holds_whole(self, stage: int) -> bool:
        """Whether the stage's whole reduced gradient of the running step is here."""
        return all(key in self.mailbox for key in self._reduced(stage))

    def lacks(self, instruction: Instruction) -> bool:
        """Whether a consumer of the instruction's result does not have it, as far as is known here."""
        plan = self._at.plan
        assert plan is not None
        if instruction.op == "W":
            return False
        key = self._at.result_of(instruction)
        return any(
            # A node acknowledges nothing to itself.
            key not in self.mailbox if node == self._at.node else node in self.outbox.unacknowledged(key, plan)
            for node in consumers(key, plan)
        )

    def input_of(self, instruction: Instruction) -> Key | None:
        """The tensor that the instruction takes from a neighbour; None where it takes none."""
        assert self._at.plan is not None
        giver = flow.awaited(instruction, len(self._at.plan.stages))
        return self._at.result_of(giver) if giver is not None else None

    # ---- what ends --------------------------------------------------------------------------------------------------

    def forget_before(self, step: int, plan: Plan | None = None) -> None:
        """The steps before are committed. ``plan``: see ``Outbox.forget_before``."""
        self.mailbox.forget_before(step)
        self.outbox.forget_before(step, plan)

    def forget_duty(self, duty: Duty) -> None:
        """What the duty produced is another node's to send."""
        self.outbox.forget_duty(duty)

    def end_era(self) -> None:
        self.mailbox.clear()
        self.outbox.clear()
