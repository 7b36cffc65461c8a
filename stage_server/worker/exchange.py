"""The tensors of a node: what it takes and acknowledges, keeps, and sends to whom (rules 3 to 5)."""

from collections import deque
from collections.abc import Iterable
from typing import Generic

from culm.pipeline.keys import ACTIVATION, GRADIENT, REDUCED, Key, Kind, consumers, producer
from culm.pipeline.plan import Plan, PlanOrder
from culm.pipeline.schedule import Instruction, Schedule
from culm.stage_server.worker.early import Arrival, Early
from culm.stage_server.worker.heir import Heir
from culm.stage_server.worker.instructions import Acknowledge, AnswerHello, CommitOrder, Effect, Send, V
from culm.stage_server.worker.mailbox import Mailbox
from culm.stage_server.worker.outbox import Outbox
from culm.stage_server.worker.seeding import Seeding


class Exchange(Generic[V]):
    """The half of a worker that deals in keys: it knows the plan and the step, and nothing of what is computed.

    ``version`` is the number of steps applied to all that the node holds.
    """

    def __init__(self, node: str, incarnation: int, schedule: Schedule) -> None:
        self.node = node
        self.incarnation = incarnation
        self.schedule = schedule
        self.term = 0
        self.era = 0
        self.version = 0
        self.plan: Plan | None = None
        self.mailbox: Mailbox[V] = Mailbox()
        self.outbox: Outbox[V] = Outbox()
        self.seeding: Seeding[V] = Seeding()
        self.tenure: dict[int, int] = {}  # owned stage -> generation in which it came here
        self._heir = Heir()
        self._commits: deque[CommitOrder] = deque()
        self._early: Early[V] = Early()
        self._effects: list[Effect] = []

    @property
    def microbatches(self) -> int:
        return self.schedule.microbatches

    def _key(self, kind: Kind, stage: int, index: int) -> Key:
        return Key(self.era, self.version, 0, kind, stage, index)

    @property
    def committed(self) -> int:
        """Steps that this node knows to be committed, applied here or not yet."""
        return self.version + len(self._commits)

    def holds_whole(self, stage: int) -> bool:
        """Whether the stage's whole reduced gradient of the running step is here."""
        assert self.plan is not None
        return all(self._key(REDUCED, stage, layer) in self.mailbox for layer in self.plan.stages[stage].layers)

    def _lacks(self, instruction: Instruction) -> bool:
        assert self.plan is not None
        if instruction.op == "W":
            return False
        kind = ACTIVATION if instruction.op == "F" else GRADIENT
        key = self._key(kind, instruction.stage, instruction.microbatch)
        return any(
            key not in self.mailbox if node == self.node else node in self.outbox.unacknowledged(key, self.plan)
            for node in consumers(key, self.plan)
        )

    # ---- what peers say ----------------------------------------------------------------------------------------------

    def hello(self, peer: str, incarnation: int, order: PlanOrder) -> None:
        """A peer obeys this plan and asks what it need not send. Its leader's term counts here, too (rule 12)."""
        self.term = max(self.term, order[0])
        self._arrive(Arrival(peer, incarnation, order))

    def acknowledged(self, peer: str, incarnation: int, keys: Iterable[Key]) -> bool:
        """A peer has these tensors. Whether that may change what there is to do: an heir need not do them again."""
        matters = False
        for key in keys:
            matters = matters or key.stage in self._heir
            if key.stage in self._heir and key not in self.outbox and key.kind in (ACTIVATION, GRADIENT):
                self._heir.held_elsewhere(Instruction(key.stage, "F" if key.kind is ACTIVATION else "B", key.index))
            self.outbox.acknowledge(key, peer, incarnation)
        return matters

    def synced(self, peer: str, order: PlanOrder, era: int, version: int) -> None:
        """A peer has told all that it has. One that is ahead needs nothing of this step any more.

        An answer to an earlier plan's Hello does not count, nor do the steps of a peer that is in another era.
        """
        if self.plan is None or order != self.plan.order:
            return
        self._heir.synced(peer, order)
        if era == self.era and version > self.version:
            for s in self.tenure:
                for m in range(self.microbatches):
                    for kind in (ACTIVATION, GRADIENT):
                        key = self._key(kind, s, m)
                        if peer in consumers(key, self.plan):
                            self.outbox.acknowledge(key, peer, self.plan.members[peer].incarnation)

    def _arrive(self, arrival: Arrival[V]) -> None:
        plan = self.plan
        if plan is None or arrival.order > plan.order:
            self._early.add(arrival)
            return
        if arrival.key is None or arrival.value is None:
            self._answer_hello(arrival, plan)
        elif not self._is_taken(arrival, arrival.key, plan):
            return
        elif arrival.key.step > self.committed + 1:
            self._early.add_of_later_step(arrival, arrival.key)
        else:
            if arrival.key.step >= self.version:
                self.mailbox.put(arrival.key, arrival.value)
            if arrival.key.kind is REDUCED:
                # Of the running step, too: its commit may be under way here, without this gradient.
                self.seeding.late(arrival.key.index, arrival.key.step, arrival.value)
                if arrival.key.step >= self.version:
                    self.seeding.passed(arrival.key.index, arrival.key.step)
            self._effects.append(Acknowledge(arrival.peer, arrival.key))

    def waits(self, order: PlanOrder) -> bool:
        """Whether what was sent under this plan waits until the plan is here."""
        return self.plan is None or order > self.plan.order

    def waiting(self, peer: str) -> int:
        """Tensors of this peer that wait."""
        return self._early.count(peer)

    def drops(self, peer: str, incarnation: int, order: PlanOrder, key: Key) -> bool:
        """Whether a tensor would be dropped if it were here: its sender is not its producer under the present plan."""
        return self.plan is not None and not self._is_taken(Arrival(peer, incarnation, order), key, self.plan)

    def _take_early(self) -> None:
        for arrival in self._early.take():
            self._arrive(arrival)

    def _is_taken(self, arrival: Arrival[V], key: Key, plan: Plan) -> bool:
        return self._of_this_era(key) and self._from_producer(arrival, key, plan)

    def _of_this_era(self, key: Key) -> bool:
        return key.era == self.era

    def _from_producer(self, arrival: Arrival[V], key: Key, plan: Plan) -> bool:
        member = plan.members.get(arrival.peer)
        known = member is not None and member.incarnation == arrival.incarnation
        return known and producer(key, plan) == arrival.peer and self.node in consumers(key, plan)

    def _answer_hello(self, arrival: Arrival[V], plan: Plan) -> None:
        for key in self.mailbox:
            if producer(key, plan) == arrival.peer:
                self._effects.append(Acknowledge(arrival.peer, key))
        self._effects.append(AnswerHello(arrival.peer, arrival.order, self.era, self.version))

    @property
    def first_input(self) -> Key | None:
        """The tensor that this node's part of a step begins with; None if it owns the first stage, or none at all."""
        first = min(self.tenure, default=0)
        return self._key(ACTIVATION, first - 1, 0) if first else None

    def _put_out(self, key: Key, value: V) -> None:
        self.outbox.put(key, value)
        self._route(key, self._can_wait(key))

    def _can_wait(self, key: Key) -> bool:
        """Whether it is soon enough once this node's next work has begun: the last stage's gradients but the last one.

        Between its first forward and its last backward the last stage waits for nobody, and so the step for it; with a
        lead the stage before has other microbatches meanwhile.
        """
        assert self.plan is not None
        of_last_stage = key.kind is GRADIENT and key.stage == len(self.plan.stages) - 1
        return of_last_stage and self.schedule.lead > 1 and key.index + 1 < self.microbatches

    def _route(self, key: Key, later: bool = False) -> None:
        assert self.plan is not None
        for peer in self.outbox.unacknowledged(key, self.plan):
            value = self.outbox.get(key)
            if peer != self.node:
                self._effects.append(Send(peer, key, later))
            elif value is not None and key.step >= self.version:
                self.mailbox.put(key, value)
