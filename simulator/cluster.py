"""The simulated cluster: the real ``advance``, the real workers, virtual time, random failures from one seed.

``Cluster(...).run()`` plays a history to its end and raises ``Broken`` if it gets stuck or if any number differs from
the plain loop's.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

from coordinator import state as co
from coordinator.machine import advance, begin, validate
from pipeline.schedule import Instruction
from simulator.arithmetic import Number, plain_loop
from simulator.network import Channel, Clock
from simulator.node import SimulatedNode
from stage_server.instructions import FetchLayers, Run, Work
from stage_server.worker import CommitOrder, Worker

STUCK_AFTER = 400.0  # virtual seconds


class Broken(AssertionError):
    """A history broke the promise. The text names its seed."""


@dataclass(frozen=True)
class Kill:
    """Kill -9 (or freeze for good) the node when it has finished this instruction of this step."""

    node: str
    step: int
    instruction: Instruction
    freeze: bool = False


class Cluster:
    """A coordinator and nodes n0, n1, ... ``disturb`` random failures happen, each at a random moment."""

    def __init__(
        self,
        seed: int,
        stages: int = 3,
        layers: int = 4,
        microbatches: int = 3,
        steps: int = 4,
        spares: int = 0,
        nodes: int | None = None,
        disturb: int = 1,
        kills: tuple[Kill, ...] = (),
        clip_norm: float | None = 50.0,
        respawn: bool = True,
        make_worker: Callable[[str, int, int, int], Worker[Number]] = Worker,
        decide: Callable[[co.State, co.Event, float], tuple[co.State, tuple[co.Command, ...]]] = advance,
    ) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.clock = Clock()
        self.layers = layers
        self.microbatches = microbatches
        self.steps = steps
        self.respawn = respawn
        self.slow = self.random.choice([0.001, 0.005, 0.03])
        self.held: dict[SimulatedNode, list[Callable[[], None]]] = {}
        self.nodes: dict[str, SimulatedNode] = {}
        self.records: list[tuple[float, co.Record]] = []
        self.losses: dict[tuple[int, int], float] = {}
        self.messages = 0
        self._kills = list(kills)
        self._disturb = disturb
        self._decide = decide
        self._make_worker = make_worker
        self._clip_norm = clip_norm
        self._back: dict[tuple[str, str], Channel] = {}
        self._incarnations = 0
        count = (nodes if nodes is not None else stages) + spares
        settings = co.Settings(stages, microbatches, steps, clip_norm, nodes=count)
        self.state = begin(settings)
        for i in range(count):
            self.boot(f"n{i}")

    # ---- the world --------------------------------------------------------------------------------------------------

    def channel(self) -> Channel:
        return Channel(self.clock, self.random, self.slow)

    def back_channel(self, node: str, peer: str) -> Channel:
        if (node, peer) not in self._back:
            self._back[node, peer] = self.channel()
        return self._back[node, peer]

    def duration(self, work: Work[Number]) -> float:
        return self.random.uniform(0.5, 1.5) * (0.01 if isinstance(work, Run) else 0.004)

    def brief(self) -> float:
        return self.random.uniform(0.0, 0.02)

    def boot(self, name: str) -> None:
        """Starts a process under this name: a new incarnation that holds nothing."""
        self._incarnations += 1
        worker = self._make_worker(name, self._incarnations, self.microbatches, self.steps)
        node = SimulatedNode(self, name, self._incarnations, worker)
        self.nodes[name] = node
        self._back = {pair: channel for pair, channel in self._back.items() if name not in pair}
        node.start()

    def receive(self, to: tuple[str, int], action: Callable[[SimulatedNode], None]) -> None:
        """Something arrives at an incarnation of a node, if it is still there."""
        node = self.nodes.get(to[0])
        if node is None or node.incarnation != to[1] or not node.alive:
            return
        if node.frozen:
            self.held.setdefault(node, []).append(lambda: self.receive(to, action))
            return
        self.messages += 1
        action(node)
        node.go()

    def fetch(self, node: SimulatedNode, effect: FetchLayers) -> None:
        """Seeding: each layer is read from the source's live memory between two pieces of its work."""
        to = (node.name, node.incarnation)
        request, answer = self.channel(), self.channel()

        def failed() -> None:
            self.receive(to, lambda n: n.worker.seeding.failed(effect.peer, effect.layers))

        def serve() -> None:
            source = self.nodes.get(effect.peer)
            if source is None or not source.alive:
                self.clock.after(0.05, failed)
                return
            if source.frozen:
                self.clock.after(3.0, failed)
                return
            if not set(effect.layers) <= set(source.arithmetic.states):
                self.clock.after(0.01, serve)  # still building them
                return
            for layer in effect.layers:
                version = source.worker.seeding.version_of(layer)
                if version is None or source.worker.era != effect.era or source.worker.must_arrange:
                    self.clock.after(0.05, failed)
                    return
                number = Number(source.arithmetic.states[layer])
                version = source.arithmetic.versions[layer]
                answer.send(
                    lambda layer=layer, version=version, number=number: self.receive(  # type: ignore[misc]
                        to, lambda n: n.worker.seeding.fetched(layer, version, number)
                    )
                )

        request.send(serve)

    # ---- the coordinator --------------------------------------------------------------------------------------------

    def coordinate(self, event: co.Event) -> None:
        self.state, commands = self._decide(self.state, event, self.clock.now)
        validate(self.state)
        for command in commands:
            self._command(command)

    def _command(self, command: co.Command) -> None:
        if isinstance(command, co.Publish):
            for node in self._attached():
                self._order(node, lambda n: n.worker.take_plan(command.plan))
        elif isinstance(command, co.Commit):
            if self.losses.setdefault((command.era, command.step), command.loss) != command.loss:
                raise Broken(f"seed {self.seed}: step {command.step} committed twice with different losses")
            for node in self._attached():
                self._order_commit(node, command)
        elif isinstance(command, co.SendPlan):
            self._order(self.nodes[command.node], lambda n: n.worker.take_plan(command.plan))
        elif isinstance(command, co.SendCommit):
            self._order_commit(self.nodes[command.node], command.commit)
        elif isinstance(command, co.Dismiss):
            dismissed = self.nodes.get(command.node)
            if dismissed is not None and dismissed.incarnation == command.incarnation and dismissed.alive:
                self._order(dismissed, self._join_anew)
        elif isinstance(command, co.Record):
            self.records.append((self.clock.now, command))

    def _attached(self) -> list[SimulatedNode]:
        members = self.state.nodes
        return [n for n in self.nodes.values() if n.name in members and members[n.name].incarnation == n.incarnation]

    def _order(self, node: SimulatedNode, action: Callable[[SimulatedNode], None]) -> None:
        to = (node.name, node.incarnation)
        node.down.send(lambda: self.receive(to, action))

    def _order_commit(self, node: SimulatedNode, c: co.Commit) -> None:
        order = CommitOrder(c.term, c.era, c.step, c.scale, c.next_plan)
        self._order(node, lambda n: n.worker.take_commit(order))

    def _join_anew(self, node: SimulatedNode) -> None:
        node.alive = False
        node.break_streams(self.brief())
        self.clock.after(self.random.uniform(0.05, 1.0), lambda: self._boot_if_gone(node))

    def _boot_if_gone(self, node: SimulatedNode) -> None:
        if self.nodes[node.name] is node:
            self.boot(node.name)

    def _tick(self) -> None:
        self.coordinate(co.Tick())
        self.clock.after(0.05, self._tick)

    # ---- faults -----------------------------------------------------------------------------------------------------

    def after_work(self, node: SimulatedNode, work: Work[Number]) -> None:
        """Faults at named instructions."""
        for kill in list(self._kills):
            if isinstance(work, Run) and (kill.node, kill.step, kill.instruction) == (
                node.name,
                work.step,
                work.instruction,
            ):
                self._kills.remove(kill)
                if kill.freeze:
                    self.freeze(node, for_good=True)
                else:
                    self.kill(node)

    def kill(self, node: SimulatedNode) -> None:
        """SIGKILL: part of what it sent still arrives; its neighbours and the coordinator see broken streams."""
        if not node.alive:
            return
        node.alive = False
        node.frozen = False
        keep = self.brief()
        node.break_streams(keep)
        node.up.cut(keep)
        for other in self.nodes.values():
            touches = node.name in other.peers or other.name in node.peers
            if other.alive and other is not node and touches:
                self._miss(other, node)
        broken = co.StreamBroken(node.name, node.incarnation)
        self.clock.after(keep + self.brief(), lambda: self.coordinate(broken))
        if self.respawn:
            self.clock.after(self.random.uniform(0.1, 5.0), lambda: self._boot_if_gone(node))

    def _miss(self, other: SimulatedNode, node: SimulatedNode) -> None:
        lost = co.PeerLost(other.name, other.incarnation, node.name, node.incarnation, "the stream broke")
        self.clock.after(self.brief(), lambda: other.tell(lost) if other.alive and not other.frozen else None)

    def freeze(self, node: SimulatedNode, for_good: bool = False) -> None:
        """SIGSTOP, and perhaps SIGCONT later: long after, it wakes up as one that was declared lost."""
        if not node.alive or node.frozen:
            return
        node.frozen = True
        if not for_good:
            self.clock.after(self.random.choice([0.5, 1.5, 2.5, 6.0]), lambda: node.thaw() if node.alive else None)
        elif self.respawn:
            self.clock.after(8.0, lambda: self.kill(node) if node.alive and node.frozen else None)

    def cut(self, node: SimulatedNode) -> None:
        """One stream of the node breaks though both ends live: it is opened again."""
        peer = next((p for p in node.peers if node.cut_stream(p)), None)
        if peer is not None:
            self._miss(node, self.nodes[peer])
            self.clock.after(0.05, lambda: node.reopen(peer))

    def _disturbance(self) -> None:
        if self.state.phase is co.Phase.DONE:
            return
        live = [n for n in self.nodes.values() if n.alive and not n.frozen]
        if not live:
            return
        node = self.random.choice(live)
        what = self.random.random()
        if what < 0.65:
            self.kill(node)
        elif what < 0.85:
            self.freeze(node)
        else:
            self.cut(node)

    # ---- the run ----------------------------------------------------------------------------------------------------

    def run(self) -> "Cluster":
        """Plays the history to its end. Raises Broken, naming the seed."""
        self.clock.after(0.05, self._tick)
        moment = 0.05
        for _ in range(self._disturb):
            moment += self.random.choice([0.03, 0.3, 3.0]) * self.random.random()
            self.clock.at(moment, self._disturbance)
        try:
            while not self._over():
                if not self.clock.step() or self.clock.now > STUCK_AFTER:
                    raise Broken(f"stuck in step {self.state.committed}: {self.state.detail}")
            self._check()
        except AssertionError as error:
            raise Broken(f"seed {self.seed}: {error}") from error
        return self

    def _over(self) -> bool:
        if self.state.phase is not co.Phase.DONE or self.state.plan is None:
            return False
        for node in self.state.plan.members.values():
            simulated = self.nodes[node.node]
            held = any(node.node in stage.required() for stage in self.state.plan.stages)
            present = simulated.incarnation == node.incarnation and simulated.alive and not simulated.frozen
            if present and held and simulated.worker.version < self.steps:
                return False
        return True

    def _check(self) -> None:
        losses, states = plain_loop(self.layers, self.microbatches, self.steps, self._clip_norm)
        for step, loss in enumerate(losses):
            got = self.losses[self.state.era, step]
            assert got == loss, f"the loss of step {step} is {got}, not {loss}"
        for (era, step), loss in self.losses.items():
            assert loss == losses[step], f"the loss of step {step} in era {era} is {loss}, not {losses[step]}"
        plan = self.state.plan
        assert plan is not None
        for s, stage in enumerate(plan.stages):
            for name in stage.required():
                node = self.nodes[name]
                if node.incarnation != plan.members[name].incarnation or not node.alive or node.frozen:
                    continue
                for layer in stage.layers:
                    got_state = node.arithmetic.states[layer]
                    assert got_state == states[layer], f"{name} ends with another layer {layer} of stage {s}"
