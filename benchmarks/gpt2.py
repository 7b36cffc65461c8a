"""GPT-2 small on four nodes: ``python -m benchmarks.gpt2 steps | memory | seeding | checkpoint``. Needs ``culm[hf]``.

124 million parameters as transformers draws them, embeddings tied to the head, AdamW with weight decay of matrices
alone, warmup and cosine, clipping; the samples are the bytes of Python's own source. Each prints what it finds, with
the bound that it is held against.

- ``steps``: 8 samples of 256 tokens a step; lazy, off and the plain loop in turn, round by round.
- ``memory``: 16 samples of 1,024 tokens, three steps.
- ``seeding``: a node is lost, and a spare is given its layers at the job's pace, of 25 MB/s. 1 sample of 16 tokens, so
  that the commit at which a copy counts as hot soon comes.
- ``checkpoint``: 8 samples of 256 tokens a step; the CPU seconds that steps with a checkpoint take more than the others
  of the same run, and those of one bare process that hashes and writes as many bytes as often.
"""

import argparse
import json
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from benchmarks.data_parallel import calm_step
from benchmarks.idle_cost import PLAIN
from benchmarks.processes import cpu_seconds, memory
from benchmarks.programs import told_by
from culm.local.cluster import LocalCluster
from culm.local.kills import Kill
from culm.local.training import train
from culm.pipeline.job import Job, load_job, with_values
from culm.pipeline.user_code.model import ModelSource
from culm.protos import coordinator_pb2 as pb
from culm.stage_server.compute.device import CPU
from culm.stage_server.compute.layer import HeldLayer

STAGES, WARM = 4, 2  # WARM: steps that are not counted
PACE = 25_000_000  # bytes a second, when a spare is seeded
CHECKPOINTED, EVERY = 18, 2  # steps, and how often there is a checkpoint
KEPT = 3  # checkpoints, as a job keeps where it says nothing
SHIPPING = 0.42  # CPU seconds that a GB takes from process to process
STATE_BYTES = 12  # of a parameter: itself and two moments
MB, GB = 1e6, 1e9
JOB = """
[job]
name = "gpt2-small"
steps = {steps}
[model]
layers = "culm.models.hf:layers"
args = {{ model = "gpt2" }}
[data]
dataset = "culm.datasets.tokens:blocks"
args = {{ files = "{files}", context = {context}, dtype = "uint8" }}
microbatch = 1
[train]
loss = "culm.models.hf:each_token"
optimizer = "torch.optim:AdamW"
optimizer_args = {{ lr = 6e-4, weight_decay = 0.1 }}
groups = "culm.optim:decay_matrices"
schedule = "culm.optim:warmup_cosine"
schedule_args = {{ warmup = 10, steps = 100 }}
clip_norm = 1.0
[pipeline]
stages = 4
microbatches = {microbatches}
"""


@dataclass(kw_only=True)
class Run:
    """What was seen of a run on four nodes."""

    steps: list[float] = field(default_factory=list)  # seconds from commit to commit, without the first
    cpu: float = 0.0  # seconds of all processes in a step
    cpus: list[float] = field(default_factory=list)  # the same for each of ``steps``
    peaks: list[float] = field(default_factory=list)  # MB resident, by node
    sent: int = 0  # bytes of tensors by all nodes
    events: list[pb.ListEventsResponse] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return statistics.median(self.steps)

    def more_cpu(self) -> float:
        """CPU seconds that steps after a multiple of EVERY take more than the others, by the mean of both.

        Without the first ones and the last one, which nobody has seen whole.
        """
        cpus = list(enumerate(self.cpus, start=WARM))[EVERY:-1]
        with_one = [cpu for step, cpu in cpus if step % EVERY == 0]
        without = [cpu for step, cpu in cpus if step % EVERY != 0]
        return statistics.mean(with_one) - statistics.mean(without)


@contextmanager
def job_of(context: int, microbatches: int, steps: int, *changes: str) -> Iterator[tuple[Job, Path]]:
    """The job, and a folder of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sources = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
        np.frombuffer(b"".join(path.read_bytes() for path in sources), "uint8").tofile(folder / "source.bin")
        text = JOB.format(steps=steps, context=context, microbatches=microbatches, files=folder / "source.bin")
        (folder / "job.toml").write_text(text)
        yield load_job(folder / "job.toml", changes), folder


def run(
    job: Job, folder: Path, nodes: int = STAGES, kills: tuple[Kill, ...] = (), writer: "Writer | None" = None
) -> Run:
    """Trains the job. ``writer`` is told how far it is."""
    found = Run()
    looks: list[tuple[float, float]] = []  # time, and CPU seconds so far

    def note(status: pb.GetStatusResponse, events: list[pb.ListEventsResponse], outcome: object) -> None:
        found.events.extend(events)
        if writer is not None:
            writer.committed(status.step)
        if kills or status.phase != "running" or status.step < WARM:
            return  # of a process that is killed Linux tells nothing
        pids = cluster.pids()
        looks.append((time.time(), sum(cpu_seconds(pids[name]) for name in pids)))
        found.peaks = [memory(pids[name]).peak / MB for name in cluster.names if name in pids]
        found.sent = sum(sum(node.sent_bytes.values()) for node in status.nodes)

    with LocalCluster(job, None, nodes, kills, respawn=False, folder=folder / "run", patience=60.0) as cluster:
        train(cluster, note)
    commits = [event.time for event in found.events if event.kind == "commit"]
    found.steps = [after - before for before, after in pairwise(commits[WARM - 1 :])]
    if len(found.steps) > 2 and looks:
        found.cpu = calm_step(commits, looks).cpu
        at_commits = np.interp(commits[WARM - 1 :], [at for at, _ in looks], [cpu for _, cpu in looks])
        found.cpus = [float(cpu) for cpu in np.diff(at_commits)]
    return found


def plain_step(job_file: Path, steps: int) -> float:
    """Seconds of a step of the plain loop with two threads, in a process of its own: of longer runs, less shorter."""

    def took(count: int) -> float:
        words = [sys.executable, "-c", PLAIN, str(job_file), f"job.steps={count}", "job.threads=2"]
        return float(told_by(words))

    return (took(steps) - took(WARM)) / (steps - WARM)


def steps(rounds: int) -> None:
    """Lazy, off and the plain loop."""
    count = 5
    ways: dict[str, list[Run]] = {"lazy": [], "off": []}
    plain: list[float] = []
    for number in range(rounds):
        for way in sorted(ways, reverse=number % 2 == 1):
            with job_of(256, 8, count, f"resilience.redundancy={way}") as (job, folder):
                ways[way].append(run(job, folder))
                of_model = sum(ModelSource(job).parameter_counts()) * 4
        with job_of(256, 8, count) as (_, folder):
            plain.append(plain_step(folder / "job.toml", count))
        lazy, off = ways["lazy"][-1], ways["off"][-1]
        found = f"lazy {lazy.seconds:.2f} s a step, off {off.seconds:.2f}, plain {plain[-1]:.2f}"
        print(f"round {number}: {found}", flush=True)
    lazy, off = (min(ways[way], key=lambda one: one.seconds) for way in ("lazy", "off"))
    ratios = [a.seconds / b.seconds for a, b in zip(ways["lazy"], ways["off"], strict=True)]
    shipped = (lazy.sent - off.sent) / count
    for way, one in (("lazy", lazy), ("off", off)):
        peaks = " ".join(f"{peak:,.0f}" for peak in one.peaks)
        print(f"{way}: {one.cpu:.2f} CPU s a step, {one.sent / count / MB:,.0f} MB sent a step, peaks {peaks} MB")
    applied = optimizer_seconds()
    bound = 2 * (shipped / GB * SHIPPING + applied)
    over, cpu = lazy.seconds - off.seconds, lazy.cpu - off.cpu
    print(f"the model's gradient {of_model / MB:,.0f} MB, shipped {shipped / MB:,.0f} MB a step")
    print(f"lazy against off: {statistics.median(ratios):.3f} (floor 1.15), {[round(ratio, 3) for ratio in ratios]}")
    print(f"overhead: {over:.2f} s a step, {cpu:.2f} CPU s; at most {bound:.2f} = 2 x (shipping + {applied:.2f} s)")
    print(f"off against the plain loop: {off.seconds / min(plain):.3f}")


def optimizer_seconds() -> float:
    """CPU seconds of a step of the optimizer over all layers in one process: what standbys do once more."""
    torch.set_num_threads(1)
    with job_of(16, 1, 1) as (job, _):
        source = ModelSource(job)
        layers = [HeldLayer.build(source, index, CPU) for index in range(source.layer_count)]
    optimizers = [layer.optimizer for layer in layers if layer.optimizer is not None]
    for layer in layers:
        for parameter in layer.module.parameters():
            parameter.grad = torch.ones_like(parameter)
    for number in range(2):  # the first one makes its state
        begun = time.process_time()
        for optimizer in optimizers:
            optimizer.step()
        if number:
            return time.process_time() - begun
    raise AssertionError


def most_memory(_: int) -> None:
    """Three steps of long samples."""
    with job_of(1024, 16, 3) as (job, folder):
        found = run(job, folder)
        parameters = ModelSource(job).parameter_counts()
    print("peaks by node: " + " ".join(f"{peak:,.0f}" for peak in found.peaks) + " MB")
    print(f"all layers' state: {sum(parameters) * STATE_BYTES / MB:,.0f} MB; of a step {found.seconds:.1f} s")


def seeding(_: int) -> None:
    """A lost node, and a spare."""
    with job_of(16, 1, 60, f"resilience.seed_bytes_per_second={PACE}") as (job, folder):
        found = run(job, folder, STAGES + 1, (Kill("n1", 6, "1F0"),))
        parameters = ModelSource(job).parameter_counts()
    stages = json.loads(next(event for event in found.events if event.kind == "plan").fields["stages"])
    lost = next(event.time for event in found.events if event.kind == "lost")
    print(f"a calm step takes {found.seconds:.2f} s, and a copy is hot from a commit on")
    due = 0.0
    for event in found.events:  # the one spare is given the layers of two stages, one after the other
        if event.kind == "hot" and event.time > lost:
            first, end = stages[int(event.fields["stage"])][:2]
            size, took = sum(parameters[first:end]) * STATE_BYTES, float(event.fields["exposure_ms"]) / 1e3
            due += size / PACE
            where = f"stage {event.fields['stage']}: {size / MB:,.0f} MB"
            print(f"{where}, hot after {took:.1f} s, {took / due:.2f} of the time at the pace (at most 1.3)")


def checkpoint(rounds: int) -> None:
    """The CPU of a checkpoint, and of a bare process that writes as much beside the same training.

    A run takes some percent of CPU more or less than the next one, which is more than a checkpoint is. So steps of one
    run are compared, of which every second one has a checkpoint to write.
    """
    ratios, strict = [], []
    for _ in range(rounds):
        with job_of(256, 8, CHECKPOINTED) as (job, folder):
            where = {"checkpoint.every": EVERY, "checkpoint.url": f"{folder.as_uri()}/kept"}
            having = run(with_values(job, where), folder)
            sizes = [parameters * STATE_BYTES for parameters in ModelSource(job).parameter_counts()]
        with job_of(256, 8, CHECKPOINTED) as (job, folder), Writer(sizes) as writer:
            beside = run(job, folder, writer=writer)
        written = sum(event.kind == "checkpoint" for event in having.events)
        ours, own, slower = having.more_cpu(), writer.cpu / writer.written, beside.more_cpu()
        ratios.append(ours / (own + slower))
        strict.append(ours / own)
        print(f"{written} checkpoints of {sum(sizes) / MB:,.0f} MB, {ours:.2f} CPU s each", flush=True)
        more = f"and {slower:.2f} that the training takes more for it"
        print(f"{writer.written} by the bare process, {own:.2f} CPU s each, {more}", flush=True)
    print(f"against the bare process' own CPU: {statistics.median(strict):.2f} (floor 1.5)")
    print(f"against that and what the training takes longer for it: {statistics.median(ratios):.2f}")


class Writer:
    """A process that hashes and writes files of these sizes whenever it is told to, and keeps as many as a job does.

    How long a write takes goes by the memory that the kernel has free and by who else uses it: so it writes beside the
    same training as the nodes do.
    """

    def __init__(self, sizes: list[int]) -> None:
        words = [sys.executable, "-c", BARE_WRITER, json.dumps(sizes), str(KEPT)]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._asked = 0
        self.written, self.cpu = 0, 0.0  # CPU seconds of all that it wrote

    def committed(self, steps: int) -> None:
        """The run has come so far."""
        if steps // EVERY > self._asked and self._process.stdin is not None:
            self._asked = steps // EVERY
            self._process.stdin.write("\n")
            self._process.stdin.flush()

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, *_: object) -> None:
        told = self._process.communicate()[0]
        took = [float(line) for line in told.split()]
        self.written, self.cpu = len(took), sum(took)


BARE_WRITER = """
import hashlib, json, os, shutil, sys, tempfile, time
from pathlib import Path
sizes, kept = json.loads(sys.argv[1]), int(sys.argv[2])
data = os.urandom(max(sizes))
with tempfile.TemporaryDirectory() as folder:
    for number, _ in enumerate(sys.stdin):
        begun = time.process_time()
        into = Path(folder, str(number))
        into.mkdir()
        for layer, size in enumerate(sizes):
            part = memoryview(data)[:size]
            hashlib.sha256(part).hexdigest()
            with (into / str(layer)).open("wb") as file:
                file.write(part)
                file.flush()
                os.fsync(file.fileno())
        if number >= kept:
            shutil.rmtree(Path(folder, str(number - kept)))
        print(time.process_time() - begun, flush=True)
"""


MODES: dict[str, Callable[[int], None]] = {
    "steps": steps,
    "memory": most_memory,
    "seeding": seeding,
    "checkpoint": checkpoint,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    MODES[arguments.mode](arguments.rounds)


if __name__ == "__main__":
    main()
