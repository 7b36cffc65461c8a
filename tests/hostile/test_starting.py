"""Commands as processes of their own: what they say and leave behind where they are refused, cut off or interrupted."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import tomli_w
import torch

from tests.hostile.commands import PATIENCE, as_process, environment, in_process
from tests.hostile.test_bad_jobs import job_with
from tests.signals import with_default_signals

# Once its job is being imported the terminal's Ctrl-C reaches the command, and all that it has started so far.
INTERRUPTING = """
import os, pathlib, signal, psutil
here = psutil.Process()
pathlib.Path("children").write_text(" ".join(str(child.pid) for child in here.children(recursive=True)))
os.killpg(0, signal.SIGINT)
import time
time.sleep(600)
"""


def job_in(folder: Path, **changes: Any) -> None:
    (folder / "job.toml").write_text(tomli_w.dumps(job_with(changes)))


def wait_for_end(pid: int) -> None:
    """Raises psutil.TimeoutExpired if it lives on; a zombie has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(pid).wait(timeout=PATIENCE)


@pytest.mark.parametrize("command", ["run", "up"])
def test_ctrl_c_while_starting_ends_all_that_was_started(command: str, tmp_path: Path) -> None:
    (tmp_path / "interrupting.py").write_text(INTERRUPTING)
    job_in(tmp_path, **{"model.layers": "interrupting:layers"})
    with subprocess.Popen(
        with_default_signals([sys.executable, "-m", "culm", command, "job.toml"]),
        cwd=tmp_path,
        env=environment(CULM_HOME=str(tmp_path / "home")),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        _, said = process.communicate(timeout=PATIENCE)
    # On a busy machine the job's import may take so long that the command says so first.
    lines = [line for line in said.splitlines() if not line.endswith("; Ctrl-C ends it")]
    assert (process.returncode, lines) == (130, ["culm: interrupted"])
    started = [int(pid) for pid in (tmp_path / "children").read_text().split()]
    assert started or command == "up", "there was something to be ended"
    for pid in started:
        wait_for_end(pid)
    left = {path.name for path in tmp_path.iterdir()} - {"__pycache__"}
    assert left == {"interrupting.py", "job.toml", "children"}


@pytest.mark.parametrize("words", ["run --help", "completion bash", "prices ls"])
def test_a_reader_that_goes_is_no_error(words: str, tmp_path: Path) -> None:
    """As ``| head`` does, which may have gone before the first line."""
    reading, writing = os.pipe()
    os.close(reading)
    with subprocess.Popen(
        [sys.executable, "-m", "culm", *words.split()],
        cwd=tmp_path,
        env=environment(),
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        os.close(writing)
        _, said = process.communicate(timeout=PATIENCE)
    assert "Traceback" not in said
    assert "Broken" not in said
    # argparse passes over it, rich ends with 1, and what is Culm's own as SIGPIPE would have it.
    assert process.returncode in (0, 1, 141)


@pytest.mark.slow
def test_a_module_that_exits_ends_nothing_silently(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("raise SystemExit(0)")
    job_in(tmp_path, **{"model.layers": "broken:layers"})
    out = tmp_path / "weights.safetensors"
    out.write_text("of last week")
    line = as_process("run", "job.toml", "--out", out.name, folder=tmp_path).line
    assert "module 'broken'" in line
    assert out.read_text() == "of last week"
    assert not (tmp_path / "runs").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has what the job asks for")
def test_a_device_that_is_not_there_is_told_at_once(tmp_path: Path) -> None:
    job_in(tmp_path, **{"job.device": "cuda"})
    assert "torch finds no CUDA device" in in_process("run", "job.toml", folder=tmp_path).line
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_a_job_file_within_its_package(tmp_path: Path) -> None:
    """Its folder and the current one are importable: from above it is found, from within the mend is told."""
    package = tmp_path / "mine"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "parts.py").write_text("from tests.hostile.models import layers\n")
    (package / "model.py").write_text("from .parts import layers\n")
    job = job_with(
        {"model.layers": "mine.model:layers", "pipeline.stages": 40}
    )  # a mistake that is found after the import
    (package / "job.toml").write_text(tomli_w.dumps(job))
    assert "pipeline.stages" in as_process("run", "mine/job.toml", folder=tmp_path).line
    assert "run from the folder that holds it" in as_process("run", "job.toml", folder=package).line
    (package / "job.toml").write_text(tomli_w.dumps(job | {"model": {"layers": "model:layers"}}))
    assert "PACKAGE.MODULE:NAME" in as_process("run", "job.toml", folder=package).line
