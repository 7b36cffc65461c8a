"""An iterable dataset gives every microbatch to whoever asks, from any bookmark; or the job is refused."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from culm.oracle.plain_loop import run_plain
from culm.pipeline.bookmark import MOST_BYTES, Bookmark, Known, bookmark_for
from culm.pipeline.checkpoints import bookmark_file
from culm.pipeline.errors import JobError
from culm.pipeline.job import Job, with_values
from culm.pipeline.origin import Origin
from culm.pipeline.reading import Reader
from culm.pipeline.tensors.bits import same_bits
from culm.pipeline.user_code.check import check_job
from culm.pipeline.user_code.data import dataset_of, microbatches_of
from culm.simulator.histories.simulated_dataset import Counting
from culm.stage_server.compute.loading import Loading, samples_told
from culm.stage_server.compute.loading_ahead import LoadingAhead
from culm.stage_server.worker.work import Load
from tests.hostile.job_files import make_job

HERE = "tests.unit.test_reading"
LENGTH = 21  # samples: an epoch ends within a microbatch
NONE: Callable[[int], Bookmark | None] = lambda step: None  # noqa: E731


def sample(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.full((8,), number / LENGTH), torch.tensor(number % 4)


class Rows(IterableDataset[Any]):
    """``noise``: draws from the generator that Culm seeds; ``forgets``: how far its state lags behind."""

    def __init__(self, noise: bool = False, forgets: int = 0, length: int = LENGTH, big: int = 0) -> None:
        self._noise, self._forgets, self._length, self._big = noise, forgets, length, big
        self.at = 0

    def __iter__(self) -> Iterator[Any]:
        while self.at < self._length:
            self.at += 1
            x, target = sample(self.at - 1)
            yield x + torch.randn(8) if self._noise else x, target
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": max(0, self.at - self._forgets), "big": torch.zeros(self._big)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class MapStyle(Dataset[Any]):
    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return sample(index)


class Buffered(Rows):
    """Draws from a buffer that its state does not hold, as a shuffle does."""

    def __iter__(self) -> Iterator[Any]:
        buffer, drawn = [], random.Random(1)
        for row in super().__iter__():
            buffer.append(row)
            if len(buffer) > 7:
                yield buffer.pop(drawn.randrange(len(buffer)))
        yield from buffer


@dataclass
class Record:
    x: torch.Tensor
    target: torch.Tensor


class BufferedRecords(Buffered):
    """Samples are objects."""

    def __iter__(self) -> Iterator[Any]:
        return (Record(*row) for row in super().__iter__())


def of_records(records: list[Record]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.stack([each.x for each in records]), torch.stack([each.target for each in records])


class Ragged(Rows):
    """Samples as numpy has rows of different lengths, sparse tensors, and sets among them."""

    def __iter__(self) -> Iterator[Any]:
        for x, target in super().__iter__():
            yield {"x": np.array([x.numpy(), None, {"a", "b"}], dtype=object), "target": target.to_sparse()}


def of_ragged(rows: list[dict[str, Any]]) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.stack([torch.from_numpy(row["x"][0]) for row in rows])
    return x, torch.stack([row["target"].to_dense() for row in rows])


class Lists(Rows):
    def __iter__(self) -> Iterator[Any]:
        return (list(row) for row in super().__iter__())


def popped(rows: list[list[torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Takes its samples apart, and writes into them."""
    targets = torch.stack([row.pop() for row in rows])
    return torch.stack([row[0].mul_(2.0) for row in rows]), targets


class OneBuffer(Rows):
    """Fills the same memory with each sample."""

    def __iter__(self) -> Iterator[Any]:
        buffer = torch.empty(8)
        for x, target in super().__iter__():
            yield buffer.copy_(x), target


class StartsThere(Rows):
    """As Hugging Face's: within the epoch of its state every iter() goes on from there."""

    epoch = 0
    start: dict[str, Any] = {"at": 0, "epoch": 0}  # noqa: RUF012

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        self.at = self.start["at"] if self.start["epoch"] == self.epoch else 0
        while self.at < LENGTH:
            self.at += 1
            yield sample(self.at - 1)

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.start = state


class Lines(IterableDataset[Any]):
    """Has no state."""

    def __iter__(self) -> Iterator[Any]:
        return (sample(i) for i in range(LENGTH))


class Epochs(Rows):
    """Another order in each epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        for x, target in super().__iter__():
            yield x * (1 + self.epoch), target


class FromFile(Rows):
    """Its samples are other ones once the file is."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._first = int(Path(path).read_text())

    def __iter__(self) -> Iterator[Any]:
        for x, target in super().__iter__():
            yield x + self._first, target


class Odd(Rows):
    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "file": Path("x")}


def loader() -> StatefulDataLoader[Any]:
    return StatefulDataLoader(MapStyle(), batch_size=None)


def loader_with_epochs() -> StatefulDataLoader[Any]:
    return StatefulDataLoader(StartsThere(), batch_size=None)


def layers() -> list[nn.Module]:
    return [nn.Linear(8, 8), nn.Linear(8, 4)]


def job_of(name: str, **args: Any) -> Job:
    job = make_job(dataset=f"{HERE}:{name}", layers=f"{HERE}:layers", data="shuffle = false")
    return with_values(job, {"data.args": args, "pipeline.pipelines": 2, "job.steps": 5, "data.microbatch": 2})


def numbered(step: int, place: int) -> int:
    return step * 6 + place


@pytest.mark.parametrize("seed", range(20))
def test_a_reader_gives_any_microbatch_from_any_bookmark(seed: int) -> None:
    draw, known = random.Random(seed), dict[int, Bookmark]()

    def newest(step: int) -> Bookmark | None:
        usable = [version for version in known if version <= step + draw.randrange(2)]
        return known[max(usable)] if usable else None

    readers = [Reader(Counting, 6, newest) for _ in range(3)]
    for _ in range(60):
        reader, step, place = draw.choice(readers), draw.randrange(8), draw.randrange(6)
        assert reader.microbatch(step, place) == numbered(step, place)
        bookmark = reader.take_bookmark()
        if bookmark is not None and draw.random() < 0.5:
            assert known.setdefault(bookmark.version, bookmark) == bookmark, "a bookmark is a fact"


def test_a_dataset_that_goes_on_with_other_samples_gives_none() -> None:
    bookmark = Bookmark(version=2, of="", digest="0" * 16, state=b"6")
    reader = Reader(Counting, 6, lambda step: bookmark)
    with pytest.raises(JobError, match="other samples of step 1 than the run has had; let load_state_dict bring it"):
        reader.microbatch(2, 0)


def test_one_that_raised_is_opened_again() -> None:
    class Fails(Counting):
        broken = True

        def read(self, step: int, place: int) -> int:
            if Fails.broken and place == 4:
                raise OSError("away")
            return super().read(step, place)

    reader = Reader(Fails, 6, NONE)
    with pytest.raises(OSError, match="away"):
        reader.microbatch(0, 5)
    Fails.broken = False
    assert reader.microbatch(0, 5) == 5


@pytest.mark.parametrize("name", ["Rows", "loader"])
def test_what_is_read_in_order_trains_as_the_same_samples_of_a_map_style_dataset(name: str) -> None:
    job = job_of(name)
    check_job(job)
    assert run_plain(job).sha256 == run_plain(job_of("MapStyle")).sha256


@pytest.mark.parametrize("name", ["Rows", "Epochs", "loader", "loader_with_epochs"])
@pytest.mark.parametrize("step", [1, 2, 4])
def test_another_process_reads_on_with_the_same_bits(name: str, step: int, tmp_path: Path) -> None:
    job = job_of(name, **{"noise": True} if name == "Rows" else {})
    first = microbatches_of(job, "data", dataset_of(job))
    wanted = [first.microbatch(step, p, m) for p in range(2) for m in range(job.pipeline.microbatches)]
    before = Loading(job, None)
    for earlier in range(step):
        before.load(Load(earlier, 1, job.pipeline.microbatches - 1))
    bookmark = before.take_bookmark()
    assert bookmark is not None
    assert bookmark.version == step
    bookmark_file.put(str(tmp_path), bookmark)
    for known in (Known(newest=bookmark), Known(origin=Origin(step, str(tmp_path), "")), Known()):
        again = Loading(job, None, known=lambda known=known: known)  # type: ignore[misc]
        found = [again.load(Load(step, p, m)) for p in range(2) for m in range(job.pipeline.microbatches)]
        for (x, target), (other, other_target) in zip(wanted, found, strict=True):
            assert same_bits(x, other)
            assert same_bits(target, other_target)


def test_a_process_that_loads_ahead_tells_bookmarks_too() -> None:
    job = with_values(job_of("Rows", noise=True), {"data.workers": 1})
    here, ahead = Loading(job, None), LoadingAhead(job, lambda: None)
    try:
        for load in (Load(0, p, m) for p in range(2) for m in range(job.pipeline.microbatches)):
            assert all(map(same_bits, here.load(load), ahead.take(load)))
        assert ahead.take_bookmark() == here.take_bookmark() != None  # noqa: E711
        assert ahead.take_bookmark() is None, "each is told once"
    finally:
        ahead.close()


@pytest.mark.parametrize(
    ("name", "args", "settings", "said"),
    [
        ("Lines", {}, {}, "data.dataset: the dataset is iterable, and has no state_dict"),
        ("Rows", {}, {"data.shuffle": True}, "data.shuffle: the dataset is iterable, so its samples come in its own"),
        ("Rows", {}, {"data.workers": 2}, "data.workers: the dataset is iterable, and would be read by 2 processes"),
        ("Rows", {"forgets": 1}, {}, "data.dataset: the dataset has gone on from its state with other samples"),
        ("Buffered", {}, {}, "data.dataset: the dataset has gone on from its state with other samples"),
        (
            "BufferedRecords",
            {},
            {"data.collate": f"{HERE}:of_records"},
            "data.dataset: the dataset has gone on from its state with other samples",
        ),
        ("Rows", {"length": 0}, {}, "epoch 0 of the dataset has no sample"),
        ("Rows", {"big": MOST_BYTES}, {}, "data.dataset: the dataset's state has"),
        ("Odd", {}, {}, "data.dataset: the dataset's state cannot be read back"),
    ],
)
def test_what_nobody_could_read_on_is_refused(
    name: str, args: dict[str, Any], settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(JobError) as error:
        check_job(with_values(job_of(name, **args), settings))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("name", "collate"), [("Lists", "popped"), ("OneBuffer", None)])
def test_samples_that_were_written_into_are_read_once_more(name: str, collate: str | None) -> None:
    """A node that begins a step again asks for its microbatches again, which it was given already."""
    settings = {"data.microbatch": 1, "data.collate": collate and f"{HERE}:{collate}"}
    loading = Loading(with_values(job_of(name), settings), None)
    loads = [Load(1, p, m) for p in range(2) for m in range(2)]
    first = [loading.load(load) for load in loads]
    for load in (*loads, *reversed(loads)):
        found, wanted = loading.load(load), first[loads.index(load)]
        assert all(map(same_bits, found, wanted)), load


def test_samples_of_any_kind_can_be_read_on() -> None:
    check_job(with_values(job_of("Ragged"), {"data.collate": f"{HERE}:of_ragged"}))


def test_a_job_that_was_edited_uses_no_bookmark() -> None:
    """Its steps begin at other samples: as of a map-style dataset, those of step t are the next after t such steps."""
    job = job_of("Rows")
    before = Loading(job, None)
    before.load(Load(1, 1, job.pipeline.microbatches - 1))
    edited, known = with_values(job, {"data.microbatch": 3}), Known(newest=before.take_bookmark())
    x, _ = Loading(edited, None, known=lambda: known).load(Load(2, 0, 1))
    wanted, _ = microbatches_of(edited, "data", dataset_of(edited)).microbatch(2, 0, 1)
    assert same_bits(x, wanted)


def test_a_dataset_of_other_files_under_the_same_names_uses_no_bookmark(tmp_path: Path) -> None:
    """A run that was resumed with --allow data ended in its first step: the state was of what lay there before."""
    (tmp_path / "first").write_text("0")
    job = job_of("FromFile", path=str(tmp_path / "first"))
    before = Loading(job, samples_told(job))
    before.load(Load(1, 1, job.pipeline.microbatches - 1))
    bookmark_file.put(str(tmp_path), before.take_bookmark())
    (tmp_path / "first").write_text("7")
    known = Known(origin=Origin(2, str(tmp_path), ""))
    x, _ = Loading(job, samples_told(job), known=lambda: known).load(Load(2, 0, 1))
    wanted, _ = microbatches_of(job, "data", dataset_of(job)).microbatch(2, 0, 1)
    assert same_bits(x, wanted)


def test_a_bookmark_that_is_not_whole_counts_for_none(tmp_path: Path) -> None:
    bookmark = Bookmark(version=3, of="", digest="ab", state=b"\x00\xff")
    bookmark_file.put(str(tmp_path), bookmark)
    assert bookmark_file.read(str(tmp_path)) == bookmark
    file = tmp_path / bookmark_file.FILE
    whole = file.read_text()
    for torn in ("", "[]", "[" * 100_000, whole[:-3], whole.replace("00ff", "00fe"), whole.replace("3", "4", 1)):
        file.write_text(torn)
        assert bookmark_file.read(str(tmp_path)) is None
    bookmark_file.put(str(tmp_path), None)
    assert not file.exists()
    assert bookmark_for(5, Known(origin=Origin(5, str(tmp_path), "")), bookmark_file.read) is None
