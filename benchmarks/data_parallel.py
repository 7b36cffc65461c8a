"""One stage on every node: a calm step beside torch's DistributedDataParallel, and the bytes that nodes send.

Called by ``python -m benchmarks.grid parallel`` and ``... bytes``.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from benchmarks import large_layers
from benchmarks.gradient_bytes import of_a_ring, predicted
from benchmarks.measure import Measure
from benchmarks.pipelining import WARM
from benchmarks.processes import cpu_seconds
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
GRADIENT_GB = of_a_ring(REPLICAS, large_layers.LAYERS) * REPLICAS * LAYER_BYTES / 1e9  # that all send in a step
BYTES_STEPS = 8
BEAT_SECONDS = 1.0  # longer than between two heartbeats
PATIENCE = 20.0  # seconds in which a load that stops all nodes for a while loses none of them


class Calm(NamedTuple):
    """A step of a calm run: its seconds, and what it takes of the CPU on all nodes, and in the coordinator."""

    seconds: float
    cpu: float
    coordinator: float = 0.0


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
    looks: list[tuple[float, float, float]] = []  # time, CPU seconds of all nodes, of the coordinator
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
                nodes = sum(cpu_seconds(pids[name]) for name in cluster.names)
                looks.append((time.time(), nodes, cpu_seconds(pids["coordinator"])))

        with LocalCluster(
            job, ROOT, REPLICAS, folder=folder / "run", patience=PATIENCE, environments=addresses(REPLICAS, apart)
        ) as cluster:
            train(cluster, note)
    return calm_step(commits[WARM:], looks)


def calm_step(commits: list[float], looks: list[tuple[float, float, float]]) -> Calm:
    """``commits``: their times; ``looks``: time, CPU seconds so far of the nodes, and of the coordinator.

    Looks fall anywhere in a step. So what the CPU takes of a second is multiplied by the mean seconds of a step.
    """
    (began, *at_first), (ended, *at_last) = looks[0], looks[-1]
    inside = [at for at in commits if began <= at <= ended]
    mean = (inside[-1] - inside[0]) / (len(inside) - 1)
    nodes, coordinator = ((b - a) / (ended - began) * mean for a, b in zip(at_first, at_last, strict=True))
    return Calm(statistics.median(b - a for a, b in pairwise(commits)), nodes, coordinator)


def torch_step(steps: int, alone: bool = False) -> Calm:
    """``alone``: nothing is reduced."""
    words = [sys.executable, "-m", "benchmarks.torch_parallel", str(REPLICAS), str(MICROBATCHES)]
    words += [str(SECONDS / MICROBATCHES), str(steps), str(WARM), *(["alone"] if alone else [])]
    environment = {**os.environ, **ALLOCATOR, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, cwd=ROOT, env=environment, check=True, capture_output=True, text=True)
    told = json.loads(done.stdout.strip().split("\n")[-1])
    return Calm(told["seconds"], told["cpu"])


def parallel(rounds: int, steps: int) -> None:
    """Culm as on one machine and as on several, torch, and torch without any exchange, in turn."""
    ways: dict[str, Callable[[], Calm]] = {
        "culm": lambda: culm_step(steps, False),
        "apart": lambda: culm_step(steps, True),
        "torch": lambda: torch_step(steps),
        "alone": lambda: torch_step(steps, alone=True),
    }
    found: dict[str, list[Calm]] = {way: [] for way in ways}
    for number in range(rounds):
        for way, step in ways.items():
            found[way].append(step())
        told = (
            f"{way} {x[-1].seconds * 1e3:.1f} ms, {x[-1].cpu / GRADIENT_GB:.2f} CPU s/GB" for way, x in found.items()
        )
        print(f"D=R={REPLICAS} P=1 M={MICROBATCHES} round {number}: {'; '.join(told)}", flush=True)
    for way, where in (("culm", "on one machine"), ("apart", "over the stream alone")):
        both = list(zip(found[way], found["torch"], strict=True))
        tell(
            Measure(
                name=f"data parallel step {where}, against torch's",
                unit="ratio",
                floor=1.3,
                aim=1.05,
                rounds=[culm.seconds / torch.seconds for culm, torch in both],
            )
        )
        tell(
            Measure(
                name=f"CPU per GB of gradients {where}, against gloo's",
                unit="ratio",
                floor=2.5,
                aim=1.5,
                rounds=[culm.cpu / torch.cpu for culm, torch in both],
            )
        )
        exchange = [
            (culm.cpu - alone.cpu) / (torch.cpu - alone.cpu)
            for culm, torch, alone in zip(*(found[x] for x in (way, "torch", "alone")), strict=True)
        ]
        middle = statistics.median(exchange)
        print(f"    less what torch takes without any exchange: {middle:.2f} of gloo's CPU", flush=True)
        coordinator = statistics.median(culm.coordinator / culm.cpu for culm, _ in both)
        print(f"    the coordinator's CPU is not among it: {coordinator:.1%} of the nodes'", flush=True)


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


def bytes_sent() -> None:
    ring, layers = of_a_ring(REPLICAS, large_layers.LAYERS), large_layers.LAYERS
    sent = sent_in_a_step(REPLICAS, REPLICAS) / LAYER_BYTES
    name = f"bytes sent in a step, D = R = {REPLICAS}, of a ring all-reduce's"
    tell(Measure(name=name, unit="ratio", floor=1.02, aim=1.0, rounds=[sent / ring]))
    pipelines, replicas = 8, 3
    sent, foretold = sent_in_a_step(pipelines, replicas) / LAYER_BYTES, predicted(pipelines, replicas, layers)
    off = abs(sent / foretold - 1)
    name = f"bytes sent in a step, D = {pipelines}, R = {replicas}, off what the tree's blocks predict"
    tell(Measure(name=name, unit="ratio", floor=0.02, aim=0.0, rounds=[off]))
    ring = of_a_ring(replicas, layers)
    print(f"    {sent:.3f} layers' bytes; predicted {foretold:.3f}; of a ring {ring:.3f}", flush=True)


def tell(measure: Measure) -> None:
    spread = f"{min(measure.rounds):.3f} to {max(measure.rounds):.3f}"
    holds = "holds" if measure.holds else "does not hold"
    print(f"{measure.name}: {measure.value:.3f} ({spread}); floor {measure.floor:g} {holds}", flush=True)
