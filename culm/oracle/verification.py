"""The parts of ``culm verify``: kills at places that a seed draws, and the comparison of runs bit by bit."""

import random
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import grpc

from culm.local.kills import Kill
from culm.local.training import train
from culm.oracle.plain_loop import PlainResult
from culm.pipeline.checkpoints.digest import hash_layer
from culm.pipeline.instruction import Duty, Instruction
from culm.pipeline.job import Job
from culm.pipeline.places import KINDS
from culm.protos import coordinator_pb2 as pb
from culm.protos.coordinator_pb2_grpc import CoordinatorStub
from culm.terminal.outcome import LayerState, Outcome


class Killer:
    """Kills the owner of a random stage at a random instruction, ``kills`` times, spread over the run.

    It strikes only while every stage has a hot standby and a node is left to repair with: one node at a time.
    """

    def __init__(self, job: Job, kills: int, seed: int, steps: int) -> None:
        """``steps``: that the run trains, which are fewer than the job asks for where it ends early."""
        self._steps = steps
        self.done: list[Kill] = []
        self._draw = random.Random(seed)
        self._job = job
        self._wanted = kills
        self._armed: Kill | None = None
        self._ordered: dict[str, Kill] = {}  # the last order to each node, until the node dies
        self._deaths_seen = 0
        self._ahead = 2  # steps: the order has to reach the node before the node reaches the instruction

    def watch(self, stub: CoordinatorStub, status: pb.GetStatusResponse, deaths: list[tuple[str, float]]) -> None:
        """Called again and again while the run goes on."""
        # A death may be seen some steps after the order that it obeyed was given up here, so it is told by its node.
        for name, _ in deaths[self._deaths_seen :]:
            if (obeyed := self._ordered.pop(name, None)) is not None:
                self.done.append(obeyed)
                if self._armed == obeyed:
                    self._armed = None
        self._deaths_seen = len(deaths)
        if self._armed is not None and status.step > self._armed.step + 1:
            self._armed = None  # the step was over before the order came: try another place, further ahead
            self._ahead *= 2
        due = (len(self.done) + 0.5) * self._steps / max(1, self._wanted)
        safe = status.phase == "running" and not any(status.exposure.values()) and len(status.nodes) > 2
        if self._armed is None and len(self.done) < self._wanted and status.step >= due - 2 and safe:
            self._arm(stub, status)

    def _arm(self, stub: CoordinatorStub, status: pb.GetStatusResponse) -> None:
        stages = len(status.plan.stages)
        stage = self._draw.randrange(stages)
        duties = [Duty(pipeline, stage) for pipeline in range(self._job.pipeline.pipelines)]
        step = min(status.step + self._ahead, self._steps - 1)
        evaluated = range(self._job.evaluations.in_step(step, self._job.job.steps))
        places = [each for duty in duties for each in self._job.schedule.order(duty, stages)]
        places += [Instruction(duty, "E", m) for duty in duties for m in evaluated]
        at = self._draw.choice(places)
        node = status.plan.stages[stage].owners[at.duty.pipeline]
        peers = len(set(status.plan.stages[stage].owners)) > 1  # without them nobody adds up what others send
        kind = self._draw.choice([*(kind for kind in KINDS if kind != "sum" or peers), *[str(at)] * 3])
        self._armed = Kill(node, step, kind)
        try:
            stub.Kill(pb.KillRequest(node=node, at=self._armed.at), timeout=5.0)
            self._ordered[node] = self._armed
        except grpc.RpcError:
            self._armed = None  # the node is just being lost: try another one


@dataclass(frozen=True)
class Difference:
    """The first place where a run left the plain loop.

    Layer -1 for the loss, -2 for an evaluation, -3 for a metric, -4 where it trains on.
    """

    run: str
    step: int
    layer: int

    def __str__(self) -> str:
        places = {-1: "loss", -2: "evaluation", -3: "metrics", -4: "it trains on"}
        what = places.get(self.layer, f"weights of layer {self.layer}")
        return f"the {self.run} run differs: {what} after step {self.step}"


def compare(name: str, plain: PlainResult, run: Outcome) -> Difference | None:
    """The first loss that differs, else the first layer of the final weights."""
    for step, loss in enumerate(plain.losses):
        if step >= len(run.losses) or run.losses[step].hex() != loss.hex():
            return Difference(name, step, -1)
    for step, found in enumerate(plain.metrics):
        if found and _hexes(run.metrics.get(step, {})) != _hexes(found):
            return Difference(name, step, -3)
    for step, found in plain.evaluations.items():
        if _hexes(run.evaluations.get(step, {})) != _hexes(found):
            return Difference(name, step, -2)
    if len(run.losses) > len(plain.losses):
        return Difference(name, len(plain.losses) - 1, -4)
    return _compare_layers(name, len(plain.losses) - 1, plain.layers, run.layers)


def _hexes(named: Mapping[str, float]) -> dict[str, str]:
    return {name: number.hex() for name, number in named.items()}


def _compare_layers(name: str, step: int, plain: list[LayerState], run: list[LayerState]) -> Difference | None:
    for (index, expected), (_, got) in zip(plain, run, strict=True):
        if hash_layer(index, expected) != hash_layer(index, got):
            return Difference(name, step, index)
    return None


def train_on_cluster(
    job: Job,
    folder: Path | None,
    nodes: int,
    kills: list[Kill],
    title: str,
    plain: bool,
    killer: Killer | None = None,
    shows: bool = True,
) -> Outcome:
    """One run on a local cluster. It writes no checkpoints.

    ``folder``: the job's, as LocalCluster takes it; ``shows``: its progress, on stderr.

    Those at the job's own URL are of runs that count. A trial would write over them, and delete the older ones. Without
    them a run that loses all copies of a stage begins again at step 0, to the same bits.
    """
    from culm.local.cluster import USUAL_ADDRESS, LocalCluster
    from culm.terminal.progress import display

    job = job.model_copy(update={"checkpoint": None, "track": None})
    strike = killer.watch if killer is not None else None
    if not shows:
        with LocalCluster(job, folder, nodes, kills) as cluster:
            return train(cluster, lambda status, events, outcome: None, strike)
    cluster = LocalCluster(job, folder, nodes, kills, USUAL_ADDRESS)
    print(f"{title}: logs in {cluster.folder}", file=sys.stderr)
    with cluster, display(title, plain) as shown:
        return train(cluster, shown.watch, strike)
