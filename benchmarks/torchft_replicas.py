"""What a kill -9 costs torchft: one of two replica groups is lost, the other throws its step away and goes on.

A peer that needs a second copy of the whole pipeline: torchft replicates groups of ranks and has no recovery within
one. Each group is a torchrun of its own with one rank a stage of the paced layers, torch.distributed.pipelining's 1F1B
on gloo within, torchft's managed all-reduce of the gradients between the two, and a lighthouse with its defaults. The
dead group does not come back: that the other then trains on half the samples a step is not counted.
``python -m benchmarks.torchft_replicas`` prints what a kill costs, round by round; it needs ``pip install torchft``
(measured with 0.2.0).
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

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from benchmarks.paced import BACKWARD, FORWARD, Paced, dataset
from benchmarks.torch_pipelining import batch, feed

GROUPS, STAGES, MICROBATCHES = 2, 4, 8
WARM = 4  # steps that do not count
KILLED, AFTER = 20, 3  # the step with the kill, and how many follow it; both groups have long started by then
LIMIT = 200.0  # seconds for a run
ROOT = Path(__file__).parents[1]


def die(folder: Path) -> None:
    (folder / "killed").write_text(repr(time.time()))
    os.kill(os.getpid(), signal.SIGKILL)


def work(folder: Path, group: int, victim: int, moment: float) -> None:
    """One rank of a group; the victim, of the second group, dies ``moment`` s into its step KILLED."""
    from torchft import Manager, Optimizer, ProcessGroupGloo

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, stages = dist.get_rank(), dist.get_world_size()
    module = Paced(FORWARD, BACKWARD)
    sgd = torch.optim.SGD(module.parameters(), lr=0.01)

    def state() -> dict[str, object]:
        return {"model": module.state_dict(), "optimizer": sgd.state_dict()}

    def load(state: dict[str, dict[str, object]]) -> None:
        module.load_state_dict(state["model"])
        sgd.load_state_dict(state["optimizer"])

    pg = ProcessGroupGloo(timeout=timedelta(seconds=60))
    manager = Manager(pg, load, state, min_replica_size=1, replica_id=f"group{group}")
    optimizer = Optimizer(manager, sgd)
    stage = PipelineStage(module, rank, stages, torch.device("cpu"))
    schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=torch.nn.functional.mse_loss)
    data = dataset()
    while (step := manager.current_step()) < KILLED + 1 + AFTER:
        if (group, rank, step) == (1, victim, KILLED):
            threading.Timer(moment, die, (folder,)).start()
        first = (step * GROUPS + group) * MICROBATCHES
        x, target = batch(data, first, MICROBATCHES)
        optimizer.zero_grad()
        feed(schedule, rank, stages, x, target)
        for reduction in [manager.allreduce(p.grad) for p in module.parameters()]:
            reduction.wait()
        optimizer.step()
        if (group, rank) == (0, 0) and manager.current_step() > step:
            with (folder / "steps").open("a") as log:
                log.write(f"{step} {time.time()!r}\n")
    manager.shutdown()
    dist.destroy_process_group()


def lost_seconds(victim: int, share: float) -> float:
    """From the kill -9 of one rank of the second group to the first group's next commit, less a calm step.

    ``share``: how much of the ideal step's time has passed at the kill, 0 to 1. Raises RuntimeError with what the first
    group said if it failed.
    """
    from torchft.coordination import LighthouseServer

    moment = share * (MICROBATCHES + STAGES - 1) * (FORWARD + BACKWARD)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lighthouse = LighthouseServer(bind="[::]:0", min_replicas=1)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHFT_LIGHTHOUSE": lighthouse.address()}
        words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nnodes", "1", "--max-restarts", "0"]
        words += ["--nproc-per-node", str(STAGES), "-m", "benchmarks.torchft_replicas", "--folder", str(folder)]
        words += ["--victim", str(victim), "--moment", str(moment), "--group"]
        groups = []
        for group in range(GROUPS):
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
        done = [float(line.split()[1]) for line in (folder / "steps").read_text().splitlines()]
    before = [at for at in done if at <= killed]
    calm = statistics.median(b - a for a, b in pairwise(before[WARM:]))
    return next(at for at in done if at > killed) - killed - calm


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
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
        return
    draw = random.Random(arguments.seed)
    lost = []
    for number in range(arguments.rounds):
        victim, share = draw.randrange(STAGES), draw.random()
        lost.append(lost_seconds(victim, share))
        print(f"round {number}: rank {victim}, {share:.2f} of a step into it: {lost[-1]:.2f} s", flush=True)
    print(f"lost: {statistics.median(lost):.2f} s ({min(lost):.2f} to {max(lost):.2f})")


if __name__ == "__main__":
    main()
