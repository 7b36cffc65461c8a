"""The streams to the peers that a plan names."""

# What changes when a plan is adopted, with the senders that stand before it:
#
#     the same incarnation, at the same address     its sender stays, and says hello under the new plan
#     another incarnation of the peer               its sender is closed; a new one begins with all that is
#                                                   unacknowledged, since the old process's memory is gone (rule 5)
#     a peer to which nothing is to be sent         its sender is closed, after what is queued
#
# ``connect`` is the first effect of an adopted plan (``Worker.take_plan``), so every Send and SayHello that follows
# finds its sender here. A closed sender ends on its own thread; nobody waits for it.

from culm.pipeline.flow import peers_of
from culm.pipeline.keys import Key
from culm.pipeline.patience import Patience
from culm.pipeline.plan import Plan
from culm.stage_server.faults import Faults
from culm.stage_server.one_machine.slots import of_one_machine
from culm.stage_server.streams.guard import Guard
from culm.stage_server.streams.sender import Sender, Source


class Peers:
    """A sender for each peer; one lock guards it, its node's.

    A sender is for one incarnation: when its peer joins anew, what was acknowledged counts no more (rule 5).
    """

    def __init__(self, source: Source, faults: Faults, patience: Patience, guard: Guard | None = None) -> None:
        self._source = source
        self._patience = patience
        self._guard = guard
        self._faults = faults
        # Invariant: the peers of the plan that was adopted last, each with the incarnation that this plan names.
        self._senders: dict[str, Sender] = {}

    def connect(self, plan: Plan, node: str) -> None:
        """Streams to those to whom the node sends under the plan; the others, and those of older incarnations, end."""
        own = plan.members[node].address if node in plan.members else ""
        wanted = {peer: plan.members[peer] for peer in peers_of(node, plan)}
        for peer, sender in list(self._senders.items()):
            if wanted.get(peer) != sender.peer:
                self._senders.pop(peer).close()
        for peer, member in wanted.items():
            if peer not in self._senders:
                near = of_one_machine(own, member.address)
                self._senders[peer] = Sender(member, self._source, self._faults, near, self._patience, self._guard)

    def send(self, peer: str, key: Key, later: bool) -> None:
        self._senders[peer].send(key, later)

    def say_hello(self, peer: str) -> None:
        self._senders[peer].say_hello()

    def close(self) -> None:
        for sender in self._senders.values():
            sender.close()
