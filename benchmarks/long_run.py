"""What grows in a long run: 20,000 steps of a small job, a lost node every 200, and a takeover at the end.

``python -m benchmarks.long_run`` starts a local cluster and kills nodes that are not kept, by turns. It prints, for
every thousand steps, the resident memory of the coordinator and of the two nodes that are never killed, and what Redis
holds. At the end the coordinator is killed: how long until the next one has every node back and has read its history?
"""

import argparse
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import psutil
import redis

from culm.local.cluster import LocalCluster
from culm.local.training import train
from culm.pipeline.job import Job, load_job
from culm.protos import coordinator_pb2 as pb
from culm.protos.coordinator_pb2_grpc import CoordinatorStub
from culm.terminal.client import connect

ROOT = Path(__file__).parents[1]
STAGES, NODES = 3, 5
KEPT = ("n0", "n1")  # never killed
WARM = 2_000  # steps after which growth counts
MB = 1e6
NEVER = (1 << 63) - 1  # above the number of any event


@dataclass
class Sample:
    """Of one moment, in bytes; by process."""

    step: int
    resident: dict[str, int]
    redis: int


@dataclass(kw_only=True)
class Growth:
    """Takes samples and takes nodes away, as the run goes on."""

    cluster: LocalCluster
    every: int  # steps from one lost node to the next
    sampled: int = 1_000  # steps from one sample to the next
    samples: list[Sample] = field(default_factory=list)
    lost: int = 0
    _next_kill: int = 0
    _next_sample: int = 0

    def look(self, stub: CoordinatorStub, status: pb.GetStatusResponse, deaths: list[tuple[str, float]]) -> None:
        if status.phase != "running":
            return
        if status.step >= self._next_sample:
            self._next_sample = status.step - status.step % self.sampled + self.sampled
            self.samples.append(self._sample(status.step))
            told = "  ".join(f"{name} {size / MB:7.1f} MB" for name, size in self.samples[-1].resident.items())
            print(f"step {status.step:6d}  {told}  redis {self.samples[-1].redis / MB:6.1f} MB", flush=True)
        if status.step >= self._next_kill:
            self._next_kill = status.step - status.step % self.every + self.every
            victims = [n for n in sorted(self.cluster.pids()) if n.startswith("n") and n not in KEPT]
            if status.step and len(status.nodes) == NODES and victims:
                self.cluster.kill(victims[self.lost % len(victims)])
                self.lost += 1

    def _sample(self, step: int) -> Sample:
        pids = self.cluster.pids()
        resident = {name: psutil.Process(pids[name]).memory_info().rss for name in ("coordinator", *KEPT)}
        return Sample(step, resident, used_memory(self.cluster))

    def per_thousand_steps(self) -> dict[str, float]:
        """Growth in MB per thousand steps after the first WARM, by least squares."""
        late = [sample for sample in self.samples if sample.step >= WARM] or self.samples
        return {name: _slope([(s.step / 1e3, s.resident[name] / MB) for s in late]) for name in late[0].resident}


def used_memory(cluster: LocalCluster) -> int:
    """Bytes that Redis holds."""
    client = redis.Redis.from_url(cluster.redis_url)
    with client:
        return int(client.info("memory")["used_memory"])


def _slope(points: list[tuple[float, float]]) -> float:
    count = len(points)
    mean_x, mean_y = sum(x for x, _ in points) / count, sum(y for _, y in points) / count
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0


def takeover(cluster: LocalCluster) -> tuple[float, float, int]:
    """Kills the coordinator: seconds until the next one listens, until every node is back and the history is read, by
    the samples that the cost knows of, and how many events the next one tells.
    """
    channel, stub = connect(cluster.address, patience=10.0)
    with channel:
        before = stub.GetCost(pb.GetCostRequest(), timeout=10.0).samples
        attached = len(stub.GetStatus(pb.GetStatusRequest(), timeout=10.0).nodes)
    cluster.kill("coordinator")
    while cluster.alive("coordinator"):
        time.sleep(0.01)
    cluster.check()  # starts it again, and returns when it listens
    begun = time.monotonic()
    channel, stub = connect(cluster.address, patience=10.0)
    listens = time.monotonic() - begun
    with channel:
        while True:
            try:
                status = stub.GetStatus(pb.GetStatusRequest(), timeout=10.0)
                # Answered once the history is here; nothing of it is asked for, which would take its own time.
                list(stub.ListEvents(pb.ListEventsRequest(from_sequence=NEVER), timeout=60.0))
                samples = stub.GetCost(pb.GetCostRequest(), timeout=10.0).samples
            except grpc.RpcError:
                continue
            back = sum(node.state in ("active", "spare") for node in status.nodes)
            if back >= attached and samples >= before:
                took = time.monotonic() - begun
                events = list(stub.ListEvents(pb.ListEventsRequest(), timeout=60.0))
                return listens, took, len(events)
            time.sleep(0.01)


def job_of(steps: int) -> Job:
    overrides = [f"job.steps={steps}", "model.args={width=16, hidden=2}", "data.microbatch=4"]
    return load_job(ROOT / "examples" / "digits_mlp.toml", [*overrides, "pipeline.microbatches=2"])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.long_run", description=__doc__)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--every", type=int, default=200, help="steps from one lost node to the next")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        with LocalCluster(job_of(arguments.steps), ROOT / "examples", NODES, folder=folder) as cluster:
            growth = Growth(cluster=cluster, every=arguments.every)
            begun = time.monotonic()
            outcome = train(cluster, lambda status, events, outcome: None, growth.look)
            seconds = time.monotonic() - begun
            print(f"{arguments.steps} steps and {growth.lost} lost nodes in {seconds:.0f} s, {outcome.sha256}")
            for process, megabytes in growth.per_thousand_steps().items():
                print(f"{process}: {megabytes:+.2f} MB per 1,000 steps after the first {WARM}")
            print(f"redis: {used_memory(cluster) / MB:.1f} MB")
            listens, back, events = takeover(cluster)
            print(f"takeover: listens after {listens:.2f} s, all nodes and {events} events back after {back:.2f} s")


if __name__ == "__main__":
    main()
