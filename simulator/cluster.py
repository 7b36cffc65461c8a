"""The simulated cluster: the real ``advance``, the real workers, virtual time, random failures from one seed.

``Cluster(...).run()`` plays a history to its end and raises ``Broken`` if it gets stuck or if any number differs from
the plain loop's.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

from coordinator import state as co
from coordinator.machine import advance
from pipeline.manifest import File
from pipeline.schedule import Instruction
from simulator.arithmetic import Number, plain_loop
from simulator.coordination import Leader, SimulatedRedis
from simulator.network import Channel, Clock
from simulator.node import SimulatedNode
from stage_server.instructions import FetchLayers, RestoreLayers, Run, Save, Work
from stage_server.worker import Worker

STUCK_AFTER = 400.0  # virtual seconds
COORDINATOR = "coordinator"


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
    """Coordinators and nodes n0, n1, ... Random failures happen, each at a random moment.

    ``disturb`` of nodes and their streams, ``outages`` of coordinators, Redis and the network. ``changes``: nodes are
    drained, or join. ``links``: two nodes do not reach each other for a while, or, with ``for_good``, never again.
    """

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
        outages: int = 0,
        changes: int = 0,
        checkpoint_every: int = 0,
        settle_seconds: float = 30.0,
        most_stages: int = 0,
        warnings: int = 0,
        links: int = 0,
        for_good: bool = False,
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
        self.every: list[SimulatedNode] = []  # also the incarnations before
        self.records: list[tuple[float, co.Record]] = []
        self.losses: dict[tuple[int, int], float] = {}
        self.messages = 0
        self._kills = list(kills)
        self._disturb = disturb
        self._outages = outages
        self._changes = changes
        self.checkpoint_every = checkpoint_every
        self._files: dict[int, dict[int, int]] = {}  # step -> layer -> state
        self._warnings = warnings
        self._links = links
        self._for_good = for_good
        self._joined_later = 0
        self.decide = decide
        self._make_worker = make_worker
        self._clip_norm = clip_norm
        self._back: dict[tuple[str, str], Channel] = {}
        self._incarnations = 0
        count = (nodes if nodes is not None else stages) + spares
        self._settings = co.Settings(
            stages,
            microbatches,
            steps,
            clip_norm,
            nodes=count,
            checkpoint_url="memory://sim",
            settle_seconds=settle_seconds,
            most_stages=most_stages,
        )
        self.redis = SimulatedRedis()
        self.leaders: list[Leader] = []
        self._cut_off: set[str] = set()  # nodes that reach nobody, and the word "coordinator"
        self._cut_links: set[frozenset[str]] = set()
        self.lead()
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
        worker.checkpoint_every = self.checkpoint_every
        node = SimulatedNode(self, name, self._incarnations, worker)
        self.nodes[name] = node
        self.every.append(node)
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
            self.receive(to, lambda n: n.worker.fetch_failed(effect.era, effect.peer, effect.layers))

        def serve() -> None:
            if frozenset((node.name, effect.peer)) in self._cut_links:
                self.clock.after(2.0, failed)
                return
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
                        to, lambda n: n.worker.fetched(effect.era, layer, version, number)
                    )
                )

        request.send(serve)

    # ---- checkpoints ------------------------------------------------------------------------------------------------

    def save(self, node: SimulatedNode, work: Save) -> None:
        """The node's share is written after a while, unless the node dies before."""
        share = {layer: node.arithmetic.states[layer] for layer in work.layers}
        era, to = node.worker.era, (node.name, node.incarnation)
        files = {layer: (File(f"layer-{layer}", 8, str(state)),) for layer, state in share.items()}

        def written(n: SimulatedNode) -> None:
            self._files.setdefault(work.step, {}).update(share)
            n.tell(co.Saved(n.name, n.incarnation, era, work.step, files))

        self.clock.after(self.random.uniform(0.01, 0.3), lambda: self.receive(to, written))

    def restore(self, node: SimulatedNode, effect: RestoreLayers) -> None:
        to = (node.name, node.incarnation)
        for layer in effect.layers:
            number = Number(self._files[effect.step][layer])
            self.clock.after(
                self.random.uniform(0.01, 0.3),
                lambda layer=layer, number=number: self.receive(  # type: ignore[misc]
                    to, lambda n: n.worker.fetched(effect.era, layer, effect.step, number)
                ),
            )

    # ---- the coordinators -------------------------------------------------------------------------------------------

    @property
    def leader(self) -> Leader:
        """The newest one, alive or not."""
        return self.leaders[-1]

    @property
    def state(self) -> co.State:
        """Of the leader that is done, else of the newest: an older one may go on with all nodes, unaware of it."""
        done = (x for x in self.leaders if x.alive and x.state.phase is co.Phase.DONE)
        return next(done, self.leader).state

    def lead(self) -> None:
        """A coordinator takes the lease."""
        self.leaders.append(Leader(self, self.redis, self._settings))

    def reachable_leader(self, node: SimulatedNode) -> Leader | None:
        """Any living one: a node does not know which is the newest."""
        living = [x for x in self.leaders if x.alive]
        if not living or self.cut_off(node.name, COORDINATOR):
            return None
        return self.random.choice(living) if len(living) > 1 else living[0]

    def note_commit(self, command: co.Commit) -> None:
        if self.losses.setdefault((command.era, command.step), command.loss) != command.loss:
            raise Broken(f"seed {self.seed}: step {command.step} committed twice with different losses")

    def join_anew(self, node: SimulatedNode) -> None:
        """The node was dismissed: it starts again, holding nothing."""
        node.alive = False
        node.leader = None
        node.break_streams(self.brief())
        self.clock.after(self.random.uniform(0.05, 1.0), lambda: self._boot_if_gone(node))

    def _boot_if_gone(self, node: SimulatedNode) -> None:
        if self.nodes[node.name] is node:
            self.boot(node.name)

    def cut_off(self, one: str, other: str) -> bool:
        return one in self._cut_off or other in self._cut_off or frozenset((one, other)) in self._cut_links

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
        leader, node.leader = node.leader, None
        node.up.cut(keep)
        for other in self.nodes.values():
            touches = node.name in other.peers or other.name in node.peers
            if other.alive and other is not node and touches:
                self._miss(other, node)
        if leader is not None:
            self.clock.after(keep + self.brief(), lambda: leader.broke(node))
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

    def partition(self, name: str, seconds: float) -> None:
        """Nobody reaches this node (or the coordinator) for a while; both sides notice broken streams in the end."""
        self._cut_off.add(name)
        node = self.nodes.get(name)
        for other in self.nodes.values() if node is None else [node]:
            if other.alive and not other.frozen:
                other.detach()
        if node is not None:
            node.break_streams(0.0)
            for other in self.nodes.values():
                if other.alive and other is not node and (name in other.peers or other.name in node.peers):
                    other.cut_stream(name)
                    self._miss(other, node)
        self.clock.after(seconds, lambda: self._heal(name))

    def _heal(self, name: str) -> None:
        self._cut_off.discard(name)
        node = self.nodes.get(name)
        for other in self.nodes.values():
            if node is not None and other is not node:
                self.clock.after(0.05 + self.brief(), lambda other=other: other.reopen(name))  # type: ignore[misc]
                self.clock.after(0.05 + self.brief(), lambda other=other: node.reopen(other.name))  # type: ignore[misc]

    def cut_link(self, one: str, other: str, seconds: float | None) -> None:
        """Two nodes do not reach each other, though everybody else reaches both. None: for good."""
        link = frozenset((one, other))
        self._cut_links.add(link)
        for name, peer in ((one, other), (other, one)):
            self.nodes[name].cut_stream(peer)
        self._complain(one, other)

        def heal() -> None:
            self._cut_links.discard(link)
            self.nodes[one].reopen(other)
            self.nodes[other].reopen(one)

        if seconds is not None:
            self.clock.after(seconds, heal)

    def _complain(self, one: str, other: str) -> None:
        """Nodes try to open their streams again, and report each failure."""
        if frozenset((one, other)) not in self._cut_links:
            return
        for name, peer in ((one, other), (other, one)):
            node = self.nodes[name]
            if node.alive and not node.frozen and peer in node.peers:
                missed = co.PeerLost(name, node.incarnation, peer, node.peers[peer], "it is not reached")
                node.tell(missed)
        self.clock.after(0.5, lambda: self._complain(one, other))

    def crash_coordinator(self) -> None:
        """Kill -9; restarted after a while."""
        self.leader.end()
        self.clock.after(self.random.choice([0.1, 1.0, 5.0]), self.lead)

    def second_coordinator(self) -> None:
        """Another one takes the lease, since Redis does not hear from the first; that one may never notice."""
        before = self.leader
        before.cut_from_redis = True

        def healed() -> None:
            before.cut_from_redis = False
            before.redis_is_back()

        self.clock.after(self.random.choice([0.3, 3.0, 60.0]), healed)
        self.redis.away = False
        self.lead()
        for node in list(self.nodes.values()):
            if node.alive and not node.frozen and self.random.random() < 0.5:
                node.detach()

    def redis_outage(self, seconds: float) -> None:
        def back() -> None:
            self.redis.away = False
            for leader in self.leaders:
                leader.redis_is_back()

        self.redis.away = True
        self.clock.after(seconds, back)

    def _outage(self) -> None:
        if self.state.phase is co.Phase.DONE:
            return
        what = self.random.random()
        if what < 0.35 and self.leader.alive:
            self.crash_coordinator()
        elif what < 0.45 and self.leader.alive:
            self.second_coordinator()
        elif what < 0.65:
            self.redis_outage(self.random.choice([0.1, 1.0, 10.0]))
        elif what < 0.75:
            self.partition(COORDINATOR, self.random.choice([0.3, 2.5, 6.0]))
        else:
            self.partition(self.random.choice(list(self.nodes)), self.random.choice([0.3, 2.5, 6.0]))

    def _change(self) -> None:
        """A node is given notice, or another one joins."""
        if self.random.random() < 0.3:
            self._joined_later += 1
            self.boot(f"late{self._joined_later}")
            return
        live = [n for n in self.nodes.values() if n.alive and not n.frozen and n.leader is not None]
        if live:
            node = self.random.choice(live)
            node.tell(co.Draining(node.name, "its machine is to go", self.random.choice([None, 2.0, 120.0])))

    def _warning(self) -> None:
        """A node's machine may have to go, or not."""
        node = self.random.choice(list(self.nodes.values()))
        if node.alive and not node.frozen and node.leader is not None:
            node.tell(co.Warned(node.name, "its cloud recommends a rebalance"))

    def _link(self) -> None:
        """A link between two nodes breaks."""
        if self.state.phase is co.Phase.DONE or len(self.nodes) < 2:
            return
        one, other = self.random.sample(sorted(self.nodes), 2)
        seconds = None if self._for_good else self.random.choice([0.3, 3.0, 8.0, 30.0])
        self.cut_link(one, other, seconds)

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
        happenings = (
            (self._disturb, self._disturbance),
            (self._changes, self._change),
            (self._links, self._link),
            (self._outages, self._outage),
            (self._warnings, self._warning),
        )
        for count, happening in happenings:
            moment = 0.05
            for _ in range(count):
                moment += self.random.choice([0.03, 0.3, 3.0]) * self.random.random()
                self.clock.at(moment, happening)
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
        assert self.state.plan is not None
        for step in range(self.state.plan.origin_step, self.steps):
            got = self.losses[self.state.era, step]
            assert got == losses[step], f"the loss of step {step} is {got}, not {losses[step]}"
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
