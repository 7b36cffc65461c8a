"""What a node tells of itself: to its coordinator at once, with every heartbeat and on attaching; and to Prometheus."""

# Three kinds of messages go up, by what becomes of one that nobody hears:
#
#     reports           each once, when it happens. While no coordinator listens they are dropped (``Orders.report``).
#     facts             of the running step, and of what this node holds: repeated whenever it attaches, since a
#                       coordinator that takes over knows nothing of them (rule 6). They change with the node's lock
#                       held
#     heartbeats        again and again; each replaces the one before
#
# A report that is dropped and is no fact was evidence of the moment (a lost peer, a first instruction). If it is still
# true it is reported again: a sender reports its peer at every attempt.

import time

from culm.pipeline.messages import times_to_proto
from culm.pipeline.tensors.values import Value
from culm.protos import coordinator_pb2 as pb
from culm.stage_server.spiller import Spiller
from culm.stage_server.streams import attend_messages
from culm.stage_server.streams.orders import Orders
from culm.stage_server.turn import Turn
from culm.stage_server.watching.activity import Activity
from culm.stage_server.watching.node_metrics import Reading
from culm.stage_server.watching.traffic import Traffic
from culm.stage_server.worker.worker import Worker


class Attendance:
    """Reports go from any thread, with the node's lock or without: they never wait."""

    def __init__(
        self, worker: Worker[Value], changed: Turn, activity: Activity, traffic: Traffic, spiller: Spiller
    ) -> None:
        self._worker = worker
        self._changed = changed
        self._activity = activity
        self._traffic = traffic
        self._spiller = spiller
        self._orders: Orders | None = None  # until the node is built, and serves its peers
        # Layer -> hash of its initial state, for all that this node has built. It is told before any Ready over such a
        # layer (rule 23): the compute thread reports it before it hands the work back to the worker.
        self._built: dict[int, str] = {}

    def begin(self, orders: Orders) -> None:
        self._orders = orders

    def report(self, request: pb.AttendRequest) -> None:
        if self._orders is not None:
            self._orders.report(request)

    def report_built(self, initial: tuple[tuple[int, str], ...]) -> None:
        """Hashes of layers at their initial state, which is used from now on."""
        with self._changed:  # or an announcement may miss it, and the report be dropped before that
            self._built.update(initial)
            self.report(attend_messages.built(self._built))

    def leave_lower(self, term: int) -> None:
        """A peer has told this term: a coordinator of a lower one is obeyed no longer (rule 12)."""
        if self._orders is not None:
            self._orders.leave_lower(term)

    def facts(self, available: pb.Available) -> list[pb.AttendRequest]:
        """That this node is there, and all that a coordinator may have missed. Called with the node's lock held.

        What it has done so far goes along: the run may be over before the next heartbeat.
        """
        facts = [attend_messages.available(available, self._worker), pb.AttendRequest(heartbeat=self.heartbeat())]
        if self._built:
            facts.append(attend_messages.built(self._built))
        facts.extend(attend_messages.ready(fact) for fact in self._worker.facts.repeated())
        facts.extend(attend_messages.caught_up(fact) for fact in self._worker.facts.repeated_settled())
        return facts

    def heartbeat(self) -> pb.Heartbeat:
        """Without the lock: a heartbeat comes in time though a thread holds the lock for long."""
        beat = self._activity.heartbeat()
        beat.version = self._worker.version
        beat.times.CopyFrom(times_to_proto(self._activity.times.split(time.monotonic())))
        beat.sent_bytes.update(self._traffic.sent_by_peer())
        beat.bytes_per_second = self._traffic.bytes_per_second()
        return beat

    def reading(self) -> Reading:
        """For Prometheus."""
        with self._changed:
            return Reading(
                node=self._worker.node,
                times=self._activity.times.split(time.monotonic()),
                sent_bytes=self._traffic.sent_by_peer(),
                received_bytes=self._traffic.received_by_peer(),
                version=self._worker.version,
                mailbox=len(self._worker.post.mailbox),
                outbox=len(self._worker.post.outbox),
                finished=self._activity.finished,
                spilled_bytes=self._spiller.bytes,
            )
