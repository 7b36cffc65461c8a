"""Manifests are tried again until the storage takes them; a look at a large file may take its time."""

import asyncio
import hashlib
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem

from culm.coordinator import commands as cmd
from culm.coordinator import reports
from culm.coordinator.edges import archive as archive_module
from culm.coordinator.edges.archive import Archive
from culm.coordinator.edges.background import Background
from culm.pipeline.checkpoints import storage
from culm.pipeline.checkpoints.layer_file import write_layer
from culm.pipeline.checkpoints.manifest import MANIFEST, File, Manifest, folder_of, write_manifest
from culm.pipeline.identity import Identity
from culm.pipeline.job import Job, job_to_toml, load_job
from culm.pipeline.origin import Origin
from culm.pipeline.tensors.values import Value

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits_mlp.toml"
DATA = b"a layer"
FILE = File("layer-00000.safetensors", len(DATA), hashlib.sha256(DATA).hexdigest())


class LateFileSystem(MemoryFileSystem):  # type: ignore[misc]
    """Fails at the first question."""

    protocol = "late"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    asked = 0

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> Any:
        LateFileSystem.asked += 1
        if LateFileSystem.asked == 1:
            raise OSError("no route to host")
        return super().ls(path, detail, **kwargs)


class HangingFileSystem(MemoryFileSystem):  # type: ignore[misc]
    """Answers nothing until it is let go."""

    protocol = "hanging"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    asked = threading.Semaphore(0)
    let_go = threading.Event()

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> Any:
        HangingFileSystem.asked.release()
        HangingFileSystem.let_go.wait()
        return super().ls(path, detail, **kwargs)


class SlowFileSystem(MemoryFileSystem):  # type: ignore[misc]
    """Takes the manifest of step 10 once it is let go."""

    protocol = "slow"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    asked = threading.Semaphore(0)
    let_go = threading.Event()

    def mv(self, path1: str, path2: str, **kwargs: Any) -> None:
        if path2.endswith(f"step-00000010/{MANIFEST}"):
            SlowFileSystem.asked.release()
            SlowFileSystem.let_go.wait()
        super().mv(path1, path2, **kwargs)


class Told(list[reports.Report]):
    """What the archive has told, newest last."""

    changed: asyncio.Event

    def take(self, report: reports.Report) -> None:
        self.append(report)
        self.changed.set()


def order(era: int, step: int) -> cmd.WriteManifest:
    return cmd.WriteManifest(era=era, step=step, loss=0.5, fingerprint="", files={0: (FILE,)})


def test_after_a_rollback_the_manifest_of_a_lower_step_is_tried_again(tmp_path: Path) -> None:
    """One attempt failed: the storage did not show a file yet. Of step 100, before the rollback, it never does."""
    url = f"file://{tmp_path}"
    job = load_job(EXAMPLE, [f"checkpoint.url={url}", "checkpoint.every=10"])

    async def play() -> list[reports.Report]:
        told = Told()
        changed = told.changed = asyncio.Event()
        archive = Archive(job, told.take, Background(lambda error: None))
        archive.carry_out(order(0, 100))
        archive.carry_out(order(1, 60))
        while sum(isinstance(report, reports.CheckpointFault) for report in told) < 2:
            await changed.wait()
            changed.clear()
        folder = Path(folder_of(url, 60).removeprefix("file://"))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / FILE.name).write_bytes(DATA)
        while not isinstance(told[-1], reports.Checkpointed):
            await changed.wait()
            changed.clear()
        return told

    last = asyncio.run(asyncio.wait_for(play(), 30.0))[-1]
    assert isinstance(last, reports.Checkpointed)
    assert last.checkpoint.step == 60


def test_a_checkpoint_whose_manifest_is_being_written_is_not_deleted() -> None:
    """A newer one became whole meanwhile. Its files went, the manifest came, and it was listed as complete."""
    fsspec.register_implementation("slow", SlowFileSystem, clobber=True)
    job = load_job(EXAMPLE, ["checkpoint.url=slow://c", "checkpoint.every=10"])
    for step in (5, 10, 20):
        storage.put(folder_of("slow://c", step), FILE.name, [DATA])

    async def play() -> list[int]:
        told = Told()
        changed = told.changed = asyncio.Event()
        archive = Archive(job, told.take, Background(lambda error: None))
        archive.carry_out(order(0, 10))
        while not SlowFileSystem.asked.acquire(blocking=False):
            await asyncio.sleep(0)
        archive.carry_out(order(0, 20))
        await changed.wait()
        changed.clear()
        before = asyncio.all_tasks()
        archive.carry_out(cmd.Retain(20, frozenset({20})))
        await asyncio.wait(asyncio.all_tasks() - before)
        SlowFileSystem.let_go.set()
        await changed.wait()
        return [report.checkpoint.step for report in told if isinstance(report, reports.Checkpointed)]

    assert asyncio.run(asyncio.wait_for(play(), 30.0)) == [20, 10]
    assert storage.names("slow://c") == ["step-00000010", "step-00000020"]
    assert sorted(storage.names(folder_of("slow://c", 10))) == [FILE.name, MANIFEST]


def damaged_checkpoint(tmp_path: Path) -> tuple[Origin, Path, Job]:
    """Of one layer, whose file has lost its last byte; the file, and a job that writes there."""
    folder = folder_of(f"file://{tmp_path}", 60)
    torn = write_layer(folder, 0, Value((("parameter.weight", torch.ones(3)),)))
    manifest = Manifest(job="job", step=60, fingerprint="", loss=0.5, files={0: torn})
    origin = write_manifest(folder, manifest)
    path = Path(folder.removeprefix("file://")) / torn[0].name
    path.write_bytes(path.read_bytes()[:-1])
    return origin, path, load_job(EXAMPLE, [f"checkpoint.url=file://{tmp_path}", "checkpoint.every=10"])


def test_a_look_that_takes_longer_than_its_patience_answers_whoever_asks_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt began anew, and none was ever over: of a large file nothing was found out."""
    monkeypatch.setattr(archive_module, "PATIENCE", 0.0)
    origin, path, job = damaged_checkpoint(tmp_path)
    size = path.stat().st_size

    async def play() -> list[reports.Report]:
        told = Told()
        changed = told.changed = asyncio.Event()
        archive = Archive(job, told.take, Background(lambda error: None))
        while not told or told[-1].sight is reports.Sight.BUSY:  # type: ignore[union-attr]
            archive.carry_out(cmd.Examine(1, origin, 0))
            await changed.wait()
            changed.clear()
        return told

    told = asyncio.run(asyncio.wait_for(play(), 30.0))
    assert [report.sight for report in told[:1]] == [reports.Sight.BUSY]  # type: ignore[union-attr]
    assert told[-1] == reports.Examined(
        origin, reports.Sight.WRONG, f"{origin.folder}/{path.name} has {size} bytes, not {size + 1}"
    )


def test_a_storage_is_searched_until_it_answers() -> None:
    """It shows what this job has made whole, oldest first, and nothing of another job."""
    fsspec.register_implementation("late", LateFileSystem, clobber=True)
    job = load_job(EXAMPLE, ["checkpoint.url=late://c", "checkpoint.every=10"])
    other = load_job(EXAMPLE, ["job.name=other"])

    def leave(step: int, whose: Job) -> Origin:
        manifest = Manifest(
            job=whose.job.name, step=step, fingerprint="", loss=0.5, files={}, job_toml=job_to_toml(whose)
        )
        return write_manifest(folder_of("late://c", step), manifest)

    async def play() -> tuple[list[Origin], list[reports.Report]]:
        told = Told()
        changed = told.changed = asyncio.Event()
        Archive(job, told.take, Background(lambda error: None)).carry_out(cmd.FindCheckpoints())
        await changed.wait()
        origins = [leave(step, job) for step in (20, 10)]
        leave(30, other)
        while not isinstance(told[-1], reports.CheckpointsFound) or told[-1].why:
            changed.clear()
            await changed.wait()
        return origins, told

    (twenty, ten), told = asyncio.run(asyncio.wait_for(play(), 30.0))
    assert isinstance(told[0], reports.CheckpointsFound)
    assert "no route to host" in told[0].why
    assert told[-1] == reports.CheckpointsFound((reports.Whole(ten, Identity()), reports.Whole(twenty, Identity())))


def test_what_was_seen_in_an_era_before_is_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The look outlasted its patience, and nobody asked again before another era began from the same checkpoint."""
    origin, path, job = damaged_checkpoint(tmp_path)
    whole = path.read_bytes()

    async def play() -> list[reports.Report]:
        told = Told()
        changed = told.changed = asyncio.Event()
        archive = Archive(job, told.take, Background(lambda error: None))
        monkeypatch.setattr(archive_module, "PATIENCE", 0.0)
        archive.carry_out(cmd.Examine(1, origin, 0))
        await changed.wait()
        assert archive._looking is not None
        await archive._looking[1]
        write_layer(origin.folder, 0, Value((("parameter.weight", torch.ones(3)),)))
        monkeypatch.setattr(archive_module, "PATIENCE", 20.0)
        changed.clear()
        archive.carry_out(cmd.Examine(2, origin, 0))
        await changed.wait()
        return told

    told = asyncio.run(asyncio.wait_for(play(), 30.0))
    assert path.read_bytes() != whole
    assert [report.sight for report in told] == [reports.Sight.BUSY, reports.Sight.THERE]  # type: ignore[union-attr]


ENDS_WHILE_THE_STORAGE_HANGS = """
import asyncio
from tests.unit.test_archive import hang
asyncio.run(hang(1))
print("over", flush=True)
"""


async def hang(manifests: int) -> None:
    """So many manifests are ordered from a storage that answers nothing, and the first is under way."""
    fsspec.register_implementation("hanging", HangingFileSystem, clobber=True)
    job = load_job(EXAMPLE, ["checkpoint.url=hanging://c", "checkpoint.every=10"])
    archive = Archive(job, lambda report: None, Background(lambda error: None))
    for step in range(1, 1 + manifests):
        archive.carry_out(order(0, 10 * step))
    while not HangingFileSystem.asked.acquire(blocking=False):
        await asyncio.sleep(0)


def test_a_coordinator_ends_though_its_storage_hangs() -> None:
    """It stayed, and whoever was to start the next one waited for its end."""
    found = subprocess.run(
        [sys.executable, "-c", ENDS_WHILE_THE_STORAGE_HANGS], capture_output=True, text=True, timeout=120.0
    )
    assert (found.returncode, found.stdout) == (0, "over\n"), found.stderr


def test_a_storage_that_hangs_keeps_no_host_name_from_being_looked_up() -> None:
    """Names are looked up in the event loop's pool: once Redis' connection broke it stayed away."""

    async def play() -> list[Any]:
        try:
            await hang(50)
            return await asyncio.wait_for(asyncio.get_running_loop().getaddrinfo("localhost", 1), 60.0)
        finally:
            HangingFileSystem.let_go.set()

    assert asyncio.run(play())


def test_of_a_new_run_only_what_it_has_ordered_is_found(tmp_path: Path) -> None:
    """It looked for none at all: a manifest whose answer was on its way was passed over by a rollback."""
    url = f"file://{tmp_path}"
    job = load_job(EXAMPLE, [f"checkpoint.url={url}", "checkpoint.every=10"])
    of_before = Manifest(job=job.job.name, step=40, fingerprint="", loss=0.5, files={}, job_toml=job_to_toml(job))
    write_manifest(folder_of(url, 40), of_before)
    folder = tmp_path / "step-00000010"
    folder.mkdir(parents=True)
    both = (FILE, replace(FILE, name="layer-00000.optimizer.safetensors"))
    for file in both:
        (folder / file.name).write_bytes(DATA)
    asked = cmd.WriteManifest(era=0, step=10, loss=0.5, fingerprint="", files={0: both})

    async def answer(archive: Archive, told: Told, command: cmd.ForStorage) -> reports.Report:
        told.clear()
        told.changed.clear()
        archive.carry_out(command)
        await told.changed.wait()
        return told[-1]

    async def found(archive: Archive, told: Told) -> list[int]:
        report = await answer(archive, told, cmd.FindCheckpoints())
        assert isinstance(report, reports.CheckpointsFound)
        return [whole.origin.step for whole in report.whole]

    async def play() -> tuple[list[int], list[int], list[int]]:
        told = Told()
        told.changed = asyncio.Event()
        archive = Archive(job, told.take, Background(lambda error: None), new_run=True)
        first = await found(archive, told)
        assert isinstance(await answer(archive, told, asked), reports.Checkpointed)
        then = await found(archive, told)
        archive.lead(first=False)
        return first, then, await found(archive, told)

    assert asyncio.run(asyncio.wait_for(play(), 30.0)) == ([], [10], [10, 40])
