"""One stage on every node: a calm step beside torch's DistributedDataParallel, and the bytes that nodes send.

``python -m benchmarks.grid parallel`` and ``... bytes`` call this.
"""

import json
import os
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from benchmarks import large_layers
from benchmarks.gradient_bytes import of_a_ring, predicted
from benchmarks.measure import Measure
from benchmarks.pipelining import WARM
from benchmarks.processes import cpu_seconds
from benchmarks.programs import told_by
from benchmarks.transport import ALLOCATOR
from culm.local.cluster import LocalCluster
from culm.local.training import train
from culm.pipeline.job import load_job
from culm.protos import coordinator_pb2 as pb
from culm.terminal.client import connect

ROOT = Path(__file__).parents[1]
REPLICAS, MICROBATCHES = 4, 4  # and as many pipelines as replicas
SECONDS = 0.2  # of paced compute in a step, in all microbatches
LAYER_BYTES = large_layers.MODEL_BYTES / large_layers.LAYERS
STEPS, BYTES_STEPS = 24, 8
BEAT_SECONDS = 1.0  # longer than between two heartbeats
PATIENCE = 20.0  # seconds in which a load that stops all nodes for a while loses none of them


class Calm(NamedTuple):
    """A step of a calm run: its seconds, and those that it takes of the CPU on all nodes and in the coordinator."""

    seconds: float
    cpu: float


def addresses(nodes: int, apart: bool) -> dict[str, dict[str, str]]:
    """What nodes are told where they are to be as on machines of their own: they share no memory then."""
    return {f"n{i}": {"CULM_LISTEN": f"127.0.0.{i + 2}:0"} for i in range(nodes if apart else 0)}


def refuse_lost(events: list[pb.ListEventsResponse]) -> None:
    """Raises RuntimeError if a node was lost: such a run says nothing about calm ones."""
    for event in events:
        if event.kind == "lost":
            raise RuntimeError(f"the run was not calm, repeat it: {event.text}")


def culm_step(steps: int, apart: bool) -> Calm:
    """``apart``: the nodes are as on machines of their own."""
    commits: list[float] = []
    looks: list[tuple[float, float]] = []  # time, and CPU seconds of all processes so far
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        a_microbatch = SECONDS / MICROBATCHES
        path = large_layers.job_file(
            folder, steps=steps, pipelines=REPLICAS, microbatches=MICROBATCHES, seconds=a_microbatch
        )
        job = load_job(path)

        def note(status: pb.GetStatusResponse, events: list[pb.ListEventsResponse], outcome: object) -> None:
            refuse_lost(events)
            commits.extend(event.time for event in events if event.kind == "commit")
            if status.phase == "running" and status.step > WARM:
                pids = cluster.pids()
                looks.append((time.time(), sum(cpu_seconds(pids[name]) for name in (*cluster.names, "coordinator"))))

        with LocalCluster(
            job, ROOT, REPLICAS, folder=folder / "run", patience=PATIENCE, environments=addresses(REPLICAS, apart)
        ) as cluster:
            train(cluster, note)
    return calm_step(commits[WARM:], looks)


def calm_step(commits: list[float], looks: list[tuple[float, float]]) -> Calm:
    """``commits``: their times; ``looks``: time, and CPU seconds so far.

    Looks fall anywhere in a step. So what the CPU takes of a second is multiplied by the mean seconds of a step.
    """
    (began, at_first), (ended, at_last) = looks[0], looks[-1]
    inside = [at for at in commits if began <= at <= ended]
    mean = (inside[-1] - inside[0]) / (len(inside) - 1)
    cpu = (at_last - at_first) / (ended - began) * mean
    return Calm(statistics.median(b - a for a, b in pairwise(commits)), cpu)


def torch_step(steps: int, alone: bool = False) -> Calm:
    """``alone``: nothing is reduced."""
    words = [sys.executable, "-m", "benchmarks.torch_parallel", str(REPLICAS), str(MICROBATCHES)]
    words += [str(SECONDS / MICROBATCHES), str(steps), str(WARM), *(["alone"] if alone else [])]
    environment = {**os.environ, **ALLOCATOR, "OMP_NUM_THREADS": "1"}
    told = json.loads(told_by(words, environment))
    return Calm(told["seconds"], told["cpu"])


def in_turn(_: int) -> list[Measure]:
    """Culm as on one machine and as on several, torch, and torch without any exchange."""
    culm = {where: culm_step(STEPS, apart) for where, apart in (("one machine", False), ("the stream alone", True))}
    torch, alone = torch_step(STEPS), torch_step(STEPS, alone=True)
    found = []
    for where, step in culm.items():
        name = f"data parallel over {where}, against torch's"
        found += [
            Measure(name=name, unit="ratio", floor=1.3, aim=1.05, rounds=[step.seconds / torch.seconds]),
            Measure(name=f"{name}: CPU", unit="ratio", floor=2.5, aim=1.5, rounds=[step.cpu / torch.cpu]),
            Measure(
                name=f"{name}: CPU of the exchange",
                unit="ratio",
                floor=2.5,
                aim=1.5,
                rounds=[(step.cpu - alone.cpu) / (torch.cpu - alone.cpu)],
            ),
        ]
    return found


def sent_in_a_step(pipelines: int, replicas: int) -> float:
    """Bytes by a node on average. All that these nodes send are PARTIAL and REDUCED: the model is one stage.

    ``sent_bytes`` counts the tensors of Deliver streams, without headers. Of their kinds, ACTIVATION and GRADIENT pass
    between stages, of which there is one, and ACCUMULATED goes to standbys, of which there is none. State for seeding
    takes other streams. So nothing is subtracted.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = large_layers.job_file(folder, steps=BYTES_STEPS, pipelines=pipelines, microbatches=1)
        job = load_job(path)

        def note(status: pb.GetStatusResponse, events: list[pb.ListEventsResponse], outcome: object) -> None:
            refuse_lost(events)

        with LocalCluster(job, ROOT, replicas, folder=folder / "run", patience=PATIENCE) as cluster:
            train(cluster, note)
            sent = all_sent(cluster)
    return sum(sent.values()) / replicas / BYTES_STEPS


def all_sent(cluster: LocalCluster) -> dict[str, int]:
    """Of a run that is done: once each node has told of its last step, and two looks in a row say the same."""
    channel, stub = connect(cluster.address)
    before: dict[str, int] = {}
    with channel:
        while True:
            status = stub.GetStatus(pb.GetStatusRequest(), timeout=10.0)
            sent = {node.id: sum(node.sent_bytes.values()) for node in status.nodes}
            if sent == before and all(node.version == status.steps for node in status.nodes):
                return sent
            before = sent
            time.sleep(2 * BEAT_SECONDS)


def bytes_sent(_: int) -> list[Measure]:
    """Beside a ring all-reduce, and beside what the tree over the pipelines predicts where these do not divide."""
    ring, layers = of_a_ring(REPLICAS, large_layers.LAYERS), large_layers.LAYERS
    sent = sent_in_a_step(REPLICAS, REPLICAS) / LAYER_BYTES
    pipelines, replicas = 8, 3
    uneven, foretold = sent_in_a_step(pipelines, replicas) / LAYER_BYTES, predicted(pipelines, replicas, layers)
    off = f"bytes sent in a step, D = {pipelines}, R = {replicas}, off what the tree's blocks predict"
    of_ring = f"bytes sent in a step, D = R = {REPLICAS}, of a ring all-reduce's"
    return [
        Measure(name=of_ring, unit="ratio", floor=1.02, aim=1.0, rounds=[sent / ring]),
        Measure(name=off, unit="ratio", floor=0.02, aim=0.0, rounds=[abs(uneven / foretold - 1)]),
    ]
