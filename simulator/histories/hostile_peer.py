"""A node of the run that says what no node says: random wrong messages into the real checks and decisions (rule 18).

It speaks as one of the nodes does, on that node's own streams: to the coordinator in messages of the wire, to the
others in keys and answers. What the checks let through counts as said. The history has to end exact all the same.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

from culm.coordinator import report_bounds as coordinator_bounds
from culm.coordinator.edges.translation import report_of
from culm.coordinator.state import State
from culm.pipeline.keys import Key, Kind
from culm.pipeline.user_code.layer_shapes import LayerShapes
from culm.protos import coordinator_pb2 as pb
from culm.protos import stage_pb2
from culm.simulator.histories.arithmetic import Number
from culm.simulator.histories.world import Node, World
from culm.stage_server.streams import stream_bounds as bounds
from culm.stage_server.streams.stream_bounds import RunShape

# What it says: numbers at the ends of their ranges, layers and stages beyond the model, steps beyond the run's last,
# losses too many, norms below zero or not finite, names that lead out of a folder. A generator of its own draws them.

EXTREMES = (0, 1, 2, 3, 7, 1000, (1 << 20) + 1, (1 << 31) - 1, (1 << 32) - 1)
WIDE = (*EXTREMES, 1 << 40, (1 << 62) + 1, (1 << 64) - 1)
NUMBERS = (0.0, -1.0, 1e300, float("inf"), float("nan"))
LONGEST = 64  # of a range that is made of what was said: a hostile one takes the memory of the machine

Problem = Callable[[State, pb.AttendRequest], str]


class Overrun(AssertionError):
    """Something was made as large as a message said."""


@dataclass(frozen=True)
class Checks:
    """What stands between the wire and the decisions. Switched off each lets everything through."""

    report: Problem = coordinator_bounds.problem
    hello: Callable[[stage_pb2.Hello, int], str] = bounds.hello_problem
    key: Callable[[Key, RunShape], str] = bounds.key_problem


class HostilePeer:
    """Speaks up at random moments, ``times`` in all."""

    def __init__(self, world: World, times: int, checks: Checks) -> None:
        self._world = world
        self._random = random.Random(world.seed)
        self._checks = checks
        self._run = RunShape(
            pipelines=world.pipelines,
            microbatches=world.microbatches,
            steps=world.steps,
            layers=(LayerShapes({}, {}, {}),) * world.layers,
            ties=world.ties,
            evaluations=world.evaluations,
        )
        self.refused = 0
        for _ in range(times):
            world.clock.after(self._random.uniform(0.1, 3.0), self._speak)

    def _speak(self) -> None:
        nodes = [node for node in self._world.nodes.values() if node.alive and not node.frozen]
        if nodes:
            node = self._random.choice(nodes)
            self._random.choice([self._report, self._report, self._hello, self._acknowledge])(node)

    # ---- to the coordinator -----------------------------------------------------------------------------------------

    def _report(self, node: Node) -> None:
        leader, request = node.attendance.leader, self._request()
        if leader is None:
            return
        if self._checks.report(leader.state, request):
            self.refused += 1
            node.attendance.detach()  # its stream is ended, and nothing else
            return
        if _size(request) > LONGEST:
            raise Overrun(f"{node.name} said {request}".replace("\n", " "))
        report = report_of(node.name, node.incarnation, request)
        if report is not None:
            node.tell(report)

    def _request(self) -> pb.AttendRequest:
        draw = self._random
        narrow, wide = draw.choice(EXTREMES), draw.choice(WIDE)
        beyond = self._world.steps + draw.choice(WIDE[:-1])
        first = self._world.layers + narrow % (1 << 31)
        return draw.choice(
            [
                pb.AttendRequest(caught_up=pb.CaughtUp(era=0, first_layer=first, end_layer=(1 << 32) - 1)),
                pb.AttendRequest(available=pb.Available(layer_parameters=[1] * 3, version=beyond, holds_state=True)),
                pb.AttendRequest(
                    available=pb.Available(
                        layer_parameters=[1] * self._world.layers,
                        last_commit=pb.Commit(step=beyond),
                        holds_state=True,
                    )
                ),
                pb.AttendRequest(heartbeat=pb.Heartbeat(version=beyond, slowness=draw.choice(NUMBERS[1:]))),
                pb.AttendRequest(ready=pb.Ready(step=0, stage=first, first_layer=first, squared_norms=[1.0])),
                pb.AttendRequest(ready=pb.Ready(step=0, squared_norms=[-1.0])),
                pb.AttendRequest(ready=pb.Ready(step=0, squared_norms=[1.0], tallies=[1.0] * 7)),
                pb.AttendRequest(resumed=pb.Resumed(generation=wide, stage=first)),
                pb.AttendRequest(draining=pb.Draining(why="", seconds_left=-1.0)),
                pb.AttendRequest(saved=pb.Saved(step=beyond, files=[pb.SavedFile(layer=first, name="../x")])),
                pb.AttendRequest(checkpoint_bad=pb.CheckpointBad(step=beyond)),
                pb.AttendRequest(peer_lost=pb.PeerLost(node="../n1", incarnation=wide)),
            ]
        )

    # ---- to another node --------------------------------------------------------------------------------------------

    def _hello(self, node: Node) -> None:
        """Of a leader that nobody is: a node that believes it leaves its coordinator for good."""
        hello = stage_pb2.Hello(node=node.name, incarnation=node.incarnation, term=self._random.choice(WIDE[6:]))
        if self._checks.hello(hello, node.worker.term):
            self.refused += 1
            return
        for other in list(self._world.nodes.values()):
            if other is not node and other.alive:
                order = (hello.term, 1)
                self._world.receive((other.name, other.incarnation), lambda n, o=order: n.hear_hello(node, o))  # type: ignore[misc]

    def _acknowledge(self, node: Node) -> None:
        """A tensor of a step that never comes, or of a stage that does not exist: it would be remembered for ever."""
        draw = self._random
        key = Key(node.worker.era, self._world.steps + draw.choice(WIDE), 0, Kind.REDUCED, draw.choice(WIDE), 0)
        if self._checks.key(key, self._run):
            self.refused += 1
            return
        peers = [name for name in self._world.nodes if name != node.name]
        node.worker.acknowledged(draw.choice(peers or [node.name]), 1, [key])
        node.worker.deliver(draw.choice(peers or [node.name]), 1, (0, 0), key, Number(7))


def _size(request: pb.AttendRequest) -> int:
    """How many layers or steps something would be made for."""
    caught_up, commit = request.caught_up, request.available.last_commit
    return max(caught_up.end_layer - caught_up.first_layer, commit.step)


def speaking(times: int, checks: Checks | None = None) -> Callable[[World], HostilePeer]:
    """Puts a hostile peer into a world: for ``Cluster(hostile=...)``."""
    return lambda world: HostilePeer(world, times, checks or Checks())
