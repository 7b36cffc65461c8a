"""Processes that load samples ahead: the same samples, and none of them is left when their node ends, however."""

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from culm.pipeline.errors import JobError
from culm.pipeline.job import Job
from culm.pipeline.partition import partition
from culm.pipeline.patience import Patience
from culm.pipeline.plan import Member, Plan, StagePlan
from culm.pipeline.plan_codec import plan_to_proto
from culm.pipeline.tensors.values import Value
from culm.pipeline.user_code.data import Microbatches, dataset_of
from culm.pipeline.user_code.model import ModelSource
from culm.protos import coordinator_pb2 as pb
from culm.stage_server.compute import loading_ahead
from culm.stage_server.compute.compute import Compute
from culm.stage_server.compute.device import CPU
from culm.stage_server.compute.loading import Loading, Told
from culm.stage_server.compute.loading_ahead import AHEAD, LoadingAhead
from culm.stage_server.faults import Faults
from culm.stage_server.node import Node
from culm.stage_server.streams.guard import run_of
from culm.stage_server.worker.work import Load
from culm.stage_server.worker.worker import Worker
from tests.hostile.job_files import make_job

HERE = "tests.unit.test_loading_ahead"
ROOT = Path(__file__).parents[2]


class Noisy:
    """Draws from the global generator; ``broken``: whether some of the later samples cannot be had."""

    def __init__(self, broken: bool = False) -> None:
        self._broken = broken

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self._broken and index == 20:
            raise ValueError("no such sample")
        if self._broken and index == 30:
            raise FileNotFoundError(2, "No such file or directory", "shard-7")
        if self._broken and index == 39:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.randn(2, 3).T, torch.tensor(index)


class Busy:
    """Starts a process for each sample, and tells how many threads torch had when the dataset was made."""

    def __init__(self) -> None:
        self._threads = torch.get_num_threads()

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        started = multiprocessing.get_context("fork").Process(target=abs, args=(1,))
        started.start()
        started.join()
        return torch.tensor([float(self._threads), float(started.exitcode == 0)]), torch.tensor(index)


def job_of(workers: int = 2, broken: bool = False) -> Job:
    job = make_job(dataset=f"{HERE}:Noisy", data=f"shuffle = {str(not broken).lower()}\nworkers = {workers}")
    return job.model_copy(update={"data": job.data.model_copy(update={"args": {"broken": broken}})})


@pytest.fixture
def make() -> Iterator[Callable[..., LoadingAhead]]:
    made: list[LoadingAhead] = []

    def begun(job: Job, told: Told = None) -> LoadingAhead:
        made.append(LoadingAhead(job, lambda: told))
        return made[-1]

    yield begun
    for each in made:
        each.close()


def lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def workers() -> set[int]:
    children = [child for child in psutil.Process().children() if lives(child.pid)]
    return {child.pid for child in children if "spawn_main" in " ".join(child.cmdline())}


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30.0
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_they_load_what_the_node_would_and_go_with_it(make: Callable[..., LoadingAhead]) -> None:
    before, job = workers(), job_of()
    ahead, own = make(job), Microbatches(job, dataset_of(job))
    loads = [Load(step, 0, m) for step in range(3) for m in range(2)]
    for i, load in enumerate(loads):
        ahead.want(loads[i:])
        assert len(ahead._here) + len(ahead._under_way()) + len(ahead._wanted) <= AHEAD * 2
        for found, expected in zip(
            ahead.take(load), own.microbatch(load.step, load.pipeline, load.microbatch), strict=True
        ):
            assert torch.equal(found, expected)
            assert found.stride() == expected.stride()
    assert torch.equal(ahead.take(Load(7, 0, 1))[0], own.microbatch(7, 0, 1)[0]), "nobody wanted it before"
    ahead.want(loads)
    ahead.want([])
    assert not ahead._here
    assert not ahead._wanted
    for pid in workers() - before:
        os.kill(pid, signal.SIGKILL)
    for load in loads[:3]:  # others take the place of those that were killed; what was here is not lost
        assert torch.equal(ahead.take(load)[0], own.microbatch(load.step, load.pipeline, load.microbatch)[0])
    begun = workers() - before
    assert begun
    ahead.close()
    until(lambda: not any(map(lives, begun)))


def test_what_a_worker_raises_is_raised_here(
    make: Callable[..., LoadingAhead], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading_ahead, "ENDED_MOST", 0)
    ahead = make(job_of(1, broken=True))
    ahead.take(Load(0, 0, 0))
    with pytest.raises(JobError, match=r"^data\.dataset: loading microbatch 1 raised ValueError: no such sample"):
        ahead.take(Load(2, 0, 1))
    with pytest.raises(FileNotFoundError, match="shard-7"):
        ahead.take(Load(3, 0, 1))
    with pytest.raises(JobError, match=r"processes that load samples end by themselves.*set data\.workers to 0"):
        ahead.take(Load(4, 0, 1))


def test_a_view_goes_without_the_rest_of_its_memory() -> None:
    whole = torch.arange(1_000_000.0)

    class Views(Loading):
        def load(self, load: Load) -> tuple[torch.Tensor, torch.Tensor]:
            return whole[:8].view(4, 2).T, whole[8]

    found = loading_ahead._tried(Views(job_of(), None), Load(0, 0, 0))
    assert len(found) < 10_000
    x, target = loading_ahead._given(*pickle.loads(found)[:2])
    assert torch.equal(x, whole[:8].view(4, 2).T)
    assert x.stride() == (1, 2)
    assert target == 8.0


def test_other_samples_than_the_node_told_are_refused(make: Callable[..., LoadingAhead]) -> None:
    with pytest.raises(JobError, match="the dataset gives other samples"):
        make(job_of(1), told={"data": "40 samples, 0123456789abcdef"}).take(Load(0, 0, 0))


def test_a_dataset_is_made_as_on_the_node_and_may_have_processes_of_its_own(make: Callable[..., LoadingAhead]) -> None:
    """A dataset with workers passed the check, and the run ended: daemons may have no children. One that computes when
    it is made came to other samples than the node had told, by another number of threads.
    """
    job = make_job(dataset=f"{HERE}:Busy", data="shuffle = false\nworkers = 1", job="threads = 2")
    x, _ = make(job).take(Load(0, 0, 0))
    assert x.tolist() == [[2.0, 1.0]] * 4


NODE = """
import sys, time
from culm.stage_server.compute.loading_ahead import LoadingAhead
from culm.stage_server.worker.work import Load
from tests.unit.test_loading_ahead import job_of, workers

if __name__ == "__main__":
    ahead = LoadingAhead(job_of(), lambda: None)
    ahead.want([Load(0, 0, 0), Load(0, 0, 1)])
    ahead.take(Load(0, 0, 0))
    print(*workers(), flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("killed", [True, False])
def test_none_is_left_when_its_node_ends(killed: bool, tmp_path: Path) -> None:
    """Also where nobody has closed it: Python waits for processes that are no daemons."""
    script = tmp_path / "node.py"
    script.write_text(NODE)
    environment: dict[str, Any] = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as node:
        assert node.stdout is not None
        begun = [int(pid) for pid in node.stdout.readline().split()]
        assert len(begun) == 2
        if killed:
            node.kill()
        else:
            assert node.stdin is not None
            node.stdin.close()
        until(lambda: not any(map(lives, begun)))


def test_they_go_with_a_node_whose_work_has_raised() -> None:
    """Its process may start again under its process id, and would have them as children that nobody waits for."""
    before, job = workers(), job_of()
    source = ModelSource(job)
    worker: Worker[Value] = Worker("n0", 1, job.schedule, job.job.steps)
    broken = list[BaseException]()
    compute, shape = Compute(job, source, CPU), run_of(job, source)
    node = Node(worker, compute, Faults(), job, Patience(), pytest.fail, broken.append, shape)
    ranges = partition([1.0] * source.layer_count, job.pipeline.stages)
    stages = tuple(StagePlan(first, end, ("n0",) * job.pipeline.pipelines) for first, end in ranges)
    plan = Plan(term=1, generation=1, era=0, step=0, stages=stages, members={"n0": Member("n0", 1)})
    node.order(pb.AttendResponse(plan=plan_to_proto(plan)))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):  # the layers want other samples
        node.run()
    assert workers() == before
    assert broken == []
