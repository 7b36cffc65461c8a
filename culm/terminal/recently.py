"""What nodes did in the last seconds: the difference between what they tell now and what they told then."""

from collections import deque
from dataclasses import dataclass

from culm.protos import coordinator_pb2 as pb

SECONDS = 10.0  # long enough for several steps and heartbeats, and short enough to show a change


@dataclass(frozen=True, slots=True)
class _Told:
    """What a node's process told of itself: all since it started."""

    bubble: float  # seconds
    total: float  # seconds
    sent: int  # bytes


class Recently:
    """Takes one status after another. Nodes are told apart by name and incarnation: each incarnation begins at 0."""

    def __init__(self) -> None:
        # By time, ascending. Invariant: all but the first are of the last ``SECONDS``.
        self._looks: deque[tuple[float, dict[tuple[str, int], _Told]]] = deque()

    def take(self, status: pb.GetStatusResponse, at: float) -> None:
        """``at``: in seconds of any clock."""
        if self._looks and at <= self._looks[-1][0]:
            return
        self._looks.append((at, {(node.id, node.incarnation): _told(node) for node in status.nodes}))
        while len(self._looks) > 2 and self._looks[1][0] <= at - SECONDS:
            self._looks.popleft()

    def bubble_share(self, node: pb.NodeStatus) -> float | None:
        """Of the compute thread's time: lately, or since the process started. None: the node has told nothing yet."""
        now, (_, before) = _told(node), self._first_of(node)
        bubble, total = (now.bubble - before.bubble, now.total - before.total)
        if total <= 0.0:
            bubble, total = now.bubble, now.total
        return bubble / total if total > 0.0 else None

    def sent_per_second(self, node: pb.NodeStatus) -> float | None:
        """Bytes; None where there was only one look at the node."""
        at, before = self._first_of(node)
        if not self._looks or at >= self._looks[-1][0]:
            return None
        return (_told(node).sent - before.sent) / (self._looks[-1][0] - at)

    def _first_of(self, node: pb.NodeStatus) -> tuple[float, _Told]:
        """The oldest look at this incarnation."""
        key = (node.id, node.incarnation)
        for at, nodes in list(self._looks)[:-1]:
            if key in nodes:
                return at, nodes[key]
        return float("inf"), _Told(0.0, 0.0, 0)


def _told(node: pb.NodeStatus) -> _Told:
    times = node.times
    total = times.forward + times.backward + times.redundant + times.apply + times.bubble + times.idle
    return _Told(times.bubble, total, sum(node.sent_bytes.values()))
