"""The simulated cluster: the real ``advance``, the real workers, virtual time, random failures from one seed."""

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from culm.coordinator import commands as cmd
from culm.coordinator import reports
from culm.coordinator import state as co
from culm.coordinator.decide import advance
from culm.pipeline import buckets
from culm.pipeline.evaluations import Evaluations
from culm.pipeline.neighbours import FRESH, Neighbours
from culm.pipeline.patience import Patience
from culm.pipeline.schedule import Schedule
from culm.pipeline.tally import TallyForm
from culm.pipeline.ties import Tie
from culm.simulator.histories.after_the_end import Afterlife, Ending
from culm.simulator.histories.arithmetic import Number
from culm.simulator.histories.fault_counts import Counts, Kill
from culm.simulator.histories.invariants import check_end, check_log, check_node
from culm.simulator.histories.mistakes import Mistakes
from culm.simulator.histories.plain_loop import plain_loop
from culm.simulator.histories.random_faults import Faults
from culm.simulator.histories.simulated_coordinators import Leader
from culm.simulator.histories.simulated_node import SimulatedNode
from culm.simulator.histories.simulated_redis import SimulatedRedis
from culm.simulator.histories.simulated_seeding import seed_layers
from culm.simulator.histories.simulated_storage import PAUSE, URL, SimulatedStorage
from culm.simulator.histories.start_up import NOTHING, StartUp, Wrong, check_verdict
from culm.simulator.histories.world import COORDINATOR, Node, World
from culm.simulator.network import Channel, Clock
from culm.stage_server.worker.effects import FetchLayers
from culm.stage_server.worker.story import story
from culm.stage_server.worker.work import Run, Work
from culm.stage_server.worker.worker import Worker

# ``Cluster(...).run()`` plays a history to its end, and raises ``Broken`` if it gets stuck or if a number differs from
# the plain loop's. A history depends on its seed alone: the seed begins every generator of random numbers, and all that
# happens is an action on one clock. So a seed that broke once breaks again, and stands in a test.
#
# Real: every decision, every worker, persistence (as documents), manifests and their hashes. Simulated, and how:
#
#     streams         channels with random delays. They break with a node, by a fault or by a partition; what is on its
#                     way is lost, and the ends notice after a moment
#     work            a random while for each piece; milliseconds, as small layers take
#     seeding         a layer at a time, from the source's live memory at the moment of asking
#     processes       killed, frozen, thawed, started again as another incarnation
#     Redis           writes take a moment; it goes away, and forgets (``simulated_redis``)
#     storage         late, away, full, gone, unseen, torn (``simulated_storage``)
#     the arithmetic  integers that remember order, step, version and scale (``arithmetic``, ``oracle``)
#
# Left ideal: a message arrives whole or not at all; layers that a source has sent arrive though it dies; memory is
# never short; the clocks of all machines agree; a coordinator decides in no time, and takes the lease also while Redis
# is away; messages are not encoded (but those of ``hostile_peer``), so what an encoding could lose is tested elsewhere.
#
# After every event the invariants are looked at (``invariants``). At the end every committed loss and every holder's
# state are compared with the plain loop's.

STUCK_AFTER = 400.0  # virtual seconds: more than all outages and waits here take


class Broken(AssertionError):
    """A history broke the promise. The text names its seed."""


class Cluster:
    """Coordinators and nodes n0, n1, ... ``counts``: how often things fail, as ``fault_counts.Counts``.

    ``left_steps``: of checkpoints that another run has left where this one's go. ``hostile`` makes whoever says what no
    node says (``hostile_peer.speaking``). ``afterlife``: what happens once every step is committed; without one the
    history ends there. ``tied``: pairs of layers with a parameter in common, the first one first. ``evaluate``: every
    how many steps, and over how many microbatches of all pipelines. ``iterable``: the dataset is, and is read forward.
    ``worse_allowed``: evaluations in a row until the run ends early; 0: any number. ``metrics``: how many of training
    there are. ``audit``: the share of forwards, where machines may compute wrongly (``wrong_machines``).
    ``neighbours``: of a graph, whose chunks the pipelines are; every layer is a stage then.
    ``make_worker`` and ``decide`` take variants without a rule.
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
        checkpoint_every: int = 0,
        settle_seconds: float = 30.0,
        most_stages: int = 0,
        kills: tuple[Kill, ...] = (),
        clip_norm: float | None = 50.0,
        respawn: bool = True,
        bulk_seconds: float = 0.0,
        zones: Mapping[str, str] = MappingProxyType({}),
        eager: bool = False,
        lead: int = 1,
        splits: bool = False,
        ship_every: int = 0,
        pipelines: int = 1,
        has_buffers: bool = False,
        tied: tuple[tuple[int, int], ...] = (),
        evaluate: tuple[int, int] = (0, 0),
        iterable: bool = False,
        worse_allowed: int = 0,
        metrics: int = 0,
        uneven: bool = False,
        copies: int | co.BulksBefore = 2,
        hostile: Callable[[World], object] | None = None,
        measured: bool = False,
        memory_bytes: int = 0,
        memory_of: Mapping[str, int] = MappingProxyType({}),
        spills: bool = False,
        home_seconds: float = 0.0,
        audit: float = 0.0,
        neighbours: Neighbours | None = None,
        parameters: tuple[float, ...] = (),
        afterlife: Afterlife | None = None,
        patience: float = 2.0,
        left_steps: tuple[int, ...] = (),
        wrong: Wrong = NOTHING,
        make_worker: Callable[[str, int, Schedule, int], Worker[Number]] = Worker,
        decide: Callable[[co.State, reports.Report, float], tuple[co.State, tuple[cmd.Command, ...]]] = advance,
        **counts: Any,
    ) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.clock = Clock()
        self.layers = layers
        self.parameters = parameters or (1.0,) * layers
        self.pipelines = pipelines
        cut = tuple(buckets.count(each, pipelines) for each in self.parameters)
        self.ties = tuple(Tie(first, layer, (), tuple(range(cut[first]))) for first, layer in tied)
        self.has_buffers = has_buffers
        self.iterable = iterable
        self._uneven = uneven
        self._agreed: dict[tuple[int, int, int], int] = {}  # by era, version and layer; only on uneven hardware
        self.microbatches = microbatches
        self.steps = steps
        every, samples = evaluate
        self.evaluations = Evaluations(every=every, samples=samples, pipelines=pipelines)
        self.form = TallyForm(measured=tuple(f"metric{i}" for i in range(metrics)))
        self.respawn = respawn
        self.bulk_seconds = bulk_seconds  # that a layer's reduced gradient takes beyond other messages
        self.zones = zones  # node -> zone
        self.memory_bytes, self.memory_of = memory_bytes, memory_of  # that each node tells
        self.spills = spills
        self.audit = audit
        self.mistakes = Mistakes()
        self.neighbours = neighbours
        self.home_seconds = home_seconds  # that what a card has computed takes at most to the host's memory
        self.slow = self.random.choice([0.001, 0.005, 0.03])  # mean seconds of a message
        self.held: dict[Node, list[Callable[[], None]]] = {}
        self.nodes: dict[str, SimulatedNode] = {}
        self.every: list[SimulatedNode] = []  # also the incarnations before
        self.records: list[tuple[float, cmd.Record]] = []
        # By (era, step): the loss, what was measured, what was evaluated. Invariant: a value never changes (rule 7).
        self.losses: dict[tuple[int, int], tuple[float, tuple[float, ...], tuple[float, ...]]] = {}
        self.messages = 0  # that nodes received
        self.ending = Ending(self, afterlife)
        self.faults = Faults(self, Counts(**counts), kills)
        self.checkpoint_every = checkpoint_every
        self.eager = eager
        self.ship_every = ship_every
        self.schedule = Schedule(microbatches, lead, splits)
        self.storage = SimulatedStorage(self)
        for step in left_steps:
            self.storage.leave(step)
        self.decide = decide
        self._make_worker = make_worker
        self._back: dict[tuple[str, str], Channel] = {}  # (node, peer) -> the node's answers to that peer
        self._incarnations = 0
        count = (nodes if nodes is not None else stages) + spares
        self._settings = co.Settings(
            stages=stages,
            microbatches=microbatches,
            pipelines=pipelines,
            measured=measured,
            steps=steps,
            evaluations=self.evaluations,
            worse_allowed=worse_allowed,
            tally=self.form,
            clip_norm=clip_norm,
            audit=audit,
            whole_pipelines=neighbours is not None,
            staleness=neighbours.staleness if neighbours is not None else FRESH,
            nonfinite="skip",
            nodes=count,
            checkpoint_url=URL,
            checkpoint_every=checkpoint_every,
            searches=True,
            settle_seconds=settle_seconds,
            most_stages=most_stages,
            copies=copies if isinstance(copies, int) else 2,
            chooses_copies=not isinstance(copies, int),
            bulks_before=copies if isinstance(copies, co.BulksBefore) else co.NOTHING_BEFORE,
            patience=Patience(patience),
        )
        self.start_up = StartUp(self, wrong)
        self.oracle = plain_loop(
            cut=cut,
            pipelines=pipelines,
            microbatches=microbatches,
            steps=steps,
            clip_norm=clip_norm,
            has_buffers=has_buffers,
            ties=self.ties,
            evaluations=self.evaluations,
            worse_allowed=worse_allowed,
            form=self.form,
            neighbours=neighbours,
        )
        self.trained = self.oracle.trained
        self.end = self.evaluations.end(self.trained)
        self.redis = SimulatedRedis(self.clock)
        self.leaders: list[Leader] = []
        self.lead()
        for i in range(count):
            self.boot(f"n{i}")
        if hostile is not None:
            hostile(self)

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
        worker = self._make_worker(name, self._incarnations, self.schedule, self.steps)
        worker.checkpoint_every, worker.at.ties = self.checkpoint_every, self.ties
        worker.at.evaluations, worker.at.audit = self.evaluations, self.audit
        worker.at.neighbours = self.neighbours
        worker.runner.eager, worker.runner.ship_every = self.eager, self.ship_every
        node = SimulatedNode(self, name, self._incarnations, worker)
        self.nodes[name] = node
        self.every.append(node)
        self._back = {pair: channel for pair, channel in self._back.items() if name not in pair}
        node.start()

    def receive(self, to: tuple[str, int], action: Callable[[Node], None]) -> None:
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
        self.check(node)

    def check(self, node: Node) -> None:
        """After everything that happens to a node."""
        try:
            check_node(node, self._expected if not self.audit else self._as_it_is)
        except AssertionError as error:
            raise Broken(f"seed {self.seed}: {error}") from error

    def _as_it_is(self, node: Node, version: int, layer: int) -> int:
        """Where machines compute wrongly a state may differ before the gate: what counts is the end."""
        return node.arithmetic.states[layer]

    def unevenness(self, name: str) -> int:
        """How a node's hardware differs from the others'."""
        return 1 + sum(map(ord, name)) % 97 if self._uneven else 0

    def layer_seconds(self, incarnation: int) -> tuple[float, ...]:
        """What a node has measured: another one, or its next process, something else, or nothing."""
        draw = random.Random(f"{self.seed} {incarnation}")
        if not self._settings.measured or draw.random() < (0.1, 0.7)[self.seed % 2]:
            return ()
        return tuple(draw.choice([1e-6, 0.01, 0.02, 5.0]) * draw.uniform(0.5, 2.0) for _ in range(self.layers))

    def _expected(self, node: Node, version: int, layer: int) -> int:
        """The plain loop's state of a layer; on uneven hardware, and after a flip that no gate could show, what the
        first holder has.
        """
        if not self._uneven and not self.mistakes.unseen:
            return self.oracle.states[version][layer]
        return self._agreed.setdefault((node.worker.era, version, layer), node.arithmetic.states[layer])

    def fetch(self, node: Node, effect: FetchLayers) -> None:
        seed_layers(self, node, effect)

    # ---- the coordinators -------------------------------------------------------------------------------------------

    @property
    def leader(self) -> Leader:
        """The newest one, alive or not."""
        return self.leaders[-1]

    @property
    def deciding(self) -> Leader:
        """The one that is done, else the newest: an older one may go on with all nodes, unaware of that one.

        Of several that are done one that has nodes, or has let them go: another may have lost its last one, cut off.
        """
        if len(self.leaders) == 1:
            return self.leader
        done = [x for x in self.leaders if x.alive and x.state.phase is co.Phase.DONE]
        return next((x for x in done if x.streams or x.state.ending.released), done[0] if done else self.leader)

    @property
    def state(self) -> co.State:
        return self.deciding.state

    def lead(self, above: int = 0) -> None:
        """A coordinator takes the lease, with a term above the given one."""
        if self.redis.document is None and self.leaders and self.storage.is_away():
            # Only checkpoints may know of the run: the process ends, and is started again (``edges.leader``).
            self.clock.after(PAUSE, lambda: self.lead(above))
            return
        # The first one is started with --new-run, and looks for no checkpoints of before (``coordinator_settings``).
        settings = self._settings if self.leaders else replace(self._settings, searches=False)
        self.leaders.append(Leader(self, self.redis, settings, above))

    def reachable_leader(self, node: Node) -> Leader | None:
        """Any living one: a node does not know which is the newest."""
        living = [x for x in self.leaders if x.alive]
        if not living or self.faults.cut_off(node.name, COORDINATOR):
            return None
        return self.random.choice(living) if len(living) > 1 else living[0]

    def note_commit(self, command: cmd.Commit) -> None:
        # Uneven hardware may compute an unapplied step again otherwise. So does a node with a flip that no gate could
        # show, which goes on alone under an older leader. The closing step tells the last commit's loss.
        loss = command.loss if command.step < self.trained else 0.0
        told = (loss, command.measured, command.evaluated)
        first = self.losses.setdefault((command.era, command.step), told)
        if repr(first) != repr(told) and not (self._uneven or self.mistakes.unseen):
            raise Broken(f"seed {self.seed}: step {command.step} committed twice with different losses")
        self.faults.operator.committed(command)

    def join_anew(self, node: Node) -> None:
        """The node was dismissed: it starts again, holding nothing."""
        node.alive = False
        node.attendance.leader = None
        node.streams.cut_all(self.brief())
        self.clock.after(self.random.uniform(0.05, 1.0), lambda: self.boot_if_gone(node))

    def let_go(self, node: Node) -> None:
        """The run is over: the process ends, and nobody starts it again."""
        node.alive = False
        node.attendance.leader = None
        node.streams.cut_all(self.brief())

    def boot_if_gone(self, node: Node) -> None:
        if self.nodes[node.name] is node:
            self.boot(node.name)

    # ---- the run ----------------------------------------------------------------------------------------------------

    def run(self) -> "Cluster":
        """Plays the history to its end. Raises Broken, naming the seed."""
        self.faults.schedule()
        try:
            while not (check_verdict(self, self.start_up.wrong) or self.ending.over()):
                if not self.clock.step() or self.clock.now > STUCK_AFTER:
                    raise Broken(f"stuck in step {self.state.committed}: {self.state.detail}\n{self._stories()}")
            check_log(self)
            if not self.ending.fetched and self.state.phase is not co.Phase.FAILED:
                check_end(self, self.losses, self._expected, exact=not self._uneven and not self.mistakes.unseen)
        except AssertionError as error:
            raise Broken(f"seed {self.seed}: {error}") from error
        return self

    def _stories(self) -> str:
        """What became of the tensors that nodes wait for, as every living node tells it."""
        living = [node.worker for node in self.nodes.values() if node.alive]
        awaited = dict.fromkeys(worker.awaited for worker in living if worker.awaited is not None)
        return "\n".join(story(worker, key) for key in awaited for worker in living)

    def at_its_end(self) -> bool:
        """Whether every step is committed, and applied by all holders that live."""
        if self.state.phase is not co.Phase.DONE or self.state.plan is None:
            return False
        for node in self.state.plan.members.values():
            simulated = self.nodes[node.node]
            held = any(node.node in stage.required() for stage in self.state.plan.stages)
            present = simulated.incarnation == node.incarnation and simulated.alive and not simulated.frozen
            if present and held and simulated.worker.version < self.end:
                return False
        return True
