"""Sends orders: each goes into the queue of every attached node that it is for."""

from culm.coordinator import commands as cmd
from culm.coordinator import state as co
from culm.coordinator.edges.order_stream import OrderStream, gates
from culm.coordinator.edges.translation import addressee, by_stage, order_of, plan_in
from culm.coordinator.takeover import is_heard
from culm.pipeline.plan import Plan
from culm.protos import coordinator_pb2 as pb

# An order for all goes to the nodes that the coordinator has heard in its term. One that it has not heard is told where
# the run stands once it says what it holds.


class Publisher:
    """Holds the order streams of the attached nodes. It never waits."""

    def __init__(self) -> None:
        # By node. Invariant: of the newest incarnation that has attached; an older stream has ended, or is ending.
        self._streams: dict[str, OrderStream] = {}

    def attach(self, stream: OrderStream) -> bool:
        """The node's orders go to this stream from now on; an older one ends. False: a newer incarnation attends."""
        before = self._streams.get(stream.node)
        if before is not None and before.incarnation > stream.incarnation:
            return False
        if before is not None:
            before.queue.put_nowait(None)
        self._streams[stream.node] = stream
        return True

    def detach(self, stream: OrderStream) -> bool:
        """False: it is attached no more, since another one has taken its place or it was detached before."""
        if self._streams.get(stream.node) is not stream:
            return False
        del self._streams[stream.node]
        return True

    def end(self) -> None:
        """Ends every stream: nodes wait for the next coordinator."""
        for stream in self._streams.values():
            stream.queue.put_nowait(None)
        self._streams.clear()

    def send(self, node: str, order: pb.AttendResponse) -> bool:
        """Queues an order; False if the node is not attached."""
        stream = self._streams.get(node)
        if stream is None:
            return False
        stream.put(order)
        return True

    def publish(self, command: cmd.Command, state: co.State) -> None:
        """The order goes to whom it is for: a commit stage by stage, and a Dismiss as the last of its stream."""
        if isinstance(command, cmd.Dismiss) and not self._attends(command.node, command.incarnation):
            return  # the stream of that name is another incarnation's: its process was started again
        node = addressee(command)
        places = {node: 0} if node is not None else by_stage(self._heard(state), state.plan)
        streams = [(self._streams[name], place) for name, place in places.items() if name in self._streams]
        opened = gates(max(places.values(), default=0) + 1) if isinstance(command, cmd.Commit) else None
        plan = plan_in(command)
        # A thousand nodes mostly know the same plan, so the change of it is made once. ``same`` compares its stages and
        # members by identity: to compare a thousand of them for each node would cost more than the message.
        orders: dict[tuple[object, ...] | None, pb.AttendResponse | None] = {}
        for stream, place in streams:
            before = _plan_before(stream) if plan is not None else None
            same = (before.order, id(before.stages), id(before.members)) if before is not None else None
            if same not in orders:
                orders[same] = order_of(command, before)
            order = orders[same]
            if order is not None:
                stream.put(order, opened[place] if opened is not None else None)
            stream.plan = plan or stream.plan
        if isinstance(command, cmd.Dismiss):  # after its order: the stream ends once the node has been told why
            self._streams.pop(command.node).queue.put_nowait(None)

    def _heard(self, state: co.State) -> list[str]:
        return [name for name in self._streams if is_heard(state, name)]

    def _attends(self, node: str, incarnation: int) -> bool:
        stream = self._streams.get(node)
        return stream is not None and stream.incarnation == incarnation


def _plan_before(stream: OrderStream) -> Plan | None:
    """The plan of which the node takes a change; None: it takes whole plans alone, or has none yet."""
    return stream.plan if stream.takes_changes else None
