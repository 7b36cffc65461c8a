"""Simulated coordinators over a simulated Redis: crashes, outages, and two leaders at once."""

from culm.coordinator import commands as cmd
from culm.coordinator import reports
from culm.coordinator import state as co
from culm.coordinator.decide import begin
from culm.coordinator.edges.persistence import Document, from_document, to_document
from culm.coordinator.rolling_back import going_on
from culm.coordinator.takeover import is_heard
from culm.pipeline.plan import Plan
from culm.simulator.histories.invariants import (
    check_beginning,
    check_coordinator,
    check_gate,
    check_rollback,
    check_takeover,
    check_zones,
)
from culm.simulator.histories.simulated_redis import SimulatedRedis
from culm.simulator.histories.world import Node, World
from culm.simulator.network import Channel

# A coordinator here is the real decisions and the real document, between two doors:
#
#     a node's report  ->  take  ->  advance  ->  commands:  orders to nodes, at once, in order on each stream
#                                                            a document to Redis, a moment later
#                                                            events to its log, a moment after that
#                                                            manifests, after the storage has answered
#
# An order is sent before the document is written: no node waits for Redis. So a coordinator that dies in between leaves
# nodes that know more than its successor has read, which rule 8 is about. A document that waits is replaced by the next
# one; whatever was not written dies with the process.
#
# Several may live at once. Each believes that it leads until Redis refuses its write or its lease, or until a node
# tells it of a higher term (rules 12 and 15). Only the newest one goes on under another term then.

RENEW_SECONDS = 0.75  # between two renewals of the lease
WRITE_SECONDS = 0.002  # until what is to be persisted is in Redis
RECORD_SECONDS = 0.005  # until an event is in the log


class Leader:
    """One coordinator process that holds, or believes that it holds, the lease."""

    def __init__(self, world: World, redis: SimulatedRedis, settings: co.Settings, above: int = 0) -> None:
        self.world = world
        self.redis = redis
        remembered = redis.document["term"] if redis.document is not None else 0
        self.number = len(world.leaders) + 1
        self.term = redis.acquire(self.number, max(above, remembered))
        self.alive = True
        self.cut_from_redis = False
        self.streams: dict[str, tuple[Node, Channel]] = {}  # down to the attached incarnations
        self._pending: Document | None = None  # to be written, once Redis is there
        self._pending_state: co.State | None = None  # what it was made from
        self.unwritten: list[tuple[float, cmd.Record]] = []  # events that are not in the log yet
        self.searched_at: float | None = None  # when the storage has last told it which checkpoints there are
        now, number = world.clock.now, self.number
        self.state = begin(settings, self.term, number, now if world.leaders else None)
        if world.leaders and not world.storage.shows_another_run():  # else a user says --new-run
            self.state = going_on(self.state, world.storage.left_behind(), frozenset())
        if redis.document is not None:
            self.state = from_document(redis.document, settings, self.term, now, number)
        world.clock.after(0.05, self._tick)
        world.clock.after(RENEW_SECONDS, self._renew)

    def attach(self, node: Node, down: Channel) -> None:
        """A node opened its order stream."""
        before = self.streams.get(node.name)
        if before is not None and before[0].incarnation > node.incarnation:
            return
        if before is not None:
            before[1].cut()
        self.streams[node.name] = (node, down)

    def take(self, report: reports.Report) -> None:
        if not self.alive:
            return
        before = self.state
        self.state, commands = self.world.decide(self.state, report, self.world.clock.now)
        check_coordinator(self.world, self.state)
        self.world.faults.operator.heard(before, report, self.state)
        if self.state.took_over_at is not None:
            check_takeover(before, commands)
        doubted = self.state.storage.proved_bad if self.world.audit else ()
        check_rollback(before, self.state, self.world.storage, doubted)
        if isinstance(report, reports.CheckpointsFound) and not report.why:
            self.searched_at = self.world.clock.now
        # Nobody goes on from what a leader of a lower term begins. A run that audits may leave a checkpoint out.
        if self is self.world.leader and not self.world.audit:
            check_beginning(before, self, self.world.storage)
        check_zones(before, self.state, self.world.zones)
        if self.world.audit:
            for commit in (command for command in commands if isinstance(command, cmd.Commit)):
                check_gate(self.world, before, self.state, commit)
                self.world.mistakes.committed(before, commit, self.state.nodes)
        for command in commands:
            self._carry_out(command)

    def broke(self, node: Node) -> None:
        """The node's order stream broke."""
        attached = self.streams.get(node.name)
        if attached is not None and attached[0] is node:
            del self.streams[node.name]
            self.take(reports.StreamBroken(node.name, node.incarnation))

    def end(self) -> None:
        """The process dies, or steps down: what was not written is lost, and its nodes are on their own."""
        self.alive = False
        for _, down in self.streams.values():
            down.cut()
        self.streams.clear()
        for node in self.world.nodes.values():
            if node.attendance.leader is self:
                node.attendance.detached()

    def stop(self) -> None:
        """SIGTERM: what is to outlive it is written, if Redis is there; its nodes are told nothing (rule 17)."""
        if self._pending is not None:
            self._write()
        self._log()
        if self.alive:
            self.end()

    def _lead_anew(self, above: int = 0) -> None:
        """This term is over. Without the lease this coordinator waits in vain for another term."""
        self.end()
        if self is self.world.leader:
            self.world.clock.after(WRITE_SECONDS, lambda: self.world.lead(above))

    def redis_is_back(self) -> None:
        """Writes catch up, unless another leads by now, or Redis has come back with another term."""
        if self.redis.term > self.term and self.alive and not self.cut_from_redis:
            self._lead_anew()
        self._write()
        self._log()

    def _log(self) -> None:
        if self.alive and not self.redis.away and not self.cut_from_redis:
            self.world.records.extend(self.unwritten)
            self.unwritten.clear()

    def _write(self) -> None:
        if self._pending is None or not self.alive or self.redis.away or self.cut_from_redis:
            return
        self._log()  # one queue, in which events stand before the state that was decided with them
        document, self._pending = self._pending, None
        if not self.redis.write(document, self.term, self.number):
            self._lead_anew()
        elif self._pending_state is not None:
            self.world.faults.operator.written(self._pending_state)

    def _renew(self) -> None:
        """Keeps the lease: of two leaders at once, since Redis lost its memory, the one of the lower term goes."""
        if (
            self.alive
            and not self.redis.away
            and not self.cut_from_redis
            and not self.redis.renew(self.term, self.number)
        ):
            self._lead_anew()
        elif self.alive:
            self.world.clock.after(RENEW_SECONDS, self._renew)

    def _tick(self) -> None:
        if self.alive:
            self.take(reports.Tick())
            self.world.clock.after(0.05, self._tick)

    def _carry_out(self, command: cmd.Command) -> None:
        if isinstance(command, cmd.LeadAnew):
            self._lead_anew(command.above)
        elif isinstance(command, cmd.Persist):
            if self._pending is None:
                self.world.clock.after(WRITE_SECONDS, self._write)
            self._pending, self._pending_state = to_document(self.state), self.state
        elif isinstance(command, cmd.Publish):
            for name in self._heard():
                self._order_plan(name, command)
        elif isinstance(command, cmd.Commit):
            self.world.note_commit(command)
            for name in self._heard():
                self._order_commit(name, command)
        elif isinstance(command, cmd.SendPlan):
            self._order_plan(command.node, command)
        elif isinstance(command, cmd.SendCommit):
            self._order_commit(command.node, command.commit)
        elif isinstance(command, cmd.Ask):
            self._ask(command.node)
        elif isinstance(command, cmd.Dismiss):
            attached = self.streams.get(command.node)
            if attached is not None and attached[0].incarnation == command.incarnation:
                if self.state.ending.released:
                    self._let_go(command.node)
                else:
                    self._order(command.node, None)
                del self.streams[command.node]
        elif isinstance(command, cmd.ForStorage):
            self.world.storage.carry_out(self, command)
        elif isinstance(command, cmd.Record):
            self.unwritten.append((self.world.clock.now, command))
            self.world.clock.after(RECORD_SECONDS, self._log)

    def _heard(self) -> list[str]:
        return [name for name in self.streams if is_heard(self.state, name)]

    def _let_go(self, name: str) -> None:
        node, down = self.streams[name]
        down.send(lambda: self.world.receive((name, node.incarnation), self.world.let_go))

    def _ask(self, name: str) -> None:
        attached = self.streams.get(name)
        if attached is not None:
            node, down = attached
            down.send(lambda: self.world.receive((node.name, node.incarnation), lambda n: n.attendance.announce()))

    def _order_plan(self, name: str, command: cmd.Publish | cmd.SendPlan) -> None:
        self._order(name, command.plan)

    def _order_commit(self, name: str, c: cmd.Commit) -> None:
        self._order(name, c)

    def _order(self, name: str, order: Plan | cmd.Commit | None) -> None:
        attached = self.streams.get(name)
        if attached is not None:
            node, down = attached
            to = (node.name, node.incarnation)
            down.send(lambda: self.world.receive(to, lambda n: n.obey(order)))
