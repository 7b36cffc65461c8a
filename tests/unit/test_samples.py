"""What a dataset gives: the same to whoever asks, on every node, or the job is refused (rule 23)."""

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from culm.coordinator.agreement import Agreement, joined, refusal
from culm.pipeline.errors import JobError
from culm.pipeline.identity import Identity
from culm.pipeline.identity_parts import with_what_follows
from culm.pipeline.job import Job, with_values
from culm.pipeline.user_code.check import check_job
from culm.pipeline.user_code.data import Microbatches
from culm.pipeline.user_code.model import ModelSource
from culm.pipeline.user_code.samples import LOADED, samples_of
from culm.protos import coordinator_pb2 as pb
from culm.stage_server.availability import availability
from culm.stage_server.compute import loading
from culm.stage_server.compute.compute import Compute
from culm.stage_server.compute.device import CPU
from culm.stage_server.worker.work import Load
from tests.hostile.job_files import ENVIRONMENT, ROOT, job_text, make_job

LENGTH = 64


class Numbered(Dataset[Any]):
    """Sample i is made of ``order[i]``. x: [8]."""

    def __init__(self, order: list[int] | None = None) -> None:
        self.order = order if order is not None else list(range(LENGTH))

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> Any:
        number = self.order[index]
        return torch.full((8,), float(number)), torch.tensor(number % 4)


class Augmented(Numbered):
    """Draws from every generator that Culm seeds."""

    def __getitem__(self, index: int) -> Any:
        x, target = super().__getitem__(index)
        return x + torch.randn(8) + float(np.random.rand()), target


class OwnGenerator(Numbered):
    def __init__(self) -> None:
        super().__init__()
        self._own = np.random.default_rng(0)

    def __getitem__(self, index: int) -> Any:
        x, target = super().__getitem__(index)
        return x + float(self._own.random()), target


class WrittenInPlace(Numbered):
    """Each sample that is asked for changes the dataset."""

    def __init__(self) -> None:
        super().__init__()
        self._scale = 1.0

    def __getitem__(self, index: int) -> Any:
        x, target = super().__getitem__(index)
        self._scale *= 1.5
        return x * self._scale, target


class Kept(Numbered):
    """Keeps what it has read, as many datasets do."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: dict[int, Any] = {}

    def __getitem__(self, index: int) -> Any:
        return self._kept.setdefault(index, super().__getitem__(index))


class KeptNoise(Numbered):
    """Keeps what it has made of each sample, with what was drawn for it."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: dict[int, Any] = {}

    def __getitem__(self, index: int) -> Any:
        if index not in self._kept:
            x, target = super().__getitem__(index)
            self._kept[index] = x + torch.randn(8), target
        return self._kept[index]


class Named(Numbered):
    """Has something of its own under a name that Culm's datasets have."""

    def __init__(self) -> None:
        super().__init__()
        self.contents = [object()]


def by_kind(transform: dict[str, Any], files: list[str]) -> Numbered:
    """Takes its arguments apart, as registries do."""
    assert transform.pop("type") == "flip"
    files.append("more")
    return Numbered()


class Torn(Numbered):
    """The last sample cannot be read, as often as it is asked for."""

    error: Exception = ValueError("sample 63 is torn")

    def __getitem__(self, index: int) -> Any:
        if index == LENGTH - 1:
            raise self.error
        return super().__getitem__(index)


class OpenOnce(Numbered):
    """As a store that a process may open once at a time. Nobody closes it: it has to be let go of."""

    open = False

    def __init__(self) -> None:
        if OpenOnce.open:
            raise RuntimeError("this process has the store open already")
        OpenOnce.open = True
        super().__init__()

    def __del__(self) -> None:
        OpenOnce.open = False


MADE: list[int] = []  # the datasets of this process that were made so far


def other_each_time() -> Numbered:
    """An order that Culm does not seed."""
    MADE.append(len(MADE))
    return Numbered([(i + len(MADE)) % LENGTH for i in range(LENGTH)])


def longer_each_time() -> Numbered:
    MADE.append(len(MADE))
    return Numbered(list(range(LENGTH + len(MADE))))


def by_hash() -> Numbered:
    """In the order of this process's hashes of words."""
    return Numbered([int(name) for name in {str(i) for i in range(LENGTH)}])


def job_of(dataset: str, **more: Any) -> Job:
    return make_job(dataset=f"{__name__}:{dataset}", **more)


REFUSED = {
    "OwnGenerator": "other samples when it is asked again",
    "WrittenInPlace": "other samples when it is asked again",
    "other_each_time": "other samples each time that it is made",
    "longer_each_time": "other samples each time that it is made",
}


@pytest.mark.parametrize("dataset", REFUSED)
def test_a_dataset_that_gives_other_samples_is_refused(dataset: str) -> None:
    with pytest.raises(JobError, match=REFUSED[dataset]) as refused:
        check_job(job_of(dataset))
    assert str(refused.value).startswith(f"data.dataset, {__name__}:{dataset}: the dataset gives other samples ")
    assert "Culm seeds" in str(refused.value)


def test_a_dataset_that_keeps_what_it_has_drawn_is_refused() -> None:
    """A node that took over in the second epoch drew anew, where the others gave what they had drawn in the first."""
    with pytest.raises(JobError, match="KeptNoise: the dataset keeps what it has drawn for a sample"):
        check_job(job_of("KeptNoise"))


def test_a_dataset_may_write_into_its_arguments() -> None:
    """It was called with the job's own: the second time they were other ones, and so was the job."""
    args = {"transform": {"type": "flip"}, "files": ["a"]}
    job = with_values(job_of("by_kind"), {"data.args": args})
    check_job(job)
    assert job.data.args == args == {"transform": {"type": "flip"}, "files": ["a"]}


@pytest.mark.parametrize("dataset", ["Numbered", "Augmented", "Kept", "Torn", "Named", "by_hash"])
def test_a_dataset_that_gives_the_same_passes(dataset: str) -> None:
    check_job(job_of(dataset))


def test_a_dataset_is_let_go_of_before_it_is_made_again() -> None:
    """At once, and not by the next collection of garbage."""
    job = job_of("OpenOnce", stages=1)
    source = ModelSource(job)
    compute = Compute(job, source, CPU)
    gc.disable()
    try:
        check_job(job)
        compute.told_samples = loading.samples_told(job)
        compute.do(Load(0, 0, 0))
    finally:
        gc.enable()


def test_a_check_names_the_dataset_where_its_storage_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Torn, "error", TimeoutError("the mount does not answer"))
    with pytest.raises(JobError, match="could not load one of its samples: TimeoutError: the mount does not answer"):
        check_job(job_of("Torn", data="shuffle = false"))


def test_an_epoch_has_one_order_however_often_the_epochs_take_turns() -> None:
    job = job_of("Numbered", stages=1)
    data = Microbatches(job, Numbered())
    for step in (0, 9, 1, 30, 10, 0):
        assert torch.equal(data.microbatch(step, 0, 0)[0], Microbatches(job, Numbered()).microbatch(step, 0, 0)[0])


def told(dataset: Any, **more: Any) -> str:
    return samples_of(make_job(data="shuffle = false", **more), "data", dataset)


def test_another_order_shows_wherever_it_begins() -> None:
    """Where the first samples are alike, and where the last ones are."""
    order = list(range(LENGTH))
    seen = {told(Numbered(each)) for each in (order, order[:32] + order[:31:-1], order[31::-1] + order[32:])}
    assert len(seen) == 3
    assert told(Numbered(order)) == told(Kept())
    assert told(Numbered(order)).startswith("64 samples, ")
    assert told(Numbered(order[:63])).startswith("63 samples, ")


def test_a_dataset_smaller_than_two_microbatches() -> None:
    assert told(Numbered([1, 2, 3, 4])) != told(Numbered([1, 2, 4, 3]))


def test_a_sample_that_cannot_be_read_counts_unless_it_may_be_later(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(Torn()) == told(Torn())
    assert told(Torn()) != told(Numbered())
    monkeypatch.setattr(Torn, "error", TimeoutError("the mount does not answer"))
    with pytest.raises(TimeoutError):
        told(Torn())


def test_a_node_tells_samples_where_all_nodes_are_alike() -> None:
    job = job_of("Numbered", stages=1)
    source = ModelSource(job)
    samples = loading.parts_of(loading.samples_told(job))
    assert samples["samples"].startswith("64 samples, ")
    assert availability(job, source, CPU, pb.Welcome(), samples=samples).parts["samples"] == samples["samples"]


def test_machines_that_may_differ_tell_no_samples_and_do_not_open_the_dataset() -> None:
    job = job_of("other_each_time", stages=1, job='hardware = "any"')
    source, made = ModelSource(job), len(MADE)
    compute = Compute(job, source, CPU)
    compute.told_samples = loading.samples_told(job)
    assert compute.told_samples is None
    assert len(MADE) == made
    assert (
        "samples"
        not in availability(job, source, CPU, pb.Welcome(), samples=loading.parts_of(compute.told_samples)).parts
    )
    compute.do(Load(0, 0, 0))
    assert len(MADE) == made + 1


def test_a_node_without_the_data_takes_part_until_it_has_to_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then it fails like any node; or joins anew, where the data are there by now."""
    job = job_of("Torn", stages=1, data="shuffle = false")
    source = ModelSource(job)
    compute = Compute(job, source, CPU)
    monkeypatch.setattr(loading, "PAUSES", ())
    monkeypatch.setattr(Torn, "error", TimeoutError("the mount does not answer"))
    compute.told_samples = loading.samples_told(job)
    assert compute.told_samples == {"data": ""}
    assert not loading.parts_of(compute.told_samples)
    assert "samples" not in availability(job, source, CPU, pb.Welcome()).parts
    with pytest.raises(TimeoutError, match="the mount does not answer"):
        compute.do(Load(0, 0, 0))
    monkeypatch.setattr(Torn, "error", ValueError("sample 63 is torn"))
    with pytest.raises(loading.Untold, match="gave none when this node started"):
        compute.do(Load(0, 0, 0))


class Busy(Numbered):
    """A storage that has to be asked twice for every sample."""

    def __init__(self) -> None:
        super().__init__()
        MADE.append(len(MADE))
        self._asked: set[int] = set()

    def __getitem__(self, index: int) -> Any:
        if index not in self._asked:
            self._asked.add(index)
            raise TimeoutError("the mount is busy")
        return super().__getitem__(index)


def test_each_microbatch_is_loaded_in_a_time_of_its_own_and_from_one_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    """A storage that fails between two samples is asked again, and the dataset is not made again for that."""
    job = job_of("Busy", stages=1)
    source, made, periods = ModelSource(job), len(MADE), list[int]()
    compute = Compute(job, source, CPU)
    monkeypatch.setattr(loading, "PAUSES", (0.0,) * job.data.microbatch)
    compute.told_samples = loading.samples_told(job)
    assert compute.told_samples
    assert len(MADE) == made + 1

    @contextmanager
    def period() -> Iterator[None]:
        periods.append(len(periods))
        yield

    compute.loading = period
    compute.do(Load(0, 0, 0))
    assert len(MADE) == made + 2
    assert len(periods) == 1 + LOADED + 1, "the dataset, what is compared, and the microbatch"
    compute.do(Load(0, 0, 1))
    assert len(periods) == 1 + LOADED + 1 + 1


def test_a_dataset_that_is_another_one_by_now_is_refused() -> None:
    """Nodes that load nothing at first open it much later, as heirs."""
    job = job_of("other_each_time", stages=1)
    source = ModelSource(job)
    compute = Compute(job, source, CPU)
    compute.told_samples = loading.samples_told(job)
    with pytest.raises(JobError, match="than when this node started"):
        compute.do(Load(0, 0, 0))
    steady = Compute(job_of("Augmented", stages=1), ModelSource(job_of("Augmented", stages=1)), CPU)
    steady.told_samples = loading.samples_told(job_of("Augmented", stages=1))
    steady.do(Load(0, 0, 0))


def test_a_node_that_differs_is_refused() -> None:
    first = Identity({"samples": "64 samples, 1111111111111111"})
    other = Identity({"samples": "64 samples, 2222222222222222"})
    agreed = joined(Agreement(), first, same_hardware=True)
    assert refusal(agreed, "n1", other) == (
        "the dataset gives other samples on n1 (64 samples, 2222222222222222) than on nodes before it "
        "(64 samples, 1111111111111111): give every node the same data in the same order, and sort what a folder or "
        "a set lists"
    )
    assert refusal(agreed, "n1", Identity()) == "", "it could not load any"
    for part, refused in (("data", False), ("train", False), ("hardware", False), ("model", True)):
        resumed = Agreement(checkpoint=first.without(with_what_follows({part})))
        assert bool(refusal(resumed, "n1", other)) == refused


TELL = """
import sys
from culm.pipeline.job import load_job
from culm.pipeline.user_code.model import ModelSource
from culm.pipeline.user_code.samples import samples_of
for path in sys.argv[1:]:
    job = load_job(path)
    print(samples_of(job, "data", ModelSource(job).dataset()))
"""


def test_an_order_by_hash_shows_between_processes(tmp_path: Path) -> None:
    paths = [tmp_path / f"{dataset}.toml" for dataset in ("by_hash", "Augmented")]
    for path in paths:
        path.write_text(job_text(dataset=f"{__name__}:{path.stem}"))
    said = []
    for seed in ("1", "2"):
        environment = {**ENVIRONMENT, "PYTHONHASHSEED": seed, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
        words = [sys.executable, "-c", TELL, *map(str, paths)]
        found = subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout
        said.append(found.splitlines())
    (by_hash, augmented), (other_by_hash, other_augmented) = said
    assert by_hash != other_by_hash
    assert augmented == other_augmented
