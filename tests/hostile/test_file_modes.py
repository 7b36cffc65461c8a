"""What a run writes is for its user alone: files 0600, folders 0700, whatever the umask of the shell is. An export goes
by the umask.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import tomli_w
import torch
from safetensors.torch import save_file

from culm.local import clusters
from culm.local.cluster import LocalCluster
from culm.pipeline import private
from culm.pipeline.checkpoints import storage
from culm.pipeline.checkpoints.digest import save_weights
from culm.pipeline.checkpoints.layer_file import export
from culm.pipeline.job import parse_job
from tests.hostile.test_bad_jobs import job_with


@pytest.fixture(autouse=True)
def _careless_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def open_to_others(folder: Path) -> list[str]:
    """What anybody else could look into."""
    found = [folder, *folder.rglob("*")]
    return [f"{p} {stat.filemode(p.lstat().st_mode)}" for p in found if p.lstat().st_mode & 0o077]


def test_a_checkpoint(tmp_path: Path) -> None:
    url = (tmp_path / "all" / "of" / "them").as_uri()
    storage.check_url(url)
    assert not any(tmp_path.iterdir()), "a look leaves nothing behind"
    storage.put(f"{url}/step-00000003", "manifest.json", [b"{}"])
    assert not open_to_others(tmp_path / "all")


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_exported_weights_go_by_the_umask(tmp_path: Path, umask: int, mode: int) -> None:
    """They had the mode 0600, which safetensors gives, beside a config.json that a group could read."""
    os.umask(umask)
    out = tmp_path / "weights.safetensors"
    save_weights(out, [(0, {"weight": torch.ones(3)})])
    assert stat.S_IMODE(out.stat().st_mode) == mode
    assert list(tmp_path.iterdir()) == [out]
    folder = tmp_path / "exported"
    folder.mkdir()
    save_file({"weight": torch.ones(3)}, folder / "model.safetensors")
    (folder / "config.json").write_text("{}")
    private.open_up(folder)
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {
        "model.safetensors": mode,
        "config.json": mode,
    }


def test_weights_that_cannot_be_written_leave_what_was_there(tmp_path: Path) -> None:
    out = tmp_path / "weights.safetensors"
    out.write_text("of last week")

    def fails(part: Path) -> None:
        part.write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        private.write_whole(out, fails)
    assert out.read_text() == "of last week"
    assert list(tmp_path.iterdir()) == [out]


def test_an_export_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    from culm.pipeline.checkpoints.manifest import CheckpointCorrupt

    out = tmp_path / "model.safetensors"
    out.write_text("of last week")
    with pytest.raises(CheckpointCorrupt):
        export(str(tmp_path), out)
    assert out.read_text() == "of last week"


def test_a_run_with_its_logs_and_its_redis(tmp_path: Path) -> None:
    """A whole local cluster without nodes: the folder of the run, logs, Redis."""
    job = parse_job(tomli_w.dumps(job_with({})))
    with LocalCluster(job, tmp_path, 0, folder=tmp_path / "runs" / "one"):
        runs = tmp_path / "runs"
        assert {"coordinator.log", "job.toml"} <= {path.name for path in (runs / "one").iterdir()}
        shown = [path for path in open_to_others(runs) if "/redis/" not in path]  # what is below a folder of 0700
        assert not shown


def test_the_record_of_a_cluster_that_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CULM_HOME", str(tmp_path / "home"))
    clusters.make_folder("one")
    assert not open_to_others(tmp_path / "home")


def test_a_folder_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir(mode=0o755)
    theirs.chmod(0o755)
    private.make_folder(theirs / "ours")
    assert stat.S_IMODE(theirs.stat().st_mode) == 0o755
    assert stat.S_IMODE((theirs / "ours").stat().st_mode) == private.FOLDER
