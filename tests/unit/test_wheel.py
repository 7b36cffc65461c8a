"""The wheel holds culm alone, with its data files and its version."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from email import message_from_bytes
from pathlib import Path
from zipfile import ZipFile

import pytest

from culm import __version__

ROOT = Path(__file__).parents[2]
ROOMS = ("coordinator", "culm", "examples", "pipeline", "protos", "simulator", "stage_server", "ui")
DATA = (
    "deploy/kubernetes/job.toml",
    "deploy/kubernetes/stage.yaml",
    "examples/digits_mlp.toml",
    "pipeline/money/prices.toml",
    "protos/coordinator.proto",
    "py.typed",
    "ui/demo.jsonl.gz",
)


def files() -> list[str]:
    """Of the repository: tracked ones, and new ones that git does not ignore."""
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [name for name in listed if (ROOT / name).exists()]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZipFile]:
    """Built from a copy, since a build leaves folders beside the code."""
    copy, out = tmp_path_factory.mktemp("code"), tmp_path_factory.mktemp("wheel")
    for name in files():
        if name.split("/")[0] in (*ROOMS, "deploy", "LICENSE", "README.md", "pyproject.toml"):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    built = subprocess.run([*build, "--wheel-dir", str(out), str(copy)], capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    (path,) = out.iterdir()
    with ZipFile(path) as opened:
        yield opened


def test_it_holds_every_module_of_culm_and_nothing_beside(wheel: ZipFile) -> None:
    names = set(wheel.namelist())
    assert {name.split("/")[0] for name in names} == {"culm", f"culm-{__version__}.dist-info"}
    code = [name for name in files() if name.endswith(".py") and name.split("/")[0] in ROOMS]
    wanted = {name if name.startswith("culm/") else f"culm/{name}" for name in code}
    assert {name for name in names if name.endswith(".py")} == wanted


def test_it_holds_the_data_files(wheel: ZipFile) -> None:
    assert {f"culm/{name}" for name in DATA} <= set(wheel.namelist())


def test_its_metadata_say_what_it_is(wheel: ZipFile) -> None:
    metadata = message_from_bytes(wheel.read(f"culm-{__version__}.dist-info/METADATA"))
    assert (metadata["Name"], metadata["Version"]) == ("culm", __version__)
    assert metadata["License-Expression"] == "Apache-2.0"
    assert "Typing :: Typed" in metadata.get_all("Classifier", [])
    assert {"docs", "hf", "s3", "ui"} <= set(metadata.get_all("Provides-Extra", []))
    assert b"culm = culm.__main__:main" in wheel.read(f"culm-{__version__}.dist-info/entry_points.txt")
