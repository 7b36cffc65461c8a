"""Real processes and real files: a checkpoint that cannot be written is said, at the start or once later."""

import errno
import os
import shutil
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from culm.local import last_checkpoint
from culm.local.cluster import LocalCluster
from culm.local.training import train
from culm.pipeline.checkpoints.storage import probe, put
from culm.pipeline.errors import JobError, StorageAway
from culm.pipeline.job import Job, load_job
from culm.pipeline.tensors.values import Value
from culm.protos import coordinator_pb2 as pb
from culm.protos.coordinator_pb2_grpc import CoordinatorStub
from culm.stage_server import checkpointer as checkpointer_module
from culm.stage_server.checkpointer import Checkpointer, Share
from culm.stage_server.compute.loan import Loan
from culm.stage_server.worker.work import Save
from tests.hostile.commands import as_process

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def make_job(url: str, steps: int = 8, every: int = 4) -> Job:
    changes = [f"job.steps={steps}", "pipeline.stages=2", f"checkpoint.url={url}", f"checkpoint.every={every}"]
    return load_job(EXAMPLES / "digits_mlp.toml", changes)


@pytest.fixture
def no_folder(tmp_path: Path) -> str:
    """A URL under which nothing can be made, also by root: a file stands in its way."""
    (tmp_path / "taken").write_text("a file")
    return f"file://{tmp_path}/taken/checkpoints"


@pytest.mark.slow
def test_a_run_whose_checkpoints_cannot_be_written_does_not_begin(no_folder: str, tmp_path: Path) -> None:
    words = ["run", str(EXAMPLES / "digits_mlp.toml"), "--set", "job.steps=4", "--coordinator-address", "127.0.0.1:0"]
    words += ["--set", f"checkpoint.url={no_folder}", "--set", "checkpoint.every=2"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [sys.executable, "-m", "culm", *words], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert ended.returncode == 2, ended.stderr
    lines = [line for line in ended.stderr.splitlines() if not line.startswith(("logs: ", "the job is tried"))]
    assert len(lines) == 1, ended.stderr
    assert "checkpoint url" in lines[0]


class Blocks:
    """Puts a file in the way of all later checkpoints, once the run has begun; and takes it away again, if asked to."""

    def __init__(self, folder: Path, until: int) -> None:
        self._folder = folder
        self._until = until

    def __call__(self, stub: CoordinatorStub, status: pb.GetStatusResponse, deaths: list[tuple[str, float]]) -> None:
        if self._folder.is_file() and status.step >= self._until and status.checkpoint_fault:
            self._folder.unlink()


def run(job: Job, folder: Path, disturb: Blocks) -> tuple[str, int, list[pb.ListEventsResponse]]:
    """The last checkpoint's fault, the newest checkpoint, and all events."""
    events: list[pb.ListEventsResponse] = []
    newest = 0

    def watch(status: pb.GetStatusResponse, new: list[pb.ListEventsResponse], outcome: object) -> None:
        nonlocal newest
        newest = status.checkpoint
        events.extend(new)

    with LocalCluster(job, EXAMPLES, 0, folder=folder, patience=20.0) as cluster:
        (folder.parent / "checkpoints").rmdir()
        (folder.parent / "checkpoints").write_text("in the way")
        for name in ("n0", "n1"):
            cluster.add(name)
        outcome = train(cluster, watch, disturb)
    return outcome.checkpoint_fault, newest, events


def test_checkpoints_that_can_be_written_no_longer_are_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(last_checkpoint, "FAULTY_SECONDS", 2.0)
    job = make_job(f"file://{tmp_path}/checkpoints", steps=40, every=4)
    fault, newest, events = run(job, tmp_path / "run", Blocks(tmp_path / "checkpoints", until=1000))
    assert newest == 0
    assert "cannot write the checkpoint of step 40" in fault
    (told,) = [event for event in events if event.kind == "checkpoint_fault"]
    assert "cannot write the checkpoint of step" in told.text
    assert "training goes on" in told.text
    done = next(event for event in events if event.kind == "done")
    assert done.step == 40


def test_a_checkpoint_is_written_once_the_storage_takes_it_again(tmp_path: Path) -> None:
    job = make_job(f"file://{tmp_path}/checkpoints", steps=8, every=8)
    fault, newest, events = run(job, tmp_path / "run", Blocks(tmp_path / "checkpoints", until=8))
    assert (fault, newest) == ("", 8)
    assert [event.kind for event in events if event.kind.startswith("checkpoint")] == ["checkpoint_fault", "checkpoint"]


class Hears:
    """A checkpointer's listener."""

    def __init__(self) -> None:
        self.told: list[tuple[int, str]] = []

    def saved(self, share: Share, files: object) -> None:
        self.told.append((share.step, ""))

    def unwritten(self, step: int, why: str) -> None:
        self.told.append((step, why))

    def vanished(self) -> None:
        self.told.append((0, "vanished"))


def share(step: int, last: bool = False) -> Share:
    return Share(Save(era=0, step=step, layers=(0,), loss=0.5, last=last), ((0, Loan(Value(()))),))


def test_of_shares_that_wait_only_the_newest_is_kept(no_folder: str) -> None:
    hears = Hears()
    checkpointer = Checkpointer(no_folder, hears)
    for step in range(1, 50):
        checkpointer.write(share(step))
    assert checkpointer._waiting is None or checkpointer._waiting.step == 49
    checkpointer.close(30.0)


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30.0
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_share_that_is_passed_over_or_written_keeps_nothing(tmp_path: Path) -> None:
    """The next commit would copy all of it, for nobody."""
    (tmp_path / "step-00000001").write_text("a file where the folder should be")
    hears = Hears()
    checkpointer = Checkpointer(f"file://{tmp_path}", hears)
    shares = [
        Share(Save(era=0, step=step, layers=(0,), loss=0.5), ((0, Loan(Value((("weight", torch.zeros(4)),)))),))
        for step in range(1, 4)
    ]
    checkpointer.write(shares[0])
    wait_until(lambda: bool(hears.told))
    assert shares[0].layers[0][1].live  # it is tried again
    for share in shares[1:]:
        checkpointer.write(share)
    wait_until(lambda: (3, "") in hears.told)
    checkpointer.close(30.0)
    assert not any(loan.live for share in shares for _, loan in share.layers)


def test_a_share_that_fails_is_told_again(tmp_path: Path) -> None:
    """A coordinator that took over would never hear of it."""
    (tmp_path / "step-00000001").write_text("a file where the folder should be")
    hears = Hears()
    checkpointer = Checkpointer(f"file://{tmp_path}", hears)
    checkpointer.write(share(1, last=True))
    wait_until(lambda: len(hears.told) > 1)
    assert hears.told[0] == hears.told[1]
    assert "File exists" in hears.told[0][1]
    checkpointer.close(30.0)


def test_what_is_written_is_not_kept_until_the_next_share(tmp_path: Path) -> None:
    """A copy of all that a node holds would stay in its memory."""
    hears = Hears()
    checkpointer = Checkpointer(f"file://{tmp_path}", hears)
    tensor = torch.zeros(4)
    seen = weakref.ref(tensor)
    checkpointer.write(Share(Save(era=0, step=1, layers=(0,), loss=0.5), ((0, Loan(Value((("weight", tensor),)))),)))
    del tensor
    wait_until(lambda: hears.told == [(1, "")])
    wait_until(lambda: seen() is None)
    checkpointer.close(30.0)


def test_a_share_of_the_last_step_that_lay_below_a_mount_is_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was never written again, and that checkpoint never became whole."""
    monkeypatch.setattr(checkpointer_module, "LOOK_SECONDS", 0.01)
    hears, url, away = Hears(), tmp_path / "mount", tmp_path / "elsewhere"
    checkpointer = Checkpointer(f"file://{url}", hears)
    checkpointer.write(share(4))
    wait_until(lambda: hears.told == [(4, "")])
    url.rename(away)
    checkpointer.write(share(8, last=True))
    wait_until(lambda: hears.told == [(4, ""), (8, "")])
    shutil.rmtree(url)
    away.rename(url)
    wait_until(lambda: hears.told == [(4, ""), (8, ""), (0, "vanished")])
    checkpointer.write(share(8, last=True))
    wait_until(lambda: hears.told[3:] == [(8, "")])
    (url / "step-00000008" / "manifest.json").touch()
    wait_until(lambda: not checkpointer._last_files)
    checkpointer.close(30.0)
    assert hears.told[4:] == []


def test_a_storage_that_hangs_is_given_up_at_the_start(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # whoever opens it to write waits for a reader

    import fsspec
    from fsspec.implementations.local import LocalFileSystem

    class Hanging(LocalFileSystem):  # type: ignore[misc]
        protocol = "hanging"

        def makedirs(self, path: str, exist_ok: bool = False) -> None:
            (tmp_path / "pipe").open("wb")

    fsspec.register_implementation("hanging", Hanging, clobber=True)
    with pytest.raises(StorageAway, match=r"no answer within 0\.1 s"):
        probe(f"hanging://{tmp_path}/x", 0.1)
    (tmp_path / "pipe").open("rb").close()


def test_a_storage_that_nobody_may_write_to_is_a_mistake_to_mend(no_folder: str) -> None:
    with pytest.raises(JobError, match="no checkpoint can be written there") as raised:
        probe(no_folder, 30.0)
    assert not isinstance(raised.value, StorageAway)


def test_a_coordinator_whose_storage_is_away_is_started_again_by_its_supervisor(tmp_path: Path) -> None:
    """Supervisors let one rest that ends with 2: its settings are at fault. A storage may be back in a minute."""
    folder = tmp_path / "ck" / "step-00000004"
    folder.mkdir(parents=True)
    (folder / "manifest.json").symlink_to("manifest.json")  # no read of it ends
    words = ["coordinator", "--job", str(EXAMPLES / "digits_mlp.toml"), "--listen", "127.0.0.1:0"]
    ended = as_process(*words, "--set", "checkpoint.url=ck", "--set", "checkpoint.every=2", folder=tmp_path)
    assert ended.code == 1, ended.err
    assert "culm coordinator: checkpoint url ck: it cannot be read" in ended.err.splitlines()[-1]


def test_a_file_whose_mount_refuses_a_rename_stays_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was copied over in place, so a kill or a full disk could leave half of it under its name."""
    put(str(tmp_path), "a", [b"whole"])

    def refused(source: str, target: str) -> None:
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(os, "rename", refused)
    monkeypatch.setattr(os, "replace", refused)
    with pytest.raises(OSError, match="input/output error"):
        put(str(tmp_path), "a", [b"another one"])
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"whole"}
