"""Throughput after a lost replica over throughput before it: Culm beside torchft's data parallelism, in one run.

Four replicas train large paced layers (``benchmarks.large_layers``), twelve microbatches each a step. One is lost by
kill -9 and does not come back.

- torchft goes on with the three others and a quarter fewer samples a step, so its throughput is counted in samples: at
  best 3/4. The weights are no longer those of the whole batch. A group is one rank under torchrun, whose manager
  reduces each gradient after the last microbatch, and a lighthouse as its README starts it. torchft's
  DistributedDataParallel cannot be asked: with gloo every survivor ends in an AssertionError of its hook
  (``_comm_hook``, 0.2.0) once the lost one has broken an all-reduce.
- Culm goes on with all samples, whose pipelines the others take over. With as many pipelines as replicas one node has
  two then: at best 1/2. With three on each replica the others have four: at best 3/4.

Replicas share this machine's cores, so those that are left are a little faster than on machines of their own, and both
ways may pass what is best.

``python -m benchmarks.lost_replica`` needs ``pip install torchft`` (measured with 0.2.0).
"""

import argparse
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from benchmarks import large_layers
from benchmarks.awake import awake_cores
from benchmarks.data_parallel import PATIENCE, ROOT
from benchmarks.paced import dataset
from benchmarks.pipelining import WARM
from benchmarks.transport import ALLOCATOR
from culm.local.cluster import LocalCluster
from culm.local.kills import Kill
from culm.local.training import train
from culm.pipeline.job import load_job
from culm.protos import coordinator_pb2 as pb

REPLICAS, MICROBATCHES = 4, 12  # of a replica
SECONDS = 0.6  # of paced compute in a replica's step: long beside what the replicas take of the cores they share
KILLED, AFTER = 16, 16  # the step in which a replica is lost, and how many follow it
SETTLE = 2.0  # seconds until Culm's shape follows
LIMIT = 200.0  # seconds for a run of torchft
# Of the lighthouse, as torchft's README starts it. With the 100 ms that are the default in Python a replica that is
# late by more than that is left out of the step, and comes back with the next one by a transfer of all weights.
JOIN_MS, TICK_MS = 10_000, 100
# As in torchft's example of data parallelism. Only the neighbours of the lost one hear of it at once: the others wait
# for so long, and with 60 s the whole group gave up.
GLOO_SECONDS = 5


class Lost(NamedTuple):
    """Of a run that lost a replica."""

    before: float  # samples a second
    after: float
    seconds: float  # from the kill to the next commit, less a calm step


def lost_of(killed: float, commits: list[tuple[float, int]]) -> Lost:
    """``commits``: the time of each, and the samples in its step."""
    before = [each for each in commits if each[0] <= killed][WARM:]
    after = [each for each in commits if each[0] > killed]

    def throughput(some: list[tuple[float, int]]) -> float:
        return statistics.median(samples / (b - a) for (a, _), (b, samples) in pairwise(some))

    calm = statistics.median(b - a for (a, _), (b, _) in pairwise(before))
    return Lost(throughput(before), throughput(after), after[0][0] - killed - calm)


def culm(pipelines: int, victim: int) -> Lost:
    commits: list[tuple[float, int]] = []
    microbatches = REPLICAS * MICROBATCHES // pipelines
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = large_layers.job_file(
            folder,
            steps=KILLED + 1 + AFTER,
            pipelines=pipelines,
            microbatches=microbatches,
            seconds=SECONDS / MICROBATCHES,
        )
        job = load_job(path)

        def note(status: pb.GetStatusResponse, events: list[pb.ListEventsResponse], outcome: object) -> None:
            commits.extend((event.time, job.samples_per_step) for event in events if event.kind == "commit")

        with LocalCluster(
            job,
            ROOT,
            REPLICAS,
            [Kill(f"n{victim}", KILLED, "backward")],
            respawn=False,
            folder=folder / "run",
            patience=PATIENCE,
            environments={"coordinator": {"CULM_SETTLE_SECONDS": str(SETTLE)}},
        ) as cluster:
            train(cluster, note)
            ((_, killed),) = cluster.deaths
    return lost_of(killed, commits)


def die(folder: Path) -> None:
    (folder / "killed").write_text(repr(time.time()))
    os.kill(os.getpid(), signal.SIGKILL)


def work(folder: Path, group: int, victim: int, moment: float) -> None:
    """The one rank of a group; the victim dies ``moment`` s into its step KILLED."""
    from torchft import Manager, Optimizer, ProcessGroupGloo

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    module = nn.Sequential(*(build() for build in large_layers.layers(SECONDS / MICROBATCHES)))
    sgd = torch.optim.SGD(module.parameters(), lr=0.01)

    def state() -> dict[str, object]:
        return {"model": module.state_dict(), "optimizer": sgd.state_dict()}

    def load(state: dict[str, dict[str, object]]) -> None:
        module.load_state_dict(state["model"])
        sgd.load_state_dict(state["optimizer"])

    pg = ProcessGroupGloo(timeout=timedelta(seconds=GLOO_SECONDS))
    manager = Manager(pg, load, state, min_replica_size=REPLICAS - 1, replica_id=f"group{group}")
    optimizer = Optimizer(manager, sgd)
    data = dataset()
    while (step := manager.current_step()) < KILLED + 1 + AFTER:
        if (group, step) == (victim, KILLED):
            threading.Timer(moment, die, (folder,)).start()
        optimizer.zero_grad()
        for m in range(MICROBATCHES):
            x, target = (part[None] for part in data[((step * REPLICAS + group) * MICROBATCHES + m) % len(data)])
            torch.autograd.backward(nn.functional.mse_loss(module(x), target) / MICROBATCHES)
        for reduction in [manager.allreduce(p.grad) for p in module.parameters()]:
            reduction.wait()
        optimizer.step()
        if group == 0 and manager.current_step() > step:
            with (folder / "steps").open("a") as log:
                log.write(f"{time.time()!r} {manager.num_participants() * MICROBATCHES}\n")
    manager.shutdown()
    dist.destroy_process_group()


def torchft(victim: int, share: float) -> Lost:
    """``victim``: not the first group, which writes down the steps. ``share``: how much of a step's time has passed at
    the kill. Raises RuntimeError with what the first group said if it failed.
    """
    from torchft.coordination import LighthouseServer

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lighthouse = LighthouseServer(
            bind="[::]:0", min_replicas=REPLICAS - 1, join_timeout_ms=JOIN_MS, quorum_tick_ms=TICK_MS
        )
        environment = {**os.environ, **ALLOCATOR, "OMP_NUM_THREADS": "1", "TORCHFT_LIGHTHOUSE": lighthouse.address()}
        words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nnodes", "1", "--max-restarts", "0"]
        words += ["--nproc-per-node", "1", "-m", "benchmarks.lost_replica", "--folder", str(folder)]
        words += ["--victim", str(victim), "--moment", str(share * SECONDS), "--group"]
        groups = []
        for group in range(REPLICAS):
            with (folder / f"group{group}.log").open("w") as log:
                one = subprocess.Popen([*words, str(group)], cwd=ROOT, env=environment, stdout=log, stderr=log)
            groups.append(one)
        try:
            failed = groups[0].wait(LIMIT)
        finally:
            for one in groups:
                one.terminate()
                one.wait()
            lighthouse.shutdown()
        if failed:
            raise RuntimeError((folder / "group0.log").read_text())
        killed = float((folder / "killed").read_text())
        commits = [(float(at), int(samples)) for at, samples in map(str.split, (folder / "steps").open())]
    return lost_of(killed, commits)


@awake_cores()
def compare(rounds: int, seed: int) -> None:
    draw = random.Random(seed)
    found: dict[str, list[Lost]] = {}
    for number in range(rounds):
        victim, share = draw.randrange(1, REPLICAS), draw.random()
        for way, lost in (
            ("torchft", torchft(victim, share)),
            (f"Culm, D = {REPLICAS}", culm(REPLICAS, victim)),
            (f"Culm, D = {3 * REPLICAS}", culm(3 * REPLICAS, victim)),
        ):
            found.setdefault(way, []).append(lost)
            print(
                f"round {number}, {way}: {lost.before:.1f} samples/s before, {lost.after:.1f} after it, "
                f"{lost.after / lost.before:.3f}; {lost.seconds:.2f} s lost at once",
                flush=True,
            )
    for way, each in found.items():
        shares = [lost.after / lost.before for lost in each]
        print(
            f"{way}: throughput after a lost replica {statistics.median(shares):.3f} of that before "
            f"({min(shares):.3f} to {max(shares):.3f}); {statistics.median(lost.seconds for lost in each):.2f} s lost"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    rank = parser.add_argument_group("what a rank is given")
    rank.add_argument("--folder", type=Path)
    rank.add_argument("--group", type=int)
    rank.add_argument("--victim", type=int)
    rank.add_argument("--moment", type=float)
    arguments = parser.parse_args()
    if arguments.folder is not None:
        work(arguments.folder, arguments.group, arguments.victim, arguments.moment)
    else:
        compare(arguments.rounds, arguments.seed)


if __name__ == "__main__":
    main()
