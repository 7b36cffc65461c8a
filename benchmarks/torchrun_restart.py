"""What a kill -9 costs torchrun: every rank starts again and goes on from the last checkpoint.

A peer, run as its users would: torchrun keeps one rank a stage, torch.distributed.pipelining's 1F1B on gloo trains the
paced layers, torch.distributed.checkpoint saves beside the training. ``python -m benchmarks.torchrun_restart`` kills a
random rank at a random moment, round by round, and prints what it costs; torchrun starts the same module for every
rank. It is the kindest case: no machine is lost with the process, so that nothing waits for a new one to boot and join.
It is unkind in one way: four ranks that start at once share this machine's cores, where each has its own in earnest.
"""

import argparse
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from concurrent.futures import Future
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from benchmarks.paced import BACKWARD, FORWARD, Paced, dataset
from benchmarks.programs import told_by
from benchmarks.torch_pipelining import batch, feed

STAGES, MICROBATCHES = 4, 8
WARM = 4  # steps that do not count
# Steps from save to save, some seven seconds. With a loss among four nodes every half hour, as public spot traces have
# it, and 0.1 s a save, the usual sqrt(2 * save * time between losses) is 19 s: who saves this often loses fewer steps.
EVERY = 20
AFTER = 3  # steps of a run after the one with the kill
LIMIT = 300.0  # seconds for a run
BYTECODE = Path(__file__).with_name("__pycache__") / "torchrun"
# Names that differ from stage to stage, in the optimizer's state too: the ranks save into one checkpoint.
OPTIONS = StateDictOptions(flatten_optimizer_state_dict=True)


def last_checkpoint(folder: Path) -> int:
    """The step of the newest checkpoint that is whole; 0 without one."""
    return max((int(path.parent.name) for path in folder.glob("*/.metadata")), default=0)


def die(folder: Path) -> None:
    (folder / "killed").write_text(repr(time.time()))
    os.kill(os.getpid(), signal.SIGKILL)


def work(folder: Path, victim: int, kill_step: int, moment: float) -> None:
    """One rank, from the last checkpoint to the end; in its first life the victim dies ``moment`` s into the step."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    saving = dist.new_group(backend="gloo")  # what saves beside the training talks among itself
    rank, stages, life = dist.get_rank(), dist.get_world_size(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    layer = Paced(FORWARD, BACKWARD)
    model = torch.nn.ModuleDict({str(rank): layer})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    begin = last_checkpoint(folder)
    if begin:
        weights, moments = get_state_dict(model, optimizer, options=OPTIONS)
        load({"model": weights, "optimizer": moments}, checkpoint_id=folder / str(begin))
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments, options=OPTIONS)
    stage = PipelineStage(layer, rank, stages, torch.device("cpu"))
    schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=torch.nn.functional.mse_loss)
    data = dataset()
    saved: Future[Any] | None = None
    for step in range(begin, kill_step + 1 + AFTER):
        if rank == victim and step == kill_step and life == 0:
            threading.Timer(moment, die, (folder,)).start()
        x, target = batch(data, step * MICROBATCHES, MICROBATCHES)
        optimizer.zero_grad()
        feed(schedule, rank, stages, x, target)
        optimizer.step()
        if rank == 0:  # the last to be done with a step
            with (folder / "steps").open("a") as log:
                log.write(f"{life} {step} {time.time()!r}\n")
        if (step + 1) % EVERY == 0:
            if saved is not None:
                saved.result()
            weights, moments = get_state_dict(model, optimizer, options=OPTIONS)
            state = {"model": weights, "optimizer": moments}
            handle = async_save(state, checkpoint_id=folder / str(step + 1), process_group=saving)
            assert isinstance(handle, Future)  # it is a pair of them only with a stager of one's own
            saved = handle
    if saved is not None:
        saved.result()
    dist.destroy_process_group()


def lost_seconds(victim: int, offset: int, share: float) -> float:
    """From the kill -9 of one rank to the first step done by the ranks that were started again and not before, less a
    calm step. A step that the others end after the kill is lost: the checkpoint is behind it.

    ``offset``: the kill's distance in steps from the last checkpoint, 0 to EVERY - 1; ``share``: how much of the
    ideal step's time has passed at the kill, 0 to 1. Raises CalledProcessError with torchrun's output if it gave up.
    """
    moment = share * (MICROBATCHES + STAGES - 1) * (FORWARD + BACKWARD)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nnodes", "1", "--max-restarts", "3"]
        words += ["--nproc-per-node", str(STAGES), "-m", "benchmarks.torchrun_restart", "--folder", str(folder)]
        words += ["--victim", str(victim), "--kill-step", str(EVERY + offset), "--moment", str(moment)]
        # A store of its own for every start. In torchrun's own, which torch 2.13 shares with the ranks, the addresses
        # of those that were still stand; gloo takes them for the present ones and the restart fails.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        # Where nobody compiled torch's modules at installation, a restart finds those that the first start compiled.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        environment["PYTHONPYCACHEPREFIX"] = str(BYTECODE)
        told_by(words, environment, LIMIT)
        killed = float((folder / "killed").read_text())
        told = [line.split() for line in (folder / "steps").read_text().splitlines()]
    done = [(int(life), int(step), float(at)) for life, step, at in told]
    before = [(step, at) for life, step, at in done if life == 0 and at <= killed]
    calm = statistics.median(b - a for (_, a), (_, b) in pairwise(before[WARM:]))
    new = next(at for life, step, at in done if life > 0 and step > before[-1][0])
    return new - killed - calm


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    rank = parser.add_argument_group("what a rank is given")
    rank.add_argument("--folder", type=Path)
    rank.add_argument("--victim", type=int)
    rank.add_argument("--kill-step", type=int)
    rank.add_argument("--moment", type=float)
    arguments = parser.parse_args()
    if arguments.folder is not None:
        work(arguments.folder, arguments.victim, arguments.kill_step, arguments.moment)
        return
    draw = random.Random(arguments.seed)
    lost = []
    for number in range(arguments.rounds):
        victim, offset, share = draw.randrange(STAGES), draw.randrange(EVERY), draw.random()
        lost.append(lost_seconds(victim, offset, share))
        print(f"round {number}: rank {victim}, {offset + share:.1f} steps after a save: {lost[-1]:.2f} s", flush=True)
    print(f"lost: {statistics.median(lost):.2f} s ({min(lost):.2f} to {max(lost):.2f})")


if __name__ == "__main__":
    main()
