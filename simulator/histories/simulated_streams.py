"""A simulated node's streams to its peers: Hello, tensors and acknowledgements over channels that keep their order."""

from culm.pipeline.flow import peers_of
from culm.pipeline.keys import Key, Kind
from culm.pipeline.plan import Plan
from culm.simulator.histories.world import Node, World
from culm.simulator.network import Channel
from culm.stage_server.worker.effects import AnswerHello

# A node opens a channel to each peer that its plan names, and sends there its Hello and its tensors. What the peer
# answers, acknowledgements and Synced, comes back on a channel of the pair that outlives the stream: an answer may
# arrive after the stream that it belongs to has been opened again. The worker has to stand that (rules 3 and 5).
#
# A channel keeps its messages in order and loses none before it is cut; on different channels messages overtake one
# another. Cut off, a node sends nothing at all: what the peer lacks is sent when the stream is opened again. Real
# streams break in the middle of a tensor too, and are bounded; neither is simulated. A message names the incarnation
# that it is meant for, and reaches no other one (rule 13).


class SimulatedStreams:
    """Those that one node opened."""

    def __init__(self, world: World, node: Node) -> None:
        self._world = world
        self._node = node
        self.peers: dict[str, int] = {}  # to which it sends, with their incarnations, as its plan names them
        # peer -> (its incarnation, channel to it). Invariant: the incarnation is that of ``peers``.
        self._channels: dict[str, tuple[int, Channel]] = {}

    def adopt(self, plan: Plan) -> None:
        """Streams to peers that the plan does not name, or as another incarnation, are ended."""
        self.peers = {p: plan.members[p].incarnation for p in peers_of(self._node.name, plan)}
        for peer, (incarnation, channel) in list(self._channels.items()):
            if self.peers.get(peer) != incarnation:
                channel.cut(keep=self._world.brief())
                del self._channels[peer]

    def say_hello(self, peer: str) -> None:
        plan = self._node.worker.plan
        if peer in self.peers and plan is not None and not self._cut_off_from(peer):
            to, order = (peer, self.peers[peer]), plan.order
            self._to(peer).send(lambda: self._world.receive(to, lambda n: n.hear_hello(self._node, order)))

    def send(self, peer: str, key: Key) -> None:
        """The outbox's value of the key, if it is there still."""
        node = self._node
        value, plan = node.worker.post.outbox.get(key), node.worker.plan
        assert peer in self.peers, f"{node.name} sends {key} to {peer}, to whom it has no stream"
        if value is None or plan is None or self._cut_off_from(peer):
            return
        to, order = (peer, self.peers[peer]), plan.order
        seconds = self._world.bulk_seconds if key.kind is Kind.REDUCED else 0.0
        self._to(peer).send(
            lambda: self._world.receive(to, lambda n: n.worker.deliver(node.name, node.incarnation, order, key, value)),
            seconds,
        )

    def answer(self, peer: str, answer: Key | AnswerHello) -> None:
        """An acknowledgement, or the answer to a Hello, on the stream that the peer opened to this node."""
        node, sender = self._node, self._world.nodes.get(peer)
        if sender is None or self._cut_off_from(peer):
            return
        to = (peer, sender.incarnation)

        def arrive(n: Node) -> None:
            if isinstance(answer, AnswerHello):
                n.worker.synced(node.name, answer.standing)
            else:
                n.worker.acknowledged(node.name, node.incarnation, [answer])

        self._world.back_channel(node.name, peer).send(lambda: self._world.receive(to, arrive))

    def reopen(self, peer: str) -> None:
        """The stream to the peer broke and is opened again: Hello, then all that is not acknowledged."""
        plan, outbox = self._node.worker.plan, self._node.worker.post.outbox
        if not self._node.alive or plan is None or peer not in self.peers:
            return
        self._channels.pop(peer, None)
        self.say_hello(peer)
        for key in outbox:
            if peer in outbox.unacknowledged(key, plan):
                self.send(peer, key)

    def cut(self, peer: str) -> bool:
        """Whether there was a stream to the peer; what was on its way is lost."""
        if peer not in self._channels:
            return False
        self._channels[peer][1].cut()
        return True

    def cut_all(self, keep: float) -> None:
        """What would arrive within ``keep`` seconds still does."""
        for _, channel in self._channels.values():
            channel.cut(keep)

    def _to(self, peer: str) -> Channel:
        if peer not in self._channels:
            self._channels[peer] = (self.peers[peer], self._world.channel())
        return self._channels[peer][1]

    def _cut_off_from(self, peer: str) -> bool:
        return self._world.faults.cut_off(self._node.name, peer)
