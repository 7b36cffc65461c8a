"""The published trainings as runs of the simulation: chunks of a graph, on each kind of cluster."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from culm.pipeline.tuning import Limits
from culm.simulator.graphs.epoch_work import ChunkSize, Task, copies, tasks
from culm.simulator.graphs.epochs import Cluster, Epochs, Run
from culm.simulator.graphs.hardware import Server, TensorWorker, cpu_server, function, gpu_server
from culm.simulator.graphs.published import GraphJob

BEGIN = 100  # workers of a server before they are tuned; as published, from memory
TUNED = 32  # epochs in which the number of workers is tuned, before the figures are taken


@dataclass(frozen=True, kw_only=True)
class Assumptions:
    """What no paper says. Each is varied in docs/graphs_value.md."""

    simulated: int = 2  # servers, which stand for all
    chunks: int = 128  # of each server
    uneven: float = 0.2  # standard deviation of the logarithm of a chunk's size
    apart: float = 0.2  # share of edges whose ends lie on two servers
    features_gathered: bool = True  # in every epoch, although their sums never change
    commit_seconds: float = 0.010
    adds: float = 1.0  # of graph work, times the rates of hardware.py
    operations: float = 1.0  # of tensor work on servers' CPUs, likewise
    network: float = 1.0  # of servers, likewise
    worker: TensorWorker = field(default_factory=function)


def chunk_tasks(job: GraphJob, given: Assumptions, seed: int = 0) -> list[list[list[Task]]]:
    """By simulated server, each chunk's tasks of an epoch."""
    draw = random.Random(seed)
    count = min(given.simulated, job.servers)
    ghosts = copies(job.servers - 1, job.degree, given.apart)
    found = []
    for _ in range(count):
        shares = [draw.lognormvariate(0.0, given.uneven) for _ in range(given.chunks)]
        of_server = []
        for share in shares:
            part = share / sum(shares) / job.servers
            vertices = job.vertices * part
            size = ChunkSize(vertices=vertices, edges=job.edges * part, ghosts=vertices * ghosts)
            of_server.append(tasks(size, job.sizes, job.attention, given.features_gathered))
        found.append(of_server)
    return found


def servers(job: GraphJob, given: Assumptions, gpu: bool = False) -> Cluster:
    """Servers alone, as many as published, of CPUs or of GPUs."""
    kind: Server = gpu_server() if gpu else cpu_server(job.instance_type)
    if not gpu:
        kind = replace(kind, adds=kind.adds * given.adds, operations=kind.operations * given.operations)
    return Cluster(server=replace(kind, network=kind.network * given.network), servers=job.servers)


def play(job: GraphJob, cluster: Cluster, staleness: int, given: Assumptions, seed: int = 0) -> Epochs:
    tuned = cluster.limits is not None
    return Run(
        cluster=cluster,
        chunks=chunk_tasks(job, given, seed),
        staleness=staleness,
        commit_seconds=given.commit_seconds,
        warm=TUNED if tuned else 2,
        measured=3,
    ).run()


def cpu(job: GraphJob, staleness: int, given: Assumptions) -> Epochs:
    return play(job, servers(job, given), staleness, given)


def gpu(job: GraphJob, staleness: int, given: Assumptions) -> Epochs:
    return play(job, servers(job, given, gpu=True), staleness, given)


def workers(job: GraphJob, staleness: int, given: Assumptions, each: int = 0) -> Epochs:
    """``each``: workers of a server; 0: their number is tuned."""
    alone = servers(job, given)
    cluster = replace(alone, worker=given.worker, workers=each or BEGIN)
    if not each:
        limits = Limits(
            least=job.servers,
            most=given.chunks * job.servers,
            latency=given.worker.latency,
            worker_dollars=given.worker.dollars,
            paid_idle=False,
            server_dollars=alone.server.dollars * job.servers,
        )
        cluster = replace(cluster, limits=limits)
    return play(job, cluster, staleness, given)


def by_count(job: GraphJob, staleness: int, given: Assumptions, counts: Sequence[int]) -> dict[int, Epochs]:
    """With fixed numbers of workers a server, for comparison with the tuned one."""
    return {each: workers(job, staleness, given, each=each) for each in counts}
